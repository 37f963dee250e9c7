"""For Flower's users: every algorithm of the grid as a `Strategy`, and one call for the ClientApp.

    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=8)         # in the ServerApp
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)

    attach(app, model_fn=Net, data_fn=load_data, loss=loss, batch_size=32)  # in the ClientApp

Sites are known by their `partition-id`, so that a run can be repeated: each starts its SuperNode
with one of its own, from 0. docs/flower.md says how to deploy, and what crosses the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from torch.utils.data import default_collate

from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.errors import EpisodeError
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts, Full
from episode.flower.simulation import require_flower
from episode.runs.config import identity_of
from episode.runs.records import Record, Run
from episode.runs.trainer import Job, execute
from episode.tasks.neural import Loss, NeuralTask

require_flower()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Result, Strategy  # noqa: E402
from flwr.supercore import log  # noqa: E402

from episode.flower.client import Site, add_actions  # noqa: E402
from episode.flower.layout import Layout  # noqa: E402
from episode.flower.remote_task import EvaluateFn, Evaluation, RemoteTask  # noqa: E402
from episode.flower.rounds import SiteRounds  # noqa: E402
from episode.flower.server import FlowerEngine  # noqa: E402
from episode.flower.sites import Patience, Sites  # noqa: E402

__all__ = ["EpisodeStrategy", "attach"]


def attach(
    app: ClientApp,
    model_fn: Callable[[], nn.Module],
    data_fn: Callable[[Context], Any],
    loss: Loss,
    *,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    threads: int | None = None,
) -> None:
    """Adds to an app what `EpisodeStrategy` asks of a site: `probe` and `local`.

    `model_fn()` returns the model, `data_fn(context)` this site's training data (a map-style
    dataset or a tuple of tensors), and `loss(model, batch)` the batch's mean loss. `batch_size` is
    by default the run config's `batch-size`. `threads` is how many torch may use; all by default.
    """

    def make_site(context: Context, client: int, seed: int) -> Site:
        size = context.run_config.get("batch-size") if batch_size is None else batch_size
        if type(size) is not int:
            raise EpisodeError(
                f"The batch size is {size!r}: give attach(..., batch_size=32), or set batch-size "
                "in [tool.flwr.app.config]."
            )
        model = model_fn()
        task = NeuralTask(
            model,
            [data_fn(context)],
            loss,
            batch_size=size,
            seed=seed,
            collate=collate,
            first=client,
        )
        return Site(task, client, Layout.of(model))

    add_actions(app, make_site, threads)


class EpisodeStrategy(Strategy):
    """Any algorithm of the grid, by its name or as an `Algorithm`.

    `num_sites` are expected (by default as many as the sites say there are partitions), and have
    `start_seconds` to connect. In each phase of a round a site has `deadline` seconds (by default
    `start`'s timeout). A round needs `min_replies` sites, by default all of its cohort; with fewer
    it is tried again `retries` times, and then the run stops and says who was missing. A reply that
    is late, is not finite, has another shape, type or round, or a gradient larger than `max_norm`,
    is not used.

    With a `folder` the run is written there, with a checkpoint after every round; started again, it
    goes on from the last. `run` has its status and its history once `start` has returned.
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "episode",
        *,
        eta: float,
        gamma: float,
        local_steps: int,
        seed: int = 0,
        schedule: Schedule | None = None,
        cohorts: Cohorts | None = None,
        num_sites: int | None = None,
        min_replies: int | None = None,
        deadline: float | None = None,
        retries: int = 2,
        start_seconds: float = 60.0,
        max_norm: float | None = None,
        folder: str | Path | None = None,
        fraction_evaluate: float = 1.0,
        evaluate_every: int = 1,
        weighted_by_key: str = "num-examples",
    ) -> None:
        self.algorithm = Algorithm.named(algorithm) if isinstance(algorithm, str) else algorithm
        if not isinstance(self.algorithm, Algorithm):
            raise EpisodeError(
                f"algorithm is a {type(algorithm).__name__}: give a name, such as 'episode', or "
                "an Algorithm(correction, clipping)."
            )
        if not 0 <= fraction_evaluate <= 1:
            raise EpisodeError(f"fraction_evaluate is {fraction_evaluate}: it must be 0 to 1.")
        self.schedule = schedule or Schedule(eta, gamma)
        self.local_steps = local_steps
        self.seed = seed
        self.cohorts = cohorts or Full()
        self.num_sites = num_sites
        self.deadline = deadline
        self.patience = Patience(min_replies, deadline or 1.0, retries, start_seconds, max_norm)
        self.folder = Path(folder) if folder is not None else None
        self.fraction_evaluate = fraction_evaluate
        self.evaluate_every = evaluate_every
        self.weighted_by_key = weighted_by_key
        self.run: Run | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Plays `num_rounds` rounds; returns the model and the metrics of each round.

        (An algorithm that communicates after every iteration plays `local_steps` times as many.)
        """
        plan = Plan(
            self.algorithm, self.schedule, num_rounds, self.local_steps, self.seed, self.cohorts
        )
        plan.check(self.num_sites or 10**9)
        self.summary()
        result = Result(arrays=initial_arrays)
        if evaluate_fn and (first := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = first
        patience = self._patience(timeout)
        task = RemoteTask(
            initial_arrays.to_torch_state_dict(),
            Evaluation(
                self.fraction_evaluate,
                evaluate_config or ConfigRecord(),
                evaluate_fn,
                self.weighted_by_key,
                patience.deadline,
            ),
            result,
        )
        algorithm = json.dumps(self.algorithm.to_dict())
        sites = Sites(grid, patience, self.seed, task.objection, algorithm)
        sites.meet(self.num_sites)
        task.meet(sites, self.algorithm)
        self.run = execute(self._job(plan, task, train_config), self.folder, self._observe(plan))
        result.arrays = task.arrays(self.run.x, task.buffers)
        for record in self.run.history:
            result.train_metrics_clientapp[record["round"] + 1] = _metrics(record)
        if self.run.status == "diverged":
            log(WARNING, "The run has diverged: %s", self.run.summary["reason"])
        return result

    def summary(self) -> None:
        """Logs what is about to be played."""
        algorithm, schedule = self.algorithm, self.schedule
        cell = f"{algorithm.correction.name} x {algorithm.clipping.name}"
        log(INFO, "EPISODE strategy: %s, η %g, γ %g", cell, schedule.eta, schedule.gamma)

    def _patience(self, timeout: float) -> Patience:
        given = self.patience
        return Patience(
            given.min_replies,
            timeout if self.deadline is None else self.deadline,
            given.retries,
            given.start_seconds,
            given.max_norm,
        )

    def _job(self, plan: Plan, task: RemoteTask, config: ConfigRecord | None) -> Job:
        described = {
            "made_by": "flower",
            "seed": plan.seed,
            "task": {"name": "flower", "parameters": task.shapes, "sites": task.num_clients},
            "algorithm": plan.algorithm.to_dict(),
            "schedule": vars(plan.schedule) | {"milestones": list(plan.schedule.milestones)},
            "budget": {"rounds": plan.rounds, "local_steps": plan.local_steps},
            "cohorts": {"kind": type(plan.cohorts).__name__.lower(), **vars(plan.cohorts)},
            "record": {"evaluate_every": self.evaluate_every},
        }

        def make_engine() -> FlowerEngine:
            assert task.sites is not None
            engine = FlowerEngine(task.sites, plan.algorithm, config)
            task.rounds_played = lambda: engine.round + 1
            return engine

        return Job(
            plan,
            task,
            described,
            identity_of(described),
            evaluate_every=self.evaluate_every,
            checkpoint_seconds=0.0,
            make_engine=make_engine,
            make_rounds=SiteRounds,
        )

    def _observe(self, plan: Plan) -> Callable[[Record], None]:
        def observe(record: Record) -> None:
            norm = "" if record["global_norm"] is None else f"  ‖G‖ {record['global_norm']:.3g}"
            clipped = "  clipped" if record["clipped"] else ""
            here, total = record["round"] + 1, plan.rounds_to_play
            log(INFO, "[ROUND %d/%d] loss %.4g%s%s", here, total, record["loss"], norm, clipped)

        return observe

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Not offered: a round of this strategy is more than one exchange."""
        raise self._plays_its_own_rounds()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Not offered."""
        raise self._plays_its_own_rounds()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Not offered."""
        raise self._plays_its_own_rounds()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Not offered."""
        raise self._plays_its_own_rounds()

    def _plays_its_own_rounds(self) -> EpisodeError:
        return EpisodeError(
            "EpisodeStrategy plays its own rounds, of one or two exchanges: call start(...), and "
            "do not wrap it in another strategy."
        )


def _metrics(record: Record) -> MetricRecord:
    names = ("loss", "global_norm", "clipped_steps", "largest_norm", "drift")
    values: dict[str, Any] = {n: float(record[n]) for n in names if record[n] is not None}
    if record["clipped"] is not None:
        values["clipped"] = int(record["clipped"])
    return MetricRecord({**values, "sites": len(record["cohort"])})
