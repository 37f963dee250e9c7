"""The synthetic figure (appendix E.2): needs no run folders, and always has the paper's scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.batched import Batched
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.paper.recipe import Claim, Recipe, RecipeContext, RecipeOutput
from episode.results.curves import Line, Panel
from episode.results.tables import Table
from episode.tasks.synthetic import Quartics, minimum

CHOSEN = (1, 0)
"""Position of η = 0.01 and γ/η = 5 in the grid, as in the authors' scripts."""
CLOSE = 0.01
"""How far above its minimum f may end to count as converged."""


@dataclass(frozen=True)
class SyntheticGrid:
    """The settings of the synthetic figure; every combination of them is played."""

    heterogeneity: Sequence[float] = (1, 2, 4, 8)
    """H: how much the clients' functions differ."""
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


def synthetic_paths(algorithm: str, grid: SyntheticGrid | None = None) -> SyntheticPaths:
    """Play every setting and seed of the grid at once, as one tensor program.

    Args:
        algorithm: A name from the table of algorithms.
        grid: The settings; those of the paper by default.

    Returns:
        The server's x and f(x) after every round.

    Example:
        >>> grid = SyntheticGrid(etas=(0.01,), thresholds=(5,), rounds=2)
        >>> synthetic_paths("episode", grid).x.shape
        torch.Size([3, 1, 1, 4, 10])
    """
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
    with torch.inference_mode():  # gradients are formulas, so autograd has nothing to record
        for _ in range(plan.rounds_to_play):
            rounds.play(server)
            path.append(server.x)
    x = torch.stack(path)
    return SyntheticPaths(x.squeeze(-1), task.mean(x)[0])


@dataclass(frozen=True)
class SyntheticResults:
    """The paths of CELGC and EPISODE over the whole grid."""

    grid: SyntheticGrid
    paths: Mapping[str, SyntheticPaths]

    def gap(self, name: str) -> Tensor:
        """f - min f as a mean over seeds: `[rounds + 1, etas, thresholds, H]`."""
        value = self.paths[name].value.mean(-1)
        return value - value.new_tensor([minimum(H)[1] for H in self.grid.heterogeneity])

    def final_gaps(self, name: str) -> list[float]:
        """f - min f at the end, for every H."""
        return list(self.gap(name)[(-1, *CHOSEN)].tolist())

    def rounds_to_half(self, name: str) -> list[float]:
        """Rounds until half of f - min f is left, for every H; infinite if never."""
        gaps = self.gap(name)[(slice(None), *CHOSEN)]
        reached = gaps <= gaps[0] / 2
        rounds = reached.int().argmax(0).double()  # of the first True
        return list(rounds.where(reached.any(0), torch.inf).tolist())


def _rounds_text(r: SyntheticResults, name: str) -> str:
    rounds = [f"{n:.0f}" if math.isfinite(n) else "never" for n in r.rounds_to_half(name)]
    return f"rounds until half of f - min f is left, for H = 1, 2, 4, 8: {', '.join(rounds)}"


def _gaps_text(r: SyntheticResults, name: str) -> str:
    gaps = ", ".join(f"{gap:.3g}" for gap in r.final_gaps(name))
    return f"f - min f at the end, for H = 1, 2, 4, 8: {gaps}"


def _slows_down(r: SyntheticResults) -> bool:
    rounds = r.rounds_to_half("celgc")
    return rounds == sorted(rounds) and rounds[-1] > rounds[0]


