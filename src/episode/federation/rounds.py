"""One round, for every algorithm of the grid, on any engine."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from episode.arguments import shown
from episode.core.algorithm import Algorithm
from episode.core.clipping import is_clipped
from episode.core.schedule import Schedule
from episode.core.vectors import Flag, Scalar, norm
from episode.errors import EpisodeError
from episode.federation.corrections import first_memory_is_probed, mean_memory
from episode.federation.protocols import AttemptFailed, Engine, Phase, Reply, Task
from episode.federation.sampling import Cohorts, Full
from episode.federation.state import ServerState

MOST = 10**15
"""Rounds and local steps are fewer, so that their product can be counted and stored."""


@dataclass(frozen=True)
class Plan:
    """What is decided before the first round."""

    algorithm: Algorithm
    schedule: Schedule
    rounds: int
    """R, for algorithms that step locally."""
    local_steps: int
    """I. The budget is R·I iterations; a synchronous algorithm plays R·I rounds of one step, or R
    rounds if each of its steps has I batches."""
    seed: int = 0
    cohorts: Cohorts = field(default_factory=Full)
    measure_every: int = 0
    """One in so many clients reports how large its correction is in a round; 0 for none."""

    def check(self, num_clients: int) -> None:
        """Raise an error for what cannot be played, before any work."""
        for name, value in (("rounds", self.rounds), ("local_steps", self.local_steps)):
            if value < 1:
                raise EpisodeError(f"{name} is {shown(value)}: it must be 1 or more.")
            if value >= MOST:
                raise EpisodeError(f"{name} is {shown(value)}: it must be below {MOST}.")
        self.cohorts.check(num_clients)

    @property
    def rounds_of_one_step(self) -> int:
        """How many rounds of this plan correspond to one round of I local steps."""
        whole = self.algorithm.probe_batches == "local_steps"
        return 1 if self.algorithm.correction.steps_locally or whole else self.local_steps

    @property
    def rounds_to_play(self) -> int:
        """R, or R·I for an algorithm that communicates after every iteration."""
        return self.rounds * self.rounds_of_one_step

    def step_sizes(self, round: int) -> tuple[Scalar, Scalar]:
        """Return (η_r, γ_r). The schedule spans the budget, however many rounds that takes."""
        return self.schedule.at(round / self.rounds_of_one_step, self.rounds)


@dataclass
class Telemetry:
    """What a round reports about itself."""

    round: int
    cohort: list[int]
    eta: Scalar
    gamma: Scalar
    G_norm: Scalar | None
    """‖G_r‖; None if the algorithm has no global gradient."""
    clipped: Flag | None
    """Whether the round was clipped; None if that is not decided by round."""
    metrics: dict[str, list[Any]]
    """For each client of the cohort: loss, clipped (share of its steps), largest_norm, drift."""


@dataclass(frozen=True)
class _Round:
    """Constants of one attempt at a round."""

    cohort: list[int]
    eta: Scalar
    gamma: Scalar


class Rounds:
    """Plays rounds on an engine; all that changes is in the server's and the clients' states.

    Args:
        plan: What is played.
        task: The task.
        engine: Where clients run.
        sizes: Number of examples of each client; None asks the task, which must then hold them all.
    """

    def __init__(
        self, plan: Plan, task: Task, engine: Engine, sizes: Sequence[int] | None = None
    ) -> None:
        plan.check(task.num_clients)
        self.plan = plan
        self.engine = engine
        self.num_clients = task.num_clients
        self._weights: list[float] | None = None
        self._total_weight = float(task.num_clients)
        if plan.algorithm.weighting != "uniform":
            if sizes is None:
                sizes = [task.examples(client) for client in range(task.num_clients)]
            self._weights = [float(size) for size in sizes]
            self._total_weight = sum(self._weights)

    def play(self, server: ServerState) -> Telemetry:
        """Play one round; what a failed attempt exchanged is not counted."""
        plan, started = self.plan, time.perf_counter()
        named = plan.cohorts.at(server.round, self.num_clients, plan.seed)
        for cohort in self.engine.attempts(server.round, named):
            counts = dataclasses.replace(server.counts)
            try:
                telemetry = self._attempt(server, _Round(cohort, *plan.step_sizes(server.round)))
            except AttemptFailed:
                server.counts = counts
                continue
            server.round += 1
            server.counts.seconds += time.perf_counter() - started
            return telemetry
        raise EpisodeError(f"No attempt at round {server.round} succeeded.")

    def _attempt(self, server: ServerState, r: _Round) -> Telemetry:
        """Probe if the correction asks for it, then take local steps or one server step."""
        algorithm = self.plan.algorithm
        probe: Reply | None = None
        if algorithm.correction.probes:
            probe = self._probe(server, r.cohort)
        elif algorithm.correction.remembers:
            self._prepare_memory(server)
        G = probe.vectors["gradient"] if probe else server.memory  # line 6
        G_norm = math.nan if G is None else norm(G)
        if algorithm.correction.steps_locally:
            reply = self._step_locally(server, r, G, G_norm)
        else:
            assert probe is not None
            reply = self._step_on_server(server, r, probe, G_norm)
        if reply.metrics["loss"][0] is None:  # I = 1 and the probe was reused: no other loss
            assert probe is not None
            reply.metrics["loss"] = probe.metrics["loss"]
        by_round = algorithm.clipping.needs_global
        return Telemetry(
            server.round,
            r.cohort,
            r.eta,
            r.gamma,
            G_norm=None if G is None else G_norm,
            clipped=is_clipped(G_norm, r.eta, r.gamma) if by_round else None,
            metrics=reply.metrics,
        )

    def _step_locally(
        self, server: ServerState, r: _Round, G: Tensor | None, G_norm: Scalar
    ) -> Reply:
        algorithm = self.plan.algorithm
        # After a probe the cohort already holds x̄_r, and only G_r goes down.
        reply = self._average(
            "local",
            server,
            r.cohort,
            down=1 if algorithm.correction.probes or G is None else 2,
            G=G,
            G_norm=G_norm,
            eta=r.eta,
            gamma=r.gamma,
            local_steps=self.plan.local_steps,
            measure_every=self.plan.measure_every,
        )
        # Line 13, unless the algorithm has another server step; always a new tensor.
        server.x = algorithm.server.step(server.x, reply.vectors["x"], server.outer)
        if reply.buffers is not None:
            server.buffers = reply.buffers
        if server.memory is not None:
            share = sum(self._weights_of(r.cohort)) / self._total_weight
            server.memory = mean_memory(server.memory, reply.vectors["change"], share)
        return reply

    def _step_on_server(
        self, server: ServerState, r: _Round, probe: Reply, G_norm: Scalar
    ) -> Reply:
        algorithm = self.plan.algorithm
        if algorithm.descent.has_velocity and server.velocity is None:
            server.velocity = torch.zeros_like(server.x)
        x, gradient = server.x.clone(), probe.vectors["gradient"].clone()
        size, g_norm = algorithm.step(x, gradient, None, server.velocity, G_norm, r.eta, r.gamma)
        server.x = x
        if probe.buffers is not None:
            server.buffers = probe.buffers
        clients = len(probe.metrics["loss"])
        probe.metrics["clipped"] = [1.0 * (size != r.eta)] * clients
        probe.metrics["largest_norm"] = [g_norm] * clients
        probe.metrics["drift"] = [0.0] * clients
        return probe

    def _prepare_memory(self, server: ServerState) -> None:
        """Give the server its first memory."""
        if server.memory is not None:
            return
        if not first_memory_is_probed(self.plan.algorithm):
            server.memory = torch.zeros_like(server.x)
            return
        everyone = list(range(self.num_clients))
        server.memory = self._probe(server, everyone, memorise=True).vectors["gradient"]

    def _probe(self, server: ServerState, cohort: list[int], memorise: bool = False) -> Reply:
        batches = self.plan.algorithm.batches_of_probe(self.plan.local_steps)
        return self._average("probe", server, cohort, down=1, memorise=memorise, batches=batches)

    def _weights_of(self, cohort: list[int]) -> list[float]:
        weights = self._weights
        return [1.0] * len(cohort) if weights is None else [weights[c] for c in cohort]

    def _average(
        self, phase: Phase, server: ServerState, cohort: list[int], down: int, **broadcast: Any
    ) -> Reply:
        """Call the engine and count its cost: `down` vectors to each client, and the replies up."""
        reply = self.engine.average(
            phase,
            cohort,
            weights=self._weights_of(cohort),
            round=server.round,
            x=server.x,
            buffers=server.buffers,
            **broadcast,
        )
        algorithm, counts = self.plan.algorithm, server.counts
        counts.exchanges += 1
        # Buffers go down with x̄_r, once a round, and come up if they may have changed.
        first = phase == "probe" or not algorithm.correction.probes
        counts.bytes_down += len(cohort) * (
            down * server.x.nbytes + (server.buffers.nbytes if first else 0)
        )
        counts.bytes_up += len(cohort) * self.engine.sent_bytes(reply)
        per_client = (
            broadcast["batches"]
            if phase == "probe"
            else self.plan.local_steps - algorithm.reuse_probe
        )
        counts.gradients += len(cohort) * per_client
        return reply


def divergence(
    server: ServerState, telemetry: Telemetry, before: ServerState | None = None
) -> str | None:
    """Return why the run cannot go on if the last round left the finite numbers, else None.

    Args:
        server: The state after the round.
        telemetry: What the round reported.
        before: The state before it; buffers that were infinite then, such as a mask, may stay so.
    """
    values = [
        (name, float(value))
        for name in ("loss", "largest_norm", "drift")
        for value in telemetry.metrics[name]
        if value is not None
    ]
    for name, value in [*values, ("model", float(norm(server.x)))]:
        if not math.isfinite(value):
            return f"{name.replace('_', ' ')} is {value}"
    if server.buffers.left_the_finite(before.buffers if before else None):
        return "a buffer of the model is not finite"
    return None
