"""What needs no run folders: the synthetic figure, at the paper's scale always, and Table 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from episode.experiments.config import Experiment
from episode.experiments.recipes import SyntheticGrid, SyntheticPaths, synthetic
from episode.experiments.reproduce.recipe import Claim, Dish, Kitchen, Recipe
from episode.results.figures import Line, Panel
from episode.results.sheets import Sheet
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
) -> Sheet:
    rows = []
    for h, H in enumerate(grid.heterogeneity):
        x, f = minimum(H)
        row = [f"{H:g}", f"{x:.3f}, {f:.3f}"]
        for path in paths.values():
            end = path.x[-1, eta, threshold, h].mean().item()
            value = path.value[-1, eta, threshold, h].mean().item()
            row.append(f"{end:.3f}, {value:.3f}")
        rows.append(row)
    return Sheet("", ["H", "minimum: x, f", "CELGC: x, f", "EPISODE: x, f"], rows)


def _grid_sheet(grid: SyntheticGrid, paths: dict[str, SyntheticPaths]) -> Sheet:
    """How far above the minimum f ends, for every pair."""
    columns = ["η", "γ/η", "H", *(f"{name.upper()}: f - min f" for name in paths)]
    rows = []
    for e, eta in enumerate(grid.etas):
        for t, threshold in enumerate(grid.thresholds):
            for h, H in enumerate(grid.heterogeneity):
                gaps = [p.value[-1, e, t, h].mean().item() - minimum(H)[1] for p in paths.values()]
                shown = [f"{g:.3g}" if math.isfinite(g) else "diverged" for g in gaps]
                rows.append([f"{eta:g}", f"{threshold:g}", f"{H:g}", *shown])
    return Sheet("", columns, rows, left=3)


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


@dataclass(frozen=True)
class Constants:
    """The quantities of Table 1; every hidden factor is taken as 1."""

    epsilon: float
    N: float = 8
    I: float = 4  # noqa: E741 - the paper's name
    delta: float = 1
    L0: float = 1
    L1: float = 1
    sigma: float = 1
    kappa: float = 1


@dataclass(frozen=True)
class Method:
    """A row of Table 1: its formulas as text, and as functions."""

    name: str
    setting: str
    rounds_text: str
    iterations_text: str
    interval_text: str
    rounds: Callable[[Constants], float]
    interval: Callable[[Constants], float] | None = None


def _speedup(c: Constants) -> float:
    return c.delta * c.L0 * c.sigma**2 / (c.N * c.I * c.epsilon**4)


def _clipped_sgd(c: Constants) -> float:
    inner = c.delta + (c.L0 + c.L1 * c.sigma) * c.sigma**2 + c.sigma * c.L0**2 / c.L1
    return inner**2 / c.epsilon**4


def _episode(c: Constants) -> float:
    rest = c.delta * (c.L0 + c.L1 * (c.kappa + c.sigma)) / c.epsilon**2
    return _speedup(c) + rest * (1 + c.sigma / c.epsilon)


def _episode_interval(c: Constants) -> float:
    below = (c.L0 + c.L1 * (c.kappa + c.sigma)) * (1 + c.sigma / c.epsilon) * c.N * c.epsilon**2
    return c.L0 * c.sigma**2 / below


LINEAR = "ΔL0σ²/(Nε⁴)"
METHODS = (
    Method("Local SGD", "heterogeneous, L-smooth", "ΔLσ²/(NIε⁴) + ΔLκ²NI/(σ²ε²) + ΔLN/ε²", LINEAR,
           "σ²/(κNε)",
           lambda c: _speedup(c) + c.delta * c.L0 * c.N / c.epsilon**2
           + c.delta * c.L0 * c.kappa**2 * c.N * c.I / (c.sigma * c.epsilon) ** 2,
           lambda c: c.sigma**2 / (c.kappa * c.N * c.epsilon)),
    Method("SCAFFOLD", "heterogeneous, L-smooth", "ΔLσ²/(NIε⁴) + ΔL/ε²", LINEAR, "σ²/(Nε²)",
           lambda c: _speedup(c) + c.delta * c.L0 / c.epsilon**2,
           lambda c: c.sigma**2 / (c.N * c.epsilon**2)),
    Method("Clipped SGD", "single, (L0, L1)-smooth", "(Δ+(L0+L1σ)σ²+σL0²/L1)²/ε⁴",
           "(Δ+(L0+L1σ)σ²+σL0²/L1)²/ε⁴", "N/A", _clipped_sgd),
    Method("Clipping framework", "single, (L0, L1)-smooth", "ΔL0σ²/ε⁴", "ΔL0σ²/ε⁴", "N/A",
           lambda c: c.delta * c.L0 * c.sigma**2 / c.epsilon**4),
    Method("CELGC", "homogeneous, (L0, L1)-smooth", "ΔL0σ²/(NIε⁴)", LINEAR, "σ/(Nε)", _speedup,
           lambda c: c.sigma / (c.N * c.epsilon)),
    Method("EPISODE", "heterogeneous, (L0, L1)-smooth",
           "ΔL0σ²/(NIε⁴) + Δ(L0+L1(κ+σ))/ε² · (1+σ/ε)", LINEAR,
           "L0σ²/((L0+L1(κ+σ))(1+σ/ε)Nε²)", _episode, _episode_interval),
)  # fmt: skip


class Complexity(Recipe):
    """Table 1: communication complexity and the largest I with linear speed-up."""

    name: ClassVar[str] = "complexity"
    title: ClassVar[str] = "Complexity: rounds, iterations and the largest I"
    place: ClassVar[str] = "Table 1"

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return []

    def serve(self, kitchen: Kitchen) -> Dish:
        at = Constants(0.01)
        columns = ["Method", "Setting", "R = O(…)", "T_min = O(…)", "I_max = O(…)",
                   "R at ε = 0.01", "I_max at ε = 0.01"]  # fmt: skip
        rows = [
            [m.name, m.setting, m.rounds_text, m.iterations_text, m.interval_text,
             f"{m.rounds(at):.3g}", f"{m.interval(at):.3g}" if m.interval else "N/A"]
            for m in METHODS
        ]  # fmt: skip
        steps = [10 ** (k / 10) for k in range(41)]
        lines = []
        for m, name in zip(
            METHODS, ("fedavg", "scaffold", "", "", "celgc", "episode"), strict=True
        ):
            if m.interval is not None:
                y = [m.rounds(Constants(0.01, I=i)) for i in steps]
                lines.append(Line(m.name, steps, y, name))
        title = "ε = 0.01, N = 8, all else 1"
        panel = Panel(title, "I", "rounds R", lines, log_x=True, log_y=True)
        note = (
            "Formulas of the paper; the last two columns evaluate them with Δ = L0 = L1 = L = σ "
            "= κ = 1, N = 8, I = 4 and every hidden factor 1: for orders of magnitude only."
        )
        sheet = Sheet("", columns, rows, left=5)
        return Dish({"table": sheet}, {"figure": [[panel]]}, _complexity_claims(), [note])


def _complexity_claims() -> list[Claim]:
    """Claims about the formulas, tested by evaluating them for small ε."""
    small, smaller = Constants(1e-6), Constants(1e-7)
    at_largest = [Constants(c.epsilon, I=_episode_interval(c)) for c in (small, smaller)]
    one, eight = (
        Constants(1e-6, N=n, I=_episode_interval(Constants(1e-6, N=n)) / 100) for n in (1, 8)
    )
    speedup = (_episode(one) * one.I) / (_episode(eight) * eight.I)
    order = math.log10(_episode(at_largest[1]) / _episode(at_largest[0]))
    celgc = METHODS[4].interval
    assert celgc is not None
    ratios = [_episode_interval(c) / celgc(c) for c in (small, smaller)]
    return [
        Claim.of("EPISODE has linear speed-up for I below I_max", abs(speedup - 8) < 0.2,
                 f"8 clients need 1/{speedup:.3f} of the iterations of 1 (ε = 1e-6, I_max/100)"),
        Claim.of("With the largest I, R is of order ε⁻³", abs(order - 3) < 0.01,
                 f"R grows by 10^{order:.3f} when ε falls tenfold"),
        Claim.of("EPISODE's I_max is of CELGC's order, without homogeneous data",
                 abs(ratios[1] / ratios[0] - 1) < 0.01,
                 f"their ratio is {ratios[0]:.4f} at ε = 1e-6 and {ratios[1]:.4f} at 1e-7"),
    ]  # fmt: skip
