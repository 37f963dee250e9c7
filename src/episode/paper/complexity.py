"""Table 1 evaluated, and what Remark 2 says about EPISODE's complexity: needs no runs."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from episode.paper.recipe import Claim, Dish, Kitchen, Recipe
from episode.results.curves import Line, Panel
from episode.results.tables import Table
from episode.runs.config import Experiment
from episode.theory.complexity import MethodCost, Scenario, celgc, episode, table
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import plan

LINEAR = "ΔL0σ²/(Nε⁴)"
FORMULAS = {
    "Local SGD": ("heterogeneous, L-smooth", "ΔLσ²/(NIε⁴) + ΔLκ²NI/(σ²ε²) + ΔLN/ε²", LINEAR,
                  "σ²/(κNε)"),
    "SCAFFOLD": ("heterogeneous, L-smooth", "ΔLσ²/(NIε⁴) + ΔL/ε²", LINEAR, "σ²/(Nε²)"),
    "Clipped SGD": ("single, (L0, L1)-smooth", "(Δ+(L0+L1σ)σ²+σL0²/L1)²/ε⁴",
                    "(Δ+(L0+L1σ)σ²+σL0²/L1)²/ε⁴", "N/A"),
    "Clipping Framework": ("single, (L0, L1)-smooth", "ΔL0σ²/ε⁴", "ΔL0σ²/ε⁴", "N/A"),
    "CELGC": ("homogeneous, (L0, L1)-smooth", "ΔL0σ²/(NIε⁴)", LINEAR, "σ/(Nε)"),
    "EPISODE": ("heterogeneous, (L0, L1)-smooth", "ΔL0σ²/(NIε⁴) + Δ(L0+L1(κ+σ))/ε² · (1+σ/ε)",
                LINEAR, "L0σ²/((L0+L1(κ+σ))(1+σ/ε)Nε²)"),
}  # fmt: skip
"""Setting, R, T_min and I_max, as the paper prints them."""
COLOURS = {"Local SGD": "fedavg", "SCAFFOLD": "scaffold", "CELGC": "celgc", "EPISODE": "episode"}
"""The algorithm of ours whose colour a method has; those on one machine are not drawn."""


class Complexity(Recipe):
    """Table 1: communication complexity and the largest I with linear speed-up."""

    name: ClassVar[str] = "complexity"
    title: ClassVar[str] = "Complexity: rounds, iterations and the largest I"
    place: ClassVar[str] = "Table 1 and Remark 2"

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return []

    def serve(self, kitchen: Kitchen) -> Dish:
        columns = ["Method", "Setting", "R = O(…)", "T_min = O(…)", "I_max = O(…)",
                   "R at ε = 0.01", "I_max at ε = 0.01"]  # fmt: skip
        rows = [
            [row.method, *FORMULAS[row.method], f"{row.rounds:.3g}", _largest(row)]
            for row in table(_setting(0.01))
        ]
        steps = sorted({round(10 ** (k / 10)) for k in range(41)})
        by_steps = [table(_setting(0.01, steps=i)) for i in steps]
        lines = [
            Line(method[0].method, list(map(float, steps)), [row.rounds for row in method],
                 COLOURS[method[0].method])
            for method in zip(*by_steps, strict=True) if method[0].method in COLOURS
        ]  # fmt: skip
        panel = Panel("ε = 0.01, N = 8, all else 1", "I", "rounds R", lines, log_x=True, log_y=True)
        note = (
            "Formulas of the paper; the last two columns evaluate them with Δ = L0 = L1 = L = σ "
            "= κ = 1, N = 8, I = 4 and every hidden factor 1: for orders of magnitude only."
        )
        sheet = Table("", columns, rows, left=5)
        claims = [*_table_claims(), _theorem_claim(), *_remark_claims()]
        return Dish({"table": sheet}, {"figure": [[panel]]}, claims, [note])


def _setting(epsilon: float, clients: int = 8, steps: int = 4, **constants: float) -> Scenario:
    given: dict[str, Any] = {"L0": 1.0, "L1": 1.0, "sigma": 1.0, "kappa": 1.0, "rho": 2.0}
    return Scenario(Constants(**(given | constants)), epsilon, clients, steps, smoothness=1.0)


def _largest(row: MethodCost) -> str:
    return "N/A" if row.largest_local_steps is None else f"{row.largest_local_steps:.3g}"


def _limit(row: MethodCost) -> float:
    assert row.largest_local_steps is not None
    return row.largest_local_steps


def _table_claims() -> list[Claim]:
    """Claims about the formulas of the table, tested by evaluating them for small ε."""
    tiny = (1e-6, 1e-7)
    below = [
        episode(_setting(1e-6, n, max(1, int(_limit(episode(_setting(1e-6, n))) / 100))))
        for n in (1, 8)
    ]
    speedup = below[0].iterations / below[1].iterations
    limits = [_limit(episode(_setting(e))) for e in tiny]
    rounds = [
        episode(_setting(e, steps=int(limit))).rounds for e, limit in zip(tiny, limits, strict=True)
    ]
    growth = rounds[1] / rounds[0]
    ratios = [limit / _limit(celgc(_setting(e))) for e, limit in zip(tiny, limits, strict=True)]
    return [
        Claim.of("EPISODE has linear speed-up for I below I_max", abs(speedup - 8) < 0.2,
                 f"8 clients need 1/{speedup:.3f} of the iterations of 1 (ε = 1e-6, I_max/100)"),
        Claim.of("With the largest I, R is of order ε⁻³", abs(growth / 1e3 - 1) < 0.02,
                 f"R grows {growth:,.1f}-fold when ε falls tenfold"),
        Claim.of("EPISODE's I_max is of CELGC's order, without homogeneous data",
                 abs(ratios[1] / ratios[0] - 1) < 0.01,
                 f"their ratio is {ratios[0]:.4f} at ε = 1e-6 and {ratios[1]:.4f} at 1e-7"),
    ]  # fmt: skip


def _theorem_claim() -> Claim:
    """The theorem's R with its largest η, over Remark 2's formula: bounded by one constant."""
    rho, smoothing = 2.0, Smoothing()
    factor = 864 * max(2 * smoothing.A, smoothing.B, 12 * smoothing.B * rho)
    ratios = []
    for epsilon, clients, steps, sigma, kappa in itertools.product(
        (1e-1, 1e-3, 1e-6), (1, 8, 64), (1, 32, 1024), (0.0, 1e-3, 1.0, 30.0), (0.0, 1.0, 30.0)
    ):
        s = _setting(epsilon, clients, steps, sigma=sigma, kappa=kappa, rho=rho)
        made = plan(s.constants, epsilon=epsilon, clients=clients, local_steps=steps)
        ratios.append(made.rounds / episode(s).rounds)
    return Claim.of(
        "Remark 2: the theorem's largest η gives R = O(ΔL0σ²/(NIε⁴) + Δ(L0+L1(κ+σ))/ε² · (1+σ/ε))",
        max(ratios) <= factor,
        f"at {len(ratios)} settings of ε, N, I, σ and κ, 4Δ/(ε²ηI) is {min(ratios):,.0f} to "
        f"{max(ratios):,.0f} times the formula; 864·max{{2A, B, 12Bρ}} = {factor:,.0f} bounds it "
        "for ρ = 2",
    )


def _remark_claims() -> list[Claim]:
    """Remark 2's four cases, each far inside its range of I and σ; every hidden factor 1."""
    epsilon = 1e-6
    s = _setting(epsilon)
    turn = 1 / (3 * 8 * epsilon)  # L0σ/((L0 + L1(κ + σ))Nε)
    few, many = (_setting(epsilon, steps=int(turn * share)) for share in (0.01, 100))
    first, second = episode(few).rounds, episode(many).rounds
    speed, flat = s.noise / few.local_steps, 3 / epsilon**3
    quiet = [episode(_setting(e, sigma=e / 10)).rounds * e**2 for e in (1e-3, 1e-6)]
    silent = episode(_setting(epsilon, sigma=0, kappa=5)).rounds * epsilon**2
    return [
        Claim.of("Remark 2.1: for small I, R = O(ΔL0σ²/(NIε⁴)), better than the naive parallel "
                 "version's ΔL0σ²/(Nε⁴)", _near(first, speed) and first < s.noise,
                 f"at I = {few.local_steps:,} and ε = 1e-6, R is {first / speed:.3f} times the "
                 f"first, 1/{s.noise / first:,.0f} of the second"),
        Claim.of("Remark 2.2: for large I, R = O(Δ(L0+L1(κ+σ))σ/ε³), still better than the naive "
                 "parallel version's if N is small", _near(second, flat) and second < s.noise,
                 f"at I = {many.local_steps:,}, R is {second / flat:.3f} times the first, "
                 f"1/{s.noise / second:,.0f} of the second with 8 clients (bound on N: "
                 f"{1 / (3 * epsilon):,.0f})"),
        Claim.of("Remark 2.3: for σ below ε, R = O(Δ(L0+L1(κ+σ))/ε²)",
                 _near(quiet[0], quiet[1]) and max(quiet) < 2 * 2,
                 f"with σ = ε/10, Rε² is {quiet[0]:.4f} at ε = 1e-3, {quiet[1]:.4f} at 1e-6; "
                 "Δ(L0+L1(κ+σ)) = 2"),
        Claim.of("Remark 2.4: for σ = 0, R = O(Δ(L0+L1κ)/ε²)", _near(silent, 6),
                 f"with κ = 5, Rε² is {silent:.4f}; Δ(L0+L1κ) = 6"),
    ]  # fmt: skip


def _near(value: float, expected: float) -> bool:
    return abs(value / expected - 1) < 0.02
