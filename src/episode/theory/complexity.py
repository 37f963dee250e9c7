"""The paper's Table 1 evaluated: rounds and iterations of six methods for given constants.

The O(·) in the table hides a factor that differs by method; here it is 1 everywhere. So the values
show how the methods scale and where they cross, not how many rounds anyone needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from episode.theory.constants import Constants, check_counts, check_positive, ratio, within_floats

NOT_SMOOTH = "it needs an L-smooth loss, but L1 > 0 and no L is given"
TOO_LITTLE_NOISE = "its analysis needs σ ≥ 1"
SINGLE_MACHINE = "it runs on a single machine"


@dataclass(frozen=True)
class Scenario:
    """The problem and the run for which the table is evaluated."""

    constants: Constants
    epsilon: float
    """ε, the gradient norm to reach."""
    clients: int
    """N."""
    local_steps: int
    """I, local steps per round."""
    smoothness: float | None = None
    """L, for the methods that need an L-smooth f; None if only L0 and L1 are known."""

    def __post_init__(self) -> None:
        check_counts(clients=self.clients, local_steps=self.local_steps)
        check_positive(epsilon=self.epsilon)
        if self.smoothness is not None:
            check_positive(smoothness=self.smoothness)

    @property
    def L(self) -> float:
        """The given smoothness, else L0 if L1 = 0, else NaN because f is not L-smooth."""
        if self.smoothness is not None:
            return self.smoothness
        return self.constants.L0 if self.constants.L1 == 0 else math.nan

    @property
    def noise(self) -> float:
        """ΔL0σ²/(Nε⁴): the best iteration complexity, with linear speed-up in N."""
        c = self.constants
        return c.delta * c.L0 * c.sigma**2 / (self.clients * self.epsilon**4)


@dataclass(frozen=True)
class MethodCost:
    """Complexity of one method in one scenario: a row of the table."""

    method: str
    rounds: float
    iterations: float
    best_iterations: float
    largest_local_steps: float | None
    """I_max; None if the method runs on a single machine."""
    obstacle: str | None = None
    """Why the theory of the method does not cover the scenario; None if it does."""


@within_floats()
def table(scenario: Scenario) -> list[MethodCost]:
    """Return the cost of all six methods, in the paper's order."""
    return [method(scenario) for method in METHODS.values()]


def fewest(rows: Sequence[MethodCost], what: str = "rounds") -> list[str]:
    """Return the covered methods with the fewest rounds (or iterations): all of them in a tie."""
    covered = [row for row in rows if row.obstacle is None]
    best = min((getattr(row, what) for row in covered), default=math.inf)
    return [row.method for row in covered if getattr(row, what) <= best * (1 + 1e-9)]


def comparison(scenario: Scenario) -> dict[str, Any]:
    """Return the table and its winners as plain values for JSON."""
    rows = table(scenario)
    return {
        "table": [asdict(row) for row in rows],
        "fewest_rounds": fewest(rows),
        "fewest_iterations": fewest(rows, "iterations"),
    }


def local_sgd(s: Scenario) -> MethodCost:
    """Local SGD: ΔLσ²/(NIε⁴) + ΔLκ²NI/(σ²ε²) + ΔLN/ε² rounds."""
    c, N, I, eps = s.constants, s.clients, s.local_steps, s.epsilon
    square = c.sigma**2
    drift = ratio(c.delta * s.L * c.kappa**2 * N * I, square * eps**2)
    rounds = c.delta * s.L * square / (N * I * eps**4) + drift + c.delta * s.L * N / eps**2
    limit = ratio(square, c.kappa * N * eps)
    no_noise = "its bound divides by σ, which is 0"
    obstacle = _first({NOT_SMOOTH: math.isnan(s.L), no_noise: math.isinf(drift)})
    return MethodCost("Local SGD", rounds, rounds * I, s.noise, limit, obstacle)


def scaffold(s: Scenario) -> MethodCost:
    """SCAFFOLD: ΔLσ²/(NIε⁴) + ΔL/ε² rounds."""
    c, N, I, eps = s.constants, s.clients, s.local_steps, s.epsilon
    rounds = c.delta * s.L * c.sigma**2 / (N * I * eps**4) + c.delta * s.L / eps**2
    limit = c.sigma**2 / (N * eps**2)
    obstacle = _first({NOT_SMOOTH: math.isnan(s.L)})
    return MethodCost("SCAFFOLD", rounds, rounds * I, s.noise, limit, obstacle)


def clipped_sgd(s: Scenario) -> MethodCost:
    """Clipped SGD on one machine: (Δ + (L0 + L1σ)σ² + σL0²/L1)²/ε⁴ iterations."""
    c = s.constants
    last = ratio(c.sigma * c.L0**2, c.L1)
    steps = (c.delta + (c.L0 + c.L1 * c.sigma) * c.sigma**2 + last) ** 2 / s.epsilon**4
    no_slope = "its bound divides by L1, which is 0"
    obstacle = _first({SINGLE_MACHINE: s.clients > 1, no_slope: math.isinf(steps)})
    return MethodCost("Clipped SGD", steps, steps, steps, None, obstacle)


def clipping_framework(s: Scenario) -> MethodCost:
    """Clipping framework on one machine: ΔL0σ²/ε⁴ iterations."""
    steps = s.constants.delta * s.constants.L0 * s.constants.sigma**2 / s.epsilon**4
    obstacle = _first({SINGLE_MACHINE: s.clients > 1, TOO_LITTLE_NOISE: s.constants.sigma < 1})
    return MethodCost("Clipping Framework", steps, steps, steps, None, obstacle)


def celgc(s: Scenario) -> MethodCost:
    """CELGC: ΔL0σ²/(NIε⁴) rounds, for homogeneous data."""
    rounds = s.noise / s.local_steps
    limit = s.constants.sigma / (s.clients * s.epsilon)
    obstacle = _first({
        "it needs clients that are alike (κ = 0, ρ = 1)": not s.constants.homogeneous,
        TOO_LITTLE_NOISE: s.constants.sigma < 1,
        f"I is above its I_max of {limit:.3g}": s.local_steps > limit,
    })  # fmt: skip
    return MethodCost("CELGC", rounds, rounds * s.local_steps, s.noise, limit, obstacle)


def episode(s: Scenario) -> MethodCost:
    """EPISODE: ΔL0σ²/(NIε⁴) + Δ(L0 + L1(κ + σ))/ε² · (1 + σ/ε) rounds."""
    c, eps = s.constants, s.epsilon
    smooth = c.L0 + c.L1 * (c.kappa + c.sigma)
    rounds = s.noise / s.local_steps + c.delta * smooth / eps**2 * (1 + c.sigma / eps)
    limit = c.L0 * c.sigma**2 / (smooth * (1 + c.sigma / eps) * s.clients * eps**2)
    return MethodCost("EPISODE", rounds, rounds * s.local_steps, s.noise, limit)


METHODS: dict[str, Callable[[Scenario], MethodCost]] = {
    "Local SGD": local_sgd,
    "SCAFFOLD": scaffold,
    "Clipped SGD": clipped_sgd,
    "Clipping Framework": clipping_framework,
    "CELGC": celgc,
    "EPISODE": episode,
}


def _first(obstacles: dict[str, bool]) -> str | None:
    """Return the first obstacle that exists."""
    return next((obstacle for obstacle, exists in obstacles.items() if exists), None)
