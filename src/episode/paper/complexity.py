"""Table 1 evaluated, and what Remark 2 says about EPISODE's complexity: needs no runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from episode.paper.recipe import Claim, Recipe, RecipeContext, RecipeOutput
from episode.results.curves import Line, Panel
from episode.results.tables import Table
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
"""Scenario, R, T_min and I_max of each method, as the paper prints them."""
COLOURS = {"Local SGD": "fedavg", "SCAFFOLD": "scaffold", "CELGC": "celgc", "EPISODE": "episode"}
"""The algorithm whose colour a method has; methods for a single machine are not drawn."""
NOTE = (
    "R is the number of rounds until the gradient's norm is ε, T_min the fewest iterations in all, "
    "and I_max the largest number I of local steps per round that still allows T_min. N is the "
    "number of clients, Δ how far f starts above its minimum, L (or L0 and L1) its smoothness, σ "
    "the noise of gradients, and κ how much the clients' gradients differ. The formulas are the "
    "paper's. The last two columns evaluate them with Δ = L0 = L1 = L = σ = κ = 1, N = 8, I = 4 "
    "and every hidden factor 1: they only show orders of magnitude."
)


class Complexity(Recipe):
    """Table 1: communication complexity, and the largest I with linear speed-up."""

    name = "complexity"
    title = "Complexity: rounds, iterations and the largest number of local steps (I)"
    place = "Table 1 and Remark 2"

    def output(self, context: RecipeContext) -> RecipeOutput:
        columns = ["Method", "Scenario", "R = O(…)", "T_min = O(…)", "I_max = O(…)",
                   "R at ε = 0.01", "I_max at ε = 0.01"]  # fmt: skip
        rows = []
        for row in table(_setting(0.01)):
            largest = row.largest_local_steps
            shown = [f"{row.rounds:.3g}", "N/A" if largest is None else f"{largest:.3g}"]
            rows.append([row.method, *FORMULAS[row.method], *shown])
        steps = sorted({round(10 ** (k / 10)) for k in range(41)})
        by_steps = [table(_setting(0.01, steps=i)) for i in steps]
        lines = [
            Line(method[0].method, list(map(float, steps)), [row.rounds for row in method],
                 COLOURS[method[0].method])
            for method in zip(*by_steps, strict=True) if method[0].method in COLOURS
        ]  # fmt: skip
        panel = Panel("ε = 0.01, N = 8, all else 1", "I", "rounds R", lines, log_x=True, log_y=True)
        metrics = {**_table_metrics(), **_theorem_metrics(), **_remark_metrics()}
        claims = [claim.judge(metrics) for claim in CLAIMS]
        tables = {"table": Table("", columns, rows, left=5)}
        return RecipeOutput(tables, {"figure": [[panel]]}, claims, [NOTE])


def _setting(epsilon: float, clients: int = 8, steps: int = 4, **constants: float) -> Scenario:
    given: dict[str, Any] = {"L0": 1.0, "L1": 1.0, "sigma": 1.0, "kappa": 1.0, "rho": 2.0}
    return Scenario(Constants(**(given | constants)), epsilon, clients, steps, smoothness=1.0)


def _largest_steps(row: MethodCost) -> float:
    return row.largest_local_steps or math.nan


TINY = 1e-6
"""An ε so small that the leading terms decide."""


def _table_metrics() -> dict[str, float]:
    """Evaluate the table's formulas for small ε."""
    one, eight = (
        episode(_setting(TINY, n, max(1, int(_largest_steps(episode(_setting(TINY, n))) / 100))))
        for n in (1, 8)
    )
    settings = [_setting(epsilon) for epsilon in (TINY, TINY / 10)]
    largest = [_largest_steps(episode(s)) for s in settings]
    rounds = [
        episode(replace(s, local_steps=int(i))).rounds
        for s, i in zip(settings, largest, strict=True)
    ]
    ratios = [i / _largest_steps(celgc(s)) for s, i in zip(settings, largest, strict=True)]
    return {
        "speedup": one.iterations / eight.iterations,
        "growth": rounds[1] / rounds[0],
        "ratio": ratios[0],
        "later_ratio": ratios[1],
    }


def _theorem_metrics() -> dict[str, float]:
    """Compare the theorem's R, with its largest η, to the formula of Remark 2."""
    rho, smoothing = 2.0, Smoothing()
    ratios = []
    for epsilon, clients, steps, sigma, kappa in itertools.product(
        (1e-1, 1e-3, 1e-6), (1, 8, 64), (1, 32, 1024), (0.0, 1e-3, 1.0, 30.0), (0.0, 1.0, 30.0)
    ):
        s = _setting(epsilon, clients, steps, sigma=sigma, kappa=kappa, rho=rho)
        made = plan(s.constants, epsilon=epsilon, clients=clients, local_steps=steps)
        ratios.append(made.rounds / episode(s).rounds)
    factor = 864 * max(2 * smoothing.A, smoothing.B, 12 * smoothing.B * rho)
    return {"settings": len(ratios), "least": min(ratios), "most": max(ratios), "factor": factor}


