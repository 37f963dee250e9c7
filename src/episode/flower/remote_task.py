"""A task whose model and data are at the sites; the server knows only names and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from torch import Tensor

from episode.errors import EpisodeError
from episode.federation.protocols import Objective, Task
from episode.federation.state import Buffers
from episode.flower.introductions import example_of
from episode.flower.site_metrics import SiteMetrics, mean_of_sites, read_sites
from episode.flower.sites import Introduction, Sites
from episode.randomness import permutation
from episode.tasks.weights import checksum

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Evaluation:
    """How a model is evaluated: by the server's own function and by a share of the sites."""

    fraction: float
    config: ConfigRecord
    function: EvaluateFn | None
    weighted_by: str
    seconds: float


def objection_to(site: Introduction, arrays: Mapping[str, Tensor]) -> str | None:
    """Return why a site's model is not that of the initial arrays, or None if it is."""
    if site.layout is None:
        return "has no model: call attach(app, ...) in its ClientApp"
    return site.layout.objection(arrays, site.dtype)


class RemoteTask(Task):
    """The model of the initial arrays, and the sites that have data for it.

    Args:
        arrays: The initial arrays.
        sites: The sites, which have been met.
        evaluation: How the model is evaluated.
        result: Where the metrics of evaluations are kept, for Flower.
    """

    def __init__(
        self, arrays: Mapping[str, Tensor], sites: Sites, evaluation: Evaluation, result: Result
    ) -> None:
        first = example_of(sites.known.values())
        assert first.layout is not None, "objection_to has checked it"
        self.num_clients = sites.num_clients
        self.layout = first.layout
        self._arrays = arrays
        self._sites = sites
        self._evaluation = evaluation
        self._result = result
        self._start = self.layout.split(arrays, first.buffers)
        self._replies: tuple[int, dict[int, SiteMetrics]] = (0, {})
        """The sites' evaluations after so many rounds."""
        self.client_names = [f"site {client}" for client in range(self.num_clients)]

    @property
    def evaluates_clients(self) -> bool:
        return self._evaluation.fraction > 0

    def examples(self, client: int) -> int:
        return self._sites.known[client].examples

    def initial(self) -> tuple[Tensor, Buffers]:
        return self._start[0].clone(), self._start[1]

    def objective(self) -> Objective:
        raise EpisodeError("The data are at the sites: gradients can only be asked of them.")

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        frozen = self.layout.frozen
        return {n: t for n, t in self.arrays(x, buffers).items() if n not in frozen}

    @property
    def frozen_checksum(self) -> str:
        frozen = [(n, self._arrays[n]) for n in self.layout.frozen if n in self._arrays]
        return checksum(frozen) if len(frozen) == len(self.layout.frozen) > 0 else ""

    def arrays(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        """Return the initial arrays at x̄, with those that are not trained."""
        return self.layout.join(x, buffers, self._arrays)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        """Return metrics of the server's own function, and the sites' mean as `sites_…`."""
        played, metrics = self._sites.round + 1, dict[str, float]()
        if self._evaluation.function:
            arrays = ArrayRecord(self.arrays(x, buffers))
            if (of_server := self._evaluation.function(played, arrays)) is not None:
                self._result.evaluate_metrics_serverapp[played] = of_server
                metrics |= _numbers(of_server, "")
        if (found := mean_of_sites(self._at_sites(x, buffers))) is not None:
            self._result.evaluate_metrics_clientapp[played] = found
            metrics |= _numbers(found, "sites_")
        return metrics

    def evaluate_client(self, client: int, x: Tensor, buffers: Buffers) -> dict[str, float]:
        """Return what a site's own `evaluate` function measured, under the names of the mean."""
        site = self._at_sites(x, buffers).get(client)
        return {} if site is None else {f"sites_{k}": v for k, v in site.numbers().items()}

    def _at_sites(self, x: Tensor, buffers: Buffers) -> dict[int, SiteMetrics]:
        """Return what sites measured with their own `evaluate`; they are asked once a round.

        The mean of their metrics is weighted as Flower does.
        """
        played = self._sites.round + 1
        if self._replies[0] != played:
            arrays = ArrayRecord(self.arrays(x, buffers))
            self._replies = played, self._ask_sites(played, arrays)
        return self._replies[1]

    def _ask_sites(self, round: int, arrays: ArrayRecord) -> dict[int, SiteMetrics]:
        sites, settings = self._sites, self._evaluation
        able = [c for c in sorted(sites.connected()) if sites.known[c].evaluates]
        count = math.ceil(settings.fraction * len(able))
        if not count:
            return {}
        order = permutation(len(able), sites.seed, "evaluate", round)[:count].tolist()
        config = ConfigRecord({**settings.config, "server-round": round})
        content = RecordDict({"arrays": arrays, "config": config})
        chosen = {able[k]: content for k in sorted(order)}
        replies = sites.ask(chosen, "evaluate", round - 1, settings.seconds)
        return read_sites(replies, settings.weighted_by, sites.limits.max_examples)


def _numbers(record: MetricRecord, prefix: str) -> dict[str, float]:
    """Return the metrics that are single numbers, under prefixed names."""
    return {f"{prefix}{k}": float(v) for k, v in record.items() if isinstance(v, (int, float))}
