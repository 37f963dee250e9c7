"""A task whose model and data are at the sites; the server knows only names and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.protocols import Objective, Task
from episode.federation.state import Buffers
from episode.flower.exchange import Failure, Outcome
from episode.flower.layout import Layout
from episode.flower.sites import Introduction, Sites
from episode.randomness import permutation

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Evaluation:
    """How a model is evaluated: by the server's own function and by a share of the sites."""

    fraction: float
    config: ConfigRecord
    function: EvaluateFn | None
    weighted_by: str
    seconds: float


class RemoteTask(Task):
    """The model of the initial arrays, and the sites that have data for it."""

    def __init__(
        self, arrays: Mapping[str, Tensor], evaluation: Evaluation, result: Result
    ) -> None:
        self.num_clients = 0
        self.sites: Sites | None = None
        self._arrays = arrays
        self._evaluation = evaluation
        self._result = result
        self._layout: Layout | None = None
        self._start: tuple[Tensor, Buffers] | None = None

    @property
    def layout(self) -> Layout:
        assert self._layout is not None
        return self._layout

    @property
    def shapes(self) -> dict[str, list[int]]:
        return self.layout.trained

    def objection(self, site: Introduction) -> str | None:
        """Return why a site's model is not that of the initial arrays, or None if it is."""
        if site.layout is None:
            return "has no model: call attach(app, ...) in its ClientApp"
        reason = site.layout.objection(self._arrays)
        if reason is None and self._layout not in (None, site.layout):
            reason = "trains other parameters, or in another order, than the first site"
        if reason is None:
            dtype = str(self._arrays[next(iter(site.layout.trained))].dtype)
            if dtype != site.dtype:
                reason = f"trains {site.dtype}, but the initial arrays are {dtype}"
        if reason is None and self._layout is None:
            self._layout = site.layout
        return reason

    def meet(self, sites: Sites, algorithm: Algorithm) -> None:
        """Take over what the sites have said about themselves."""
        self.sites = sites
        self.num_clients = sites.num_clients
        if algorithm.weighting == "examples" and len(sites.known) < self.num_clients:
            raise EpisodeError(
                "weighting='examples' needs every site at the start, to know what it weighs, but "
                f"{len(sites.known)} of {self.num_clients} are there."
            )
        first = sites.known[min(sites.known)]
        self._start = self.layout.split(self._arrays, first.buffers)

    def examples(self, client: int) -> int:
        assert self.sites is not None
        return self.sites.known[client].examples

    def initial(self) -> tuple[Tensor, Buffers]:
        assert self._start is not None
        return self._start[0].clone(), self._start[1]

    def objective(self) -> Objective:
        raise EpisodeError("The data are at the sites: gradients can only be asked of them.")

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        """Return the model's arrays at x̄, to be stored with the run."""
        return self.layout.join(x, buffers, self._arrays)

    def arrays(self, x: Tensor, buffers: Buffers) -> ArrayRecord:
        return ArrayRecord(self.state_dict(x, buffers))

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        """Return metrics of the server's own function, and the sites' mean as `sites_…`."""
        assert self.sites is not None
        played, arrays = self.sites.round + 1, self.arrays(x, buffers)
        metrics: dict[str, float] = {}
        if self._evaluation.function:
            found = self._evaluation.function(played, arrays)
            if found is not None:
                self._result.evaluate_metrics_serverapp[played] = found
                metrics |= _numbers(found, "")
        found = self._at_sites(played, arrays)
        if found is not None:
            self._result.evaluate_metrics_clientapp[played] = found
            metrics |= _numbers(found, "sites_")
        return metrics

    def _at_sites(self, round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the mean of the sites' own `evaluate` functions, weighted as Flower does."""
        assert self.sites is not None
        able = [c for c in sorted(self.sites.connected()) if self.sites.known[c].evaluates]
        count = math.ceil(self._evaluation.fraction * len(able))
        if not count:
            return None
        order = permutation(len(able), self.sites.seed, "evaluate", round)[:count].tolist()
        config = ConfigRecord({**self._evaluation.config, "server-round": round})
        content = RecordDict({"arrays": arrays, "config": config})
        chosen = {able[k]: content for k in sorted(order)}
        replies = self.sites.ask(chosen, "evaluate", round - 1, self._evaluation.seconds)
        good = [r for c, r in replies.items() if self._is_usable(c, r)]
        return aggregate_metricrecords(good, self._evaluation.weighted_by) if good else None  # type: ignore[arg-type]

    def _is_usable(self, client: int, reply: Outcome) -> bool:
        key = self._evaluation.weighted_by
        if isinstance(reply, Failure):
            failure = reply.reason
        elif len(reply.metric_records) != 1 or key not in next(iter(reply.metric_records.values())):
            failure = f"sent no metrics with {key!r}"
        else:
            return True
        log(WARNING, "Site %d was not evaluated: it %s", client, failure)
        return False


def _numbers(record: MetricRecord, prefix: str) -> dict[str, float]:
    values: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, (int, float))}
    return {f"{prefix}{name}": float(value) for name, value in values.items()}
