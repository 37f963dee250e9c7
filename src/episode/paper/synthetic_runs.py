"""The paper's experiments as functions: their settings, and the runs they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.batched import Batched
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.tasks.synthetic import Quartics


@dataclass(frozen=True)
class SyntheticGrid:
    """The synthetic figure's settings (appendix E.2): each of these with each other, at once."""

    heterogeneity: Sequence[float] = (1, 2, 4, 8)
    etas: Sequence[float] = (0.1, 0.01, 0.001)
    thresholds: Sequence[float] = (5, 10, 15)
    """γ/η."""
    seeds: Sequence[int] = tuple(range(10))
    rounds: int = 500
    local_steps: int = 8
    x_0: float = 1.0


@dataclass(frozen=True)
class SyntheticPaths:
    """Trajectories of one algorithm: `[rounds + 1, etas, thresholds, H, seeds]` each."""

    x: Tensor
    value: Tensor
    """f(x̄_r)."""


def synthetic(algorithm: str, grid: SyntheticGrid | None = None) -> SyntheticPaths:
    """Every setting and seed of the synthetic figure, as one tensor program."""
    grid = grid or SyntheticGrid()
    task = Quartics(grid.heterogeneity, grid.x_0, seeds=grid.seeds, grid=True)
    eta = torch.tensor(grid.etas, dtype=torch.float64).view(-1, 1, 1, 1, 1)
    gamma = eta * torch.tensor(grid.thresholds, dtype=torch.float64).view(-1, 1, 1, 1)
    shape = (len(grid.etas), len(grid.thresholds), len(grid.heterogeneity), len(grid.seeds))
    chosen = ALGORITHMS[algorithm]
    plan = Plan(chosen, Schedule(eta, gamma), grid.rounds, grid.local_steps)
    engine = Batched(task.all_clients((*shape, task.num_clients, 1)), chosen)
    server = ServerState(task.x_0.expand(*shape, 1).clone())
    rounds = Rounds(plan, task, engine)
    path = [server.x]
    with torch.inference_mode():  # gradients are formulas: nothing is to be recorded
        for _ in range(plan.rounds_to_play):
            rounds.play(server)
            path.append(server.x)
    x = torch.stack(path)
    return SyntheticPaths(x.squeeze(-1), task.mean(x)[0])