def _remark_metrics() -> dict[str, float]:
    """Evaluate the four cases of Remark 2, each far inside its range of I and σ."""
    turn = 1 / (3 * 8 * TINY)  # L0σ/((L0 + L1(κ + σ))Nε)
    few, many = (_setting(TINY, steps=int(turn * share)) for share in (0.01, 100))
    small, large = episode(few).rounds, episode(many).rounds
    return {
        "few": few.local_steps,
        "few_to_formula": small / (few.noise / few.local_steps),
        "few_to_parallel": few.noise / small,
        "many": many.local_steps,
        "many_to_formula": large / (3 / TINY**3),
        "many_to_parallel": many.noise / large,
        "most_clients": 1 / (3 * TINY),
        "quiet": episode(_setting(1e-3, sigma=1e-3 / 10)).rounds * 1e-3**2,
        "quieter": episode(_setting(TINY, sigma=TINY / 10)).rounds * TINY**2,
        "silent": episode(_setting(TINY, sigma=0, kappa=5)).rounds * TINY**2,
    }


def _near(value: float, expected: float, share: float = 0.02) -> bool:
    return abs(value / expected - 1) < share


# The evidence of each claim is a template that names some of the metrics above.
CLAIMS: tuple[Claim[Mapping[str, float]], ...] = (
    Claim("EPISODE has linear speed-up for I below I_max",
          lambda m: abs(m["speedup"] - 8) < 0.2,
          "8 clients need 1/{speedup:.3f} of the iterations of 1 (ε = 1e-6, I_max/100)".format_map),
    Claim("With the largest I, R is of order ε⁻³",
          lambda m: _near(m["growth"], 1e3),
          "R grows {growth:,.1f}-fold when ε falls tenfold".format_map),
    Claim("EPISODE's I_max is of CELGC's order, without homogeneous data",
          lambda m: _near(m["later_ratio"], m["ratio"], 0.01),
          "their ratio is {ratio:.4f} at ε = 1e-6 and {later_ratio:.4f} at 1e-7".format_map),
    Claim("Remark 2: the theorem's largest η gives R = O(ΔL0σ²/(NIε⁴) + Δ(L0+L1(κ+σ))/ε² · "
          "(1+σ/ε))",
          lambda m: m["most"] <= m["factor"],
          ("at {settings:.0f} settings of ε, N, I, σ and κ, 4Δ/(ε²ηI) is {least:,.0f} to "
           "{most:,.0f} times the formula; 864·max{{2A, B, 12Bρ}} = {factor:,.0f} bounds it for "
           "ρ = 2").format_map),
    Claim("Remark 2.1: for small I, R = O(ΔL0σ²/(NIε⁴)), better than the naive parallel version's "
          "ΔL0σ²/(Nε⁴)",
          lambda m: _near(m["few_to_formula"], 1) and m["few_to_parallel"] > 1,
          ("at I = {few:,} and ε = 1e-6, R is {few_to_formula:.3f} times the first, "
           "1/{few_to_parallel:,.0f} of the second").format_map),
    Claim("Remark 2.2: for large I, R = O(Δ(L0+L1(κ+σ))σ/ε³), still better than the naive parallel "
          "version's if N is small",
          lambda m: _near(m["many_to_formula"], 1) and m["many_to_parallel"] > 1,
          ("at I = {many:,}, R is {many_to_formula:.3f} times the first, 1/{many_to_parallel:,.0f} "
           "of the second with 8 clients (bound on N: {most_clients:,.0f})").format_map),
    Claim("Remark 2.3: for σ below ε, R = O(Δ(L0+L1(κ+σ))/ε²)",
          lambda m: _near(m["quiet"], m["quieter"]) and max(m["quiet"], m["quieter"]) < 2 * 2,
          ("with σ = ε/10, Rε² is {quiet:.4f} at ε = 1e-3, {quieter:.4f} at 1e-6; "
           "Δ(L0+L1(κ+σ)) = 2").format_map),
    Claim("Remark 2.4: for σ = 0, R = O(Δ(L0+L1κ)/ε²)",
          lambda m: _near(m["silent"], 6),
          "with κ = 5, Rε² is {silent:.4f}; Δ(L0+L1κ) = 6".format_map),
)  # fmt: skip