CLAIMS: tuple[Claim[SyntheticResults], ...] = (
    Claim("CELGC becomes slower as H grows",
          _slows_down, lambda r: _rounds_text(r, "celgc")),
    Claim("EPISODE stays fast as H varies",
          lambda r: max(r.rounds_to_half("episode")) <= 2 * min(r.rounds_to_half("episode")),
          lambda r: _rounds_text(r, "episode"), "the slowest at most twice the fastest"),
    Claim("EPISODE converges to the minimum",
          lambda r: max(r.final_gaps("episode")) <= CLOSE,
          lambda r: _gaps_text(r, "episode"), f"at most {CLOSE}"),
    Claim("CELGC does not converge to the minimum if H is large",
          lambda r: max(r.final_gaps("celgc")[2:]) > CLOSE,
          lambda r: _gaps_text(r, "celgc"), f"more than {CLOSE} for H = 4 or 8"),
)  # fmt: skip


class Synthetic(Recipe):
    """Loss trajectories and solutions of CELGC and EPISODE for H = 1, 2, 4, 8."""

    name = "synthetic"
    title = "Synthetic functions: loss over rounds, and where each algorithm ends"
    place = "Figure 3, appendix E.2"

    def output(self, context: RecipeContext) -> RecipeOutput:
        grid = SyntheticGrid()
        results = SyntheticResults(
            grid, {name: synthetic_paths(name, grid) for name in ("celgc", "episode")}
        )
        note = (
            f"All {len(grid.etas) * len(grid.thresholds)} pairs of η and γ/η that the paper tried, "
            "with 10 seeds and 500 rounds of 8 local steps. Figure and table show η = 0.01, "
            "γ/η = 5, starting at x = 1. H says how much the clients' functions differ; f is their "
            "mean. The paper gives no numbers."
        )
        tables = {"table": _table(results), "grid": _grid_table(results)}
        claims = [claim.judge(results) for claim in CLAIMS]
        return RecipeOutput(tables, {"figure": _panels(results)}, claims, [note])


def _panels(r: SyntheticResults) -> list[list[Panel]]:
    """For each H: f over rounds, and where x ends on the curve of f, one point for each seed."""
    panels = []
    rounds = list(range(r.grid.rounds + 1))
    line = [k / 50 for k in range(-25, 181)]
    for h, H in enumerate(r.grid.heterogeneity):
        curve = [x**4 - 3 * x**3 - H / 2 * x**2 + x for x in line]
        losses, ends = [], [Line("f", line, curve, colour="#999999")]
        for name, path in r.paths.items():
            value, x = (tensor[(slice(None), *CHOSEN, h)] for tensor in (path.value, path.x))
            losses.append(Line(name.upper(), rounds, value.mean(-1).tolist(), name))
            last = (x[-1].tolist(), value[-1].tolist())
            ends.append(Line(name.upper(), *last, name, style="", marker="o"))
        panels.append(Panel(f"H = {H:g}", "rounds", "f", losses))
        panels.append(Panel(f"H = {H:g}", "x", "f", ends))
    return [panels[:4], panels[4:]]


def _table(r: SyntheticResults) -> Table:
    rows = []
    for h, H in enumerate(r.grid.heterogeneity):
        ends = [(path.x, path.value) for path in r.paths.values()]
        means = [[tensor[(-1, *CHOSEN, h)].mean().item() for tensor in end] for end in ends]
        rows.append([f"{H:g}", *(f"{x:.3f}, {f:.3f}" for x, f in (minimum(H), *means))])
    return Table("", ["H", "minimum: x, f", "CELGC: x, f", "EPISODE: x, f"], rows)


def _grid_table(r: SyntheticResults) -> Table:
    """How far above the minimum f ends, for every pair of η and γ/η."""
    columns = ["η", "γ/η", "H", *(f"{name.upper()}: f - min f" for name in r.paths)]
    settings = itertools.product(r.grid.etas, r.grid.thresholds, r.grid.heterogeneity)
    gaps = zip(*(r.gap(name)[-1].flatten().tolist() for name in r.paths), strict=True)
    rows = [
        [*(f"{value:g}" for value in setting),
         *(f"{gap:.3g}" if math.isfinite(gap) else "diverged" for gap in both)]
        for setting, both in zip(settings, gaps, strict=True)
    ]  # fmt: skip
    return Table("", columns, rows, left=3)
