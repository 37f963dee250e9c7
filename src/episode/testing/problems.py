"""Small problems with known answers, and a way to play any algorithm on them and watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.protocols import Engine, Task
from episode.federation.rounds import Plan, Rounds, Telemetry
from episode.federation.sampling import Cohorts, Full
from episode.federation.state import ServerState
from episode.randomness import uniform
from episode.tasks.closed_form import STREAMS
from episode.tasks.quadratics import QuadraticTask
from episode.testing.plain import Gradient, Setting, Vector

MakeEngine = Callable[[Task, Algorithm], Engine]


def in_this_process(task: Task, algorithm: Algorithm) -> Engine:
    """The simulation engine: the default of every check."""
    return Simulation(task, algorithm, workers=1)


@dataclass(frozen=True)
class Problem:
    """Heterogeneous parabolas in d dimensions, f_i(x) = Σ ½ a_ik x_k² + b_ik x_k."""

    curvatures: Vector
    slopes: Vector
    x_0: Vector
    noise: float = 0.0
    local_steps: int = 8
    eta: float = 0.05
    gamma: float = 0.05

    @classmethod
    def heterogeneous(cls, clients: int = 4, d: int = 5, **changes: Any) -> Problem:
        """Clients that disagree in curvature and in where their minimum is."""
        index = np.arange(clients)[:, None], np.arange(d)[None, :]
        return cls(
            curvatures=0.5 + 1.5 * uniform(1, *index),
            slopes=6 * uniform(2, *index) - 3,
            x_0=2 * uniform(3, np.arange(d)) - 1,
            **changes,
        )

    def task(self) -> QuadraticTask:
        a, b, x_0 = (torch.from_numpy(v.copy()) for v in (self.curvatures, self.slopes, self.x_0))
        return QuadraticTask(a, b, x_0, self.noise)

    def gradient(self) -> Gradient:
        """∇F_i for the plain programs, written out once more."""

        def at(i: int, x: Vector, stream: str, k: int) -> Vector:
            unit = uniform(0, i, STREAMS[stream], k, np.arange(len(x)))
            exact = self.curvatures[i] * x + self.slopes[i]
            return np.asarray(exact + self.noise * (2 * unit - 1))

        return at

    def setting(self, rounds: int, cohorts: Sequence[Sequence[int]] | None = None) -> Setting:
        return Setting(
            self.gradient(),
            self.x_0,
            len(self.slopes),
            rounds,
            self.local_steps,
            self.eta,
            self.gamma,
            cohorts,
        )

    def permuted(self, order: Sequence[int]) -> Problem:
        return replace(
            self, curvatures=self.curvatures[list(order)], slopes=self.slopes[list(order)]
        )

    def gradient_norm(self, x: Tensor) -> float:
        """‖∇f(x)‖ of the average objective."""
        mean = self.curvatures.mean(0) * x.numpy() + self.slopes.mean(0)
        return float(np.linalg.norm(mean))


@dataclass
class Played:
    """A run that was watched: x̄_0 … x̄_R, each round's telemetry, and where it ended."""

    path: list[Tensor]
    telemetry: list[Telemetry]
    server: ServerState


def play(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    make_engine: MakeEngine = in_this_process,
    cohorts: Cohorts | None = None,
    seed: int = 0,
) -> Played:
    """Plays R rounds (R·I of a synchronous algorithm) on the engine."""
    task = problem.task()
    plan = Plan(
        algorithm,
        Schedule(problem.eta, problem.gamma),
        rounds,
        problem.local_steps,
        seed,
        cohorts or Full(),
    )
    engine = make_engine(task, algorithm)
    try:
        loop = Rounds(plan, task, engine)
        server = ServerState(*task.initial())
        path, telemetry = [server.x.clone()], []
        for _ in range(plan.rounds_to_play):
            telemetry.append(loop.play(server))
            path.append(server.x.clone())
        return Played(path, telemetry, server)
    finally:
        engine.close()


def distance(path: Sequence[Tensor], other: Sequence[Any]) -> float:
    """The largest difference of two trajectories in any coordinate; infinite if one is longer."""
    if len(path) != len(other):
        return float("inf")
    return max(gap(np.asarray(a), np.asarray(b)) for a, b in zip(path, other, strict=True))


def gap(a: Vector, b: Vector) -> float:
    """The largest difference of two vectors in any coordinate."""
    return float(abs(a - b).max())
