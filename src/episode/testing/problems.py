"""Small problems with known answers, and a way to play any algorithm on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episode.core.algorithm import ALGORITHMS, Algorithm
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
    """Make a simulation engine with one worker: the default of every check."""
    return Simulation(task, algorithm, workers=1)


@dataclass(frozen=True)
class QuadraticProblem:
    """A parabola in d dimensions per client, f_i(x) = Σ ½ a_ik x_k² + b_ik x_k, and constants."""

    curvatures: Vector
    slopes: Vector
    x_0: Vector
    noise: float = 0.0
    local_steps: int = 8
    eta: float = 0.05
    gamma: float = 0.05

    @classmethod
    def heterogeneous(cls, clients: int = 4, d: int = 5, **changes: Any) -> QuadraticProblem:
        """Return a problem whose clients disagree in curvature and in where their minimum is."""
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
        """Return ∇F_i for the plain programs, written a second time."""

        def at(i: int, x: Vector, stream: str, k: int) -> Vector:
            unit = uniform(0, i, STREAMS[stream], k, np.arange(len(x)))
            exact = self.curvatures[i] * x + self.slopes[i]
            return np.asarray(exact + self.noise * (2 * unit - 1))

        return at

    def setting(self, rounds: int, cohorts: Sequence[Sequence[int]] | None = None) -> Setting:
        """Return the problem as the plain programs take it."""
        given = self.gradient(), self.x_0, len(self.slopes)
        return Setting(*given, rounds, self.local_steps, self.eta, self.gamma, cohorts)

    def permuted(self, order: Sequence[int]) -> QuadraticProblem:
        """Return the same problem with its clients in another order."""
        new = list(order)
        return replace(self, curvatures=self.curvatures[new], slopes=self.slopes[new])

    def gradient_norm(self, x: Tensor) -> float:
        """Return ‖∇f(x)‖ of the mean objective."""
        mean = self.curvatures.mean(0) * x.numpy() + self.slopes.mean(0)
        return float(np.linalg.norm(mean))

    def probe(
        self, make_engine: MakeEngine, weights: Sequence[float]
    ) -> tuple[Tensor, list[Tensor]]:
        """Let all clients probe at x_0; return their weighted mean G and their anchors G_i."""
        task = self.task()
        with closing(make_engine(task, ALGORITHMS["episode"])) as engine:
            cohort, (x, buffers) = list(range(task.num_clients)), task.initial()
            reply = engine.average("probe", cohort, weights=weights, round=0, x=x, buffers=buffers)
            anchors = [state.anchor for state in engine.client_states().values()]
        return reply.vectors["gradient"], [anchor for anchor in anchors if anchor is not None]


@dataclass
class Played:
    """Result of a run: x̄_0 … x̄_R, the telemetry of each round, and the final state."""

    path: list[Tensor]
    telemetry: list[Telemetry]
    server: ServerState


def play(
    problem: QuadraticProblem,
    algorithm: Algorithm,
    rounds: int,
    make_engine: MakeEngine = in_this_process,
    cohorts: Cohorts | None = None,
    seed: int = 0,
) -> Played:
    """Play R rounds (R·I of a synchronous algorithm) on the engine."""
    task, schedule = problem.task(), Schedule(problem.eta, problem.gamma)
    plan = Plan(algorithm, schedule, rounds, problem.local_steps, seed, cohorts or Full())
    with closing(make_engine(task, algorithm)) as engine:
        loop = Rounds(plan, task, engine)
        server = ServerState(*task.initial())
        path, telemetry = [server.x.clone()], []
        for _ in range(plan.rounds_to_play):
            telemetry.append(loop.play(server))
            path.append(server.x.clone())
        return Played(path, telemetry, server)


def distance(a: Iterable[Any], b: Iterable[Any]) -> float:
    """Return the largest difference of two vectors, or of two paths, in any coordinate.

    Infinite if one is longer than the other; NaN if a coordinate is.
    """
    left, right = (np.array([np.asarray(part) for part in values]) for values in (a, b))
    return float(abs(left - right).max()) if left.shape == right.shape else np.inf
