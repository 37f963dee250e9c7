"""The synthetic figure: needs no run folders, and is at the paper's scale always."""

from __future__ import annotations

import math
from typing import ClassVar

from episode.paper.recipe import Claim, Dish, Kitchen, Recipe
from episode.paper.synthetic_runs import SyntheticGrid, SyntheticPaths, synthetic
from episode.results.curves import Line, Panel
from episode.results.tables import Table
from episode.runs.config import Experiment
from episode.tasks.synthetic import minimum

CLOSE = 0.01
"""How far above its minimum f may end to count as converged."""


class Synthetic(Recipe):
    """Loss trajectories and solutions of CELGC and EPISODE for H = 1, 2, 4, 8."""

    name: ClassVar[str] = "synthetic"
    title: ClassVar[str] = "Synthetic: loss trajectories and converged solutions"
    place: ClassVar[str] = "Figure 3 (appendix E.2)"
    chosen: ClassVar[tuple[int, int]] = (1, 0)
    """η = 0.01 and γ/η = 5: what the authors' scripts have, of the grid that is tried."""

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return []

    def serve(self, kitchen: Kitchen) -> Dish:
        grid = SyntheticGrid()
        paths = {name: synthetic(name, grid) for name in ("celgc", "episode")}
        rows = _synthetic_panels(grid, paths, *self.chosen)
        note = (
            f"All {len(grid.etas) * len(grid.thresholds)} pairs of the paper's grid, 10 seeds, 500 "
            "rounds of 8; figure and table: η = 0.01, γ/η = 5, x_0 = 1. The paper gives no numbers."
        )
        sheets = {
            "table": _synthetic_sheet(grid, paths, *self.chosen),
            "grid": _grid_sheet(grid, paths),
        }
        claims = _synthetic_claims(grid, paths, *self.chosen)
        return Dish(sheets, {"figure": rows}, claims, [note])


def _synthetic_panels(
    grid: SyntheticGrid, paths: dict[str, SyntheticPaths], eta: int, threshold: int
) -> list[list[Panel]]:
    """For each H: f over rounds, and where x ends, seed by seed, on the curve of f."""
    panels = []
    rounds = list(range(grid.rounds + 1))
    for h, H in enumerate(grid.heterogeneity):
        losses, ends = [], []
        for name, path in paths.items():
            label = name.upper()
            mean = path.value[:, eta, threshold, h].mean(-1).tolist()
            losses.append(Line(label, rounds, mean, name))
            x = path.x[-1, eta, threshold, h].tolist()
            y = path.value[-1, eta, threshold, h].tolist()
            ends.append(Line(label, x, y, name, style="", marker="o"))
        line = [k / 50 for k in range(-25, 181)]
        curve = [x**4 - 3 * x**3 - H / 2 * x**2 + x for x in line]
        panels.append(
            [
                Panel(f"H = {H:g}", "rounds", "f", losses),
                Panel(f"H = {H:g}", "x", "f", [Line("f", line, curve, colour="#999999"), *ends]),
            ]
        )
    return [panels[0] + panels[1], panels[2] + panels[3]]


def _synthetic_sheet(
    grid: SyntheticGrid, paths: dict[str, SyntheticPaths], eta: int, threshold: int
) -> Table:
    rows = []
    for h, H in enumerate(grid.heterogeneity):
        x, f = minimum(H)
        row = [f"{H:g}", f"{x:.3f}, {f:.3f}"]
        for path in paths.values():
            end = path.x[-1, eta, threshold, h].mean().item()
            value = path.value[-1, eta, threshold, h].mean().item()
            row.append(f"{end:.3f}, {value:.3f}")
        rows.append(row)
    return Table("", ["H", "minimum: x, f", "CELGC: x, f", "EPISODE: x, f"], rows)


def _grid_sheet(grid: SyntheticGrid, paths: dict[str, SyntheticPaths]) -> Table:
    """How far above the minimum f ends, for every pair."""
    columns = ["η", "γ/η", "H", *(f"{name.upper()}: f - min f" for name in paths)]
    rows = []
    for e, eta in enumerate(grid.etas):
        for t, threshold in enumerate(grid.thresholds):
            for h, H in enumerate(grid.heterogeneity):
                gaps = [p.value[-1, e, t, h].mean().item() - minimum(H)[1] for p in paths.values()]
                shown = [f"{g:.3g}" if math.isfinite(g) else "diverged" for g in gaps]
                rows.append([f"{eta:g}", f"{threshold:g}", f"{H:g}", *shown])
    return Table("", columns, rows, left=3)


def _synthetic_claims(
    grid: SyntheticGrid, paths: dict[str, SyntheticPaths], eta: int, threshold: int
) -> list[Claim]:
    gaps = {
        name: [
            path.value[-1, eta, threshold, h].mean().item() - minimum(H)[1]
            for h, H in enumerate(grid.heterogeneity)
        ]
        for name, path in paths.items()
    }
    halves: dict[str, list[int | None]] = {}
    for name, path in paths.items():
        halves[name] = []
        for h, H in enumerate(grid.heterogeneity):
            gap = path.value[:, eta, threshold, h].mean(-1) - minimum(H)[1]
            reached = (gap <= gap[0] / 2).nonzero()
            halves[name].append(int(reached[0]) if len(reached) else None)
    slow = [math.inf if r is None else r for r in halves["celgc"]]
    fast = [math.inf if r is None else r for r in halves["episode"]]
    shown = ", ".join(f"{g:.3g}" for g in gaps["celgc"])
    return [
        Claim.of("CELGC becomes slower as H grows", slow == sorted(slow) and slow[-1] > slow[0],
                 "rounds until half of f - min f is left, H = 1, 2, 4, 8: "
                 f"{_rounds(halves['celgc'])}"),
        Claim.of("EPISODE stays fast as H varies", max(fast) <= 2 * min(fast),
                 f"{_rounds(halves['episode'])}; the slowest at most twice the fastest"),
        Claim.of("EPISODE converges to the minimum", max(gaps["episode"]) <= CLOSE,
                 f"f - min f at most {max(gaps['episode']):.3g}; within {CLOSE}"),
        Claim.of("CELGC fails to, where H is large", max(gaps["celgc"][2:]) > CLOSE,
                 f"f - min f at H = 1, 2, 4, 8: {shown}"),
    ]  # fmt: skip


def _rounds(values: list[int | None]) -> str:
    return ", ".join("never" if v is None else str(v) for v in values)
