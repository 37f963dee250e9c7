"""One round, for every algorithm of the grid, on whatever engine offers `average`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.clipping import is_clipped
from episode.core.schedule import Schedule
from episode.core.vectors import Flag, Scalar, norm
from episode.errors import EpisodeError
from episode.federation.protocols import Engine, Reply, Task
from episode.federation.sampling import Cohorts, Full
from episode.federation.state import ServerState


@dataclass(frozen=True)
class Plan:
    """What is decided before the first round."""

    algorithm: Algorithm
    schedule: Schedule
    rounds: int
    """R, for algorithms that step locally."""
    local_steps: int
    """I. The budget is R·I iterations: a synchronous algorithm plays as many rounds of one."""
    seed: int = 0
    cohorts: Cohorts = field(default_factory=Full)

    def check(self, num_clients: int) -> None:
        """Refuses what cannot be played, before any work."""
        for name, value in (("rounds", self.rounds), ("local_steps", self.local_steps)):
            if value < 1:
                raise EpisodeError(f"{name} is {value}: it must be 1 or more.")
        self.cohorts.check(num_clients)

    @property
    def rounds_of_one_step(self) -> int:
        """How many rounds of this plan make one round of I local steps."""
        return 1 if self.algorithm.correction.steps_locally else self.local_steps

    @property
    def rounds_to_play(self) -> int:
        """R, or R·I for an algorithm that communicates after every iteration."""
        return self.rounds * self.rounds_of_one_step

    def step_sizes(self, round: int) -> tuple[Scalar, Scalar]:
        """(η_r, γ_r); the schedule is laid over the budget, however many rounds it takes."""
        return self.schedule.at(round / self.rounds_of_one_step, self.rounds)


@dataclass
class Telemetry:
    """What a round tells about itself."""

    round: int
    cohort: list[int]
    eta: Scalar
    gamma: Scalar
    G_norm: Scalar | None
    """‖G_r‖; None where the algorithm has no global gradient."""
    clipped: Flag | None
    """Whether the round was clipped; None where that is not decided by round."""
    metrics: dict[str, list[Any]]
    """Of each client of the cohort: loss, clipped (fraction of its steps), largest_norm, drift."""


class Rounds:
    """Plays rounds on an engine; all that changes is in the server's and the clients' states."""

    def __init__(self, plan: Plan, task: Task, engine: Engine) -> None:
        plan.check(task.num_clients)
        self.plan = plan
        self.engine = engine
        self.num_clients = task.num_clients
        uniform = plan.algorithm.weighting == "uniform"
        self._weights = [
            1.0 if uniform else float(task.examples(c)) for c in range(task.num_clients)
        ]

    def play(self, server: ServerState) -> Telemetry:
        """One round: probe if the correction asks for it, then local steps or one server step."""
        plan, correction = self.plan, self.plan.algorithm.correction
        started = time.perf_counter()
        cohort = plan.cohorts.at(server.round, self.num_clients, plan.seed)
        eta, gamma = plan.step_sizes(server.round)
        probe: Reply | None = None
        if correction.probes:
            probe = self._average("probe", server, cohort, down=1)
        elif correction.remembers:
            self._prepare_memory(server)
        G = probe.vectors["gradient"] if probe else server.memory  # line 6
        G_norm = math.nan if G is None else norm(G)
        if correction.steps_locally:
            reply = self._step_locally(server, cohort, G, G_norm, eta, gamma)
        else:
            assert probe is not None
            reply = self._step_on_server(server, probe, G_norm, eta, gamma)
        if reply.metrics["loss"][0] is None:  # I = 1 and the probe re-used: no other loss
            assert probe is not None
            reply.metrics["loss"] = probe.metrics["loss"]
        telemetry = Telemetry(
            server.round,
            cohort,
            eta,
            gamma,
            G_norm=None if G is None else G_norm,
            clipped=(
                is_clipped(G_norm, eta, gamma) if plan.algorithm.clipping.needs_global else None
            ),
            metrics=reply.metrics,
        )
        server.round += 1
        server.counts.seconds += time.perf_counter() - started
        return telemetry

    def _step_locally(
        self,
        server: ServerState,
        cohort: list[int],
        G: Tensor | None,
        G_norm: Scalar,
        eta: Scalar,
        gamma: Scalar,
    ) -> Reply:
        algorithm = self.plan.algorithm
        # After a probe the cohort holds x̄_r already: only G_r goes down. Without one, x̄_r does.
        reply = self._average(
            "local",
            server,
            cohort,
            down=1 if algorithm.correction.probes or G is None else 2,
            G=G,
            G_norm=G_norm,
            eta=eta,
            gamma=gamma,
            local_steps=self.plan.local_steps,
        )
        server.x = reply.vectors["x"]  # line 13
        if reply.buffers is not None:
            server.buffers = reply.buffers
        if server.memory is not None:
            # G ← G + (1/N) Σ_{i∈S} Δ_i: the mean over all N, of whom S have changed.
            server.memory = server.memory + reply.vectors["change"] * self._share(cohort)
        return reply

    def _step_on_server(
        self, server: ServerState, probe: Reply, G_norm: Scalar, eta: Scalar, gamma: Scalar
    ) -> Reply:
        algorithm = self.plan.algorithm
        if algorithm.descent.has_velocity and server.velocity is None:
            server.velocity = torch.zeros_like(server.x)
        x, gradient = server.x.clone(), probe.vectors["gradient"].clone()
        size, g_norm = algorithm.step(x, gradient, None, server.velocity, G_norm, eta, gamma)
        server.x = x
        if probe.buffers is not None:
            server.buffers = probe.buffers
        size_of_cohort = len(probe.metrics["loss"])
        probe.metrics["clipped"] = [1.0 * (size != eta)] * size_of_cohort
        probe.metrics["largest_norm"] = [g_norm] * size_of_cohort
        probe.metrics["drift"] = [0.0] * size_of_cohort
        return probe

    def _prepare_memory(self, server: ServerState) -> None:
        """SCAFFOLD starts from memories of zero; a clipping that decides by G_r may not.

        With G = 0 it would never clip, and blow up in round 0: so all N clients probe once at x_0.
        """
        if server.memory is not None:
            return
        if not self.plan.algorithm.clipping.needs_global:
            server.memory = torch.zeros_like(server.x)
            return
        everyone = list(range(self.num_clients))
        reply = self._average("probe", server, everyone, down=1, memorise=True)
        server.memory = reply.vectors["gradient"]

    def _average(
        self, phase: Any, server: ServerState, cohort: list[int], down: int, **broadcast: Any
    ) -> Reply:
        """The engine's verb, and what it cost: `down` vectors of d to each client, replies up."""
        reply = self.engine.average(
            phase,
            cohort,
            weights=[self._weights[c] for c in cohort],
            round=server.round,
            x=server.x,
            buffers=server.buffers,
            **broadcast,
        )
        algorithm, counts = self.plan.algorithm, server.counts
        counts.exchanges += 1
        # Buffers go down with x̄_r, once a round, and come up where they may have changed.
        first = phase == "probe" or not algorithm.correction.probes
        counts.bytes_down += len(cohort) * (
            down * server.x.nbytes + (server.buffers.nbytes if first else 0)
        )
        counts.bytes_up += len(cohort) * (
            sum(v.nbytes for v in reply.vectors.values())
            + (reply.buffers.nbytes if reply.buffers else 0)
        )
        per_client = (
            algorithm.probe_batches
            if phase == "probe"
            else self.plan.local_steps - algorithm.reuse_probe
        )
        counts.gradients += len(cohort) * per_client
        return reply

    def _share(self, cohort: list[int]) -> float:
        return sum(self._weights[c] for c in cohort) / sum(self._weights)


def divergence(server: ServerState, telemetry: Telemetry) -> str | None:
    """Why the run cannot go on, if the last round left the finite numbers; else None."""
    values = [
        (name, float(value))
        for name in ("loss", "largest_norm", "drift")
        for value in telemetry.metrics[name]
        if value is not None
    ]
    for name, value in [*values, ("model", float(norm(server.x)))]:
        if not math.isfinite(value):
            return f"{name.replace('_', ' ')} is {value}"
    return None
