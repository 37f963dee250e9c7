"""Every algorithm of the grid as a strategy for Flower's ServerApp."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor

from episode.arguments import (
    folder_path,
    function,
    number,
    optional,
    positive,
    seed_number,
    shown,
    switch,
    whole_number,
)
from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.errors import EpisodeError
from episode.federation.job import MOST_EXAMPLES, EngineSettings, Job, RecordSettings
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts
from episode.flower.opening import round_logger
from episode.flower.owners import Owners
from episode.flower.remote_task import EvaluateFn, Evaluation, RemoteTask, objection_to
from episode.flower.secure.checks import check_cohorts, check_settings
from episode.flower.secure.server import SecureEngine
from episode.flower.server import FlowerEngine
from episode.flower.sites import Limits, Sites
from episode.runs.config import describe
from episode.runs.records import Record, Run
from episode.runs.rules import cohorts_of, schedule_of
from episode.runs.trainer import train


class EpisodeStrategy(Strategy):
    """Flower strategy for any algorithm of the grid. The ClientApp needs `attach`.

    Sites are identified by their `partition-id`, so that a run can be repeated: each SuperNode is
    started with its own, counted from 0. A reply is rejected if it is late, holds a NaN or an
    infinity, has the wrong shape, type or round, or is larger than the algorithm allows.

    Args:
        algorithm: A name, such as "episode" or "scaffold", or an `Algorithm`.
        eta: Step size η.
        gamma: Length γ of a clipped step; a round is clipped if the norm of the global gradient is
            above γ/η. An algorithm that does not clip needs none.
        local_steps: Number I of steps that each site takes between two exchanges.
        seed: Random seed of batches and cohorts; equal seeds give equal runs.
        schedule: A `Schedule`, which has its own η and γ, or "cosine"; by default constants.
        cohorts: Which sites take part in each round; by default all of them.
        num_sites: Number of sites; by default the `num-partitions` of the sites.
        min_replies: Number of sites that must take part in a round; by default the whole cohort.
        deadline: Seconds that a site has for a phase; by default `start`'s timeout.
        retries: How often a round with too few sites is attempted again before the run stops.
        start_seconds: Seconds that sites have to connect.
        max_norm: Largest norm of a site's gradient that is accepted; models, memories and
            velocities that only larger gradients can lead to are rejected, too.
        allow_takeover: Whether another node may take the place of a site that stopped answering,
            and be sent its state. By default a partition belongs to the node key that it was first
            seen with.
        max_examples: A site that claims more examples is refused; with `weighting="examples"`, its
            claim is its weight.
        folder: Where the run is written, with a checkpoint after every round. A run that is started
            again continues from the last one.
        fraction_evaluate: Share of the sites that evaluate the model.
        evaluate_every: Rounds between evaluations; 0 evaluates only at the end.
        weighted_by_key: Name of the metric by which the sites' evaluations are weighted.
        per_client: Whether the run keeps each site's losses, norms and metrics of every round; by
            default of at most 100 sites.
        secure: Whether sites send masked values, of which the server can read only the sum over a
            cohort (docs/privacy.md). It takes three or more sites.

    Raises:
        EpisodeError: An argument is wrong.

    Example:
        >>> from episode.flower import EpisodeStrategy
        >>> strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=8)
        >>> strategy.local_steps
        8
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "episode",
        *,
        eta: float | None = None,
        gamma: float | None = None,
        local_steps: int,
        seed: int = 0,
        schedule: Schedule | str | None = None,
        cohorts: Cohorts | None = None,
        num_sites: int | None = None,
        min_replies: int | None = None,
        deadline: float | None = None,
        retries: int = 2,
        start_seconds: float = 60.0,
        max_norm: float | None = None,
        allow_takeover: bool = False,
        max_examples: int = MOST_EXAMPLES,
        folder: str | Path | None = None,
        fraction_evaluate: float = 1.0,
        evaluate_every: int = 1,
        weighted_by_key: str = "num-examples",
        per_client: bool | None = None,
        secure: bool = False,
    ) -> None:
        if not isinstance(weighted_by_key, str):
            raise EpisodeError(f"weighted_by_key is {shown(weighted_by_key)}: give a name.")
        self.algorithm = Algorithm.named(algorithm)
        self.schedule = schedule_of(schedule, eta, gamma, self.algorithm)
        self.local_steps = whole_number("local_steps", local_steps, least=1)
        self.seed = seed_number(seed)
        self.cohorts = cohorts_of(cohorts)
        self.num_sites = optional(whole_number, "num_sites", num_sites, least=1)
        self.deadline = optional(positive, "deadline", deadline)
        self.limits = Limits(
            optional(whole_number, "min_replies", min_replies, least=1),
            self.deadline or 1.0,
            whole_number("retries", retries, least=0),
            positive("start_seconds", start_seconds),
            optional(positive, "max_norm", max_norm),
            bool(allow_takeover),
            whole_number("max_examples", max_examples, least=1),
        )
        self.folder = optional(folder_path, "folder", folder)
        self.fraction_evaluate = number("fraction_evaluate", fraction_evaluate)
        if not 0 <= self.fraction_evaluate <= 1:
            raise EpisodeError(f"fraction_evaluate is {fraction_evaluate}: it must be 0 to 1.")
        self.evaluate_every = whole_number("evaluate_every", evaluate_every, least=0)
        self.weighted_by_key = weighted_by_key
        self.per_client = per_client
        self.secure = switch("secure", secure)
        if self.secure:
            check_settings(self.algorithm, min_replies, per_client)
        self.run: Run | None = None
        """The run, with its status and history, once `start` has returned."""

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
        """Play the rounds, as Flower's own strategies do.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: The model at the start.
            num_rounds: Number of rounds; an algorithm that communicates after every iteration plays
                `local_steps` times as many.
            timeout: Seconds that a site has for a phase, unless `deadline` says otherwise.
            train_config: Settings that are sent to the sites with every training message.
            evaluate_config: Settings that are sent to the sites with every evaluation message.
            evaluate_fn: The server's own evaluation, called with the round and the model.

        Returns:
            The final model and the metrics of each round.

        Raises:
            EpisodeError: A site cannot take part.
            ClusterError: Too few sites answered.
        """
        rounds, timeout = whole_number("num_rounds", num_rounds), positive("timeout", timeout)
        if not isinstance(initial_arrays, ArrayRecord):
            raise EpisodeError(
                f"initial_arrays is {shown(initial_arrays)}: give ArrayRecord(model.state_dict())."
            )
        optional(function, "evaluate_fn", evaluate_fn, "returns metrics of (round, arrays)")
        plan = Plan(
            self.algorithm, self.schedule, rounds, self.local_steps, self.seed, self.cohorts
        )
        plan.check(self.num_sites or 10**9)
        if self.secure and self.num_sites:
            check_cohorts(plan, self.num_sites)
        self.summary()
        result = Result(arrays=initial_arrays)
        if evaluate_fn and (first := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = first
        arrays = initial_arrays.to_torch_state_dict()
        sites = self._meet_sites(grid, timeout, arrays)
        if self.secure:
            check_cohorts(plan, sites.num_clients)
        evaluation = Evaluation(
            self.fraction_evaluate,
            evaluate_config or ConfigRecord(),
            evaluate_fn,
            self.weighted_by_key,
            sites.limits.deadline,
        )
        task = RemoteTask(arrays, sites, evaluation, result)
        job = self._job(plan, task, sites, train_config)
        self.run = train(job, self.folder, round_logger(plan))
        result.arrays = ArrayRecord(task.arrays(self.run.x, self.run.buffers))
        for record in self.run.history:
            result.train_metrics_clientapp[record["round"] + 1] = _metrics(record)
        if self.run.status == "diverged":
            log(WARNING, "The run has diverged: %s", self.run.summary["reason"])
        return result

    def summary(self) -> None:
        """Log the algorithm and its step sizes."""
        algorithm, schedule = self.algorithm, self.schedule
        cell = f"{algorithm.correction.name} x {algorithm.clipping.name}"
        log(INFO, "EPISODE strategy: %s, η %g, γ %g", cell, schedule.eta, schedule.gamma)

    def _meet_sites(self, grid: Grid, timeout: float, arrays: Mapping[str, Tensor]) -> Sites:
        limits = replace(self.limits, deadline=self.deadline or timeout)
        check = partial(objection_to, arrays=arrays)
        owners = Owners.of(self.folder, limits.allow_takeover)
        sites = Sites(grid, limits, self.seed, check, self.algorithm, owners, secure=self.secure)
        sites.meet(self.num_sites)
        if self.algorithm.weighting == "examples" and len(sites.known) < sites.num_clients:
            raise EpisodeError(
                "weighting='examples' needs every site at the start, to count its examples, but "
                f"only {len(sites.known)} of {sites.num_clients} are connected."
            )
        return sites

    def _job(self, plan: Plan, task: RemoteTask, sites: Sites, config: ConfigRecord | None) -> Job:
        model = {"name": "flower", "parameters": task.layout.trained, "sites": task.num_clients}
        config_of = describe(plan, model, {"evaluate_every": self.evaluate_every}, "flower")
        kind = SecureEngine if self.secure else FlowerEngine
        return Job(
            plan,
            task,
            config_of | ({"engine": {"secure": True}} if self.secure else {}),
            engine=EngineSettings(secure=self.secure or None),
            record=RecordSettings(self.evaluate_every, per_client=self.per_client),
            open_engine=lambda job: closing(kind(sites, plan.algorithm, config, plan)),
        )

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: a round of this strategy is more than one exchange."""
        raise EpisodeError(
            "EpisodeStrategy plays its own rounds, of one or two exchanges: call start(...), and "
            "do not wrap it in another strategy."
        )

    configure_train = aggregate_train = _refuse
    configure_evaluate = aggregate_evaluate = _refuse


def _metrics(record: Record) -> MetricRecord:
    names = ("loss", "global_norm", "clipped_steps", "largest_norm", "drift")
    values: dict[str, Any] = {n: float(record[n]) for n in names if record[n] is not None}
    if record["clipped"] is not None:
        values["clipped"] = int(record["clipped"])
    return MetricRecord({**values, "sites": len(record["cohort"])})
