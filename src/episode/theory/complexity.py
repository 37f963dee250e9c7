"""The paper's Table 1, evaluated: rounds and iterations of six methods for given constants.

The table's O(·) hides a factor of each method's own; it is taken as 1 everywhere. So the figures
show how methods scale and where they cross, not how many rounds anybody needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from episode.errors import EpisodeError
from episode.theory.constants import Constants, check_counts, check_epsilon


@dataclass(frozen=True)
class Setting:
    """At what the table is evaluated."""

    constants: Constants
    epsilon: float
    clients: int
    local_steps: int
    smoothness: float | None = None
    """L, for the methods that need f to be L-smooth; None where only L0 and L1 are known."""

    def __post_init__(self) -> None:
        check_counts(clients=self.clients, local_steps=self.local_steps)
        check_epsilon(self.epsilon)
        if self.smoothness is not None and not 0 < self.smoothness < math.inf:
            raise EpisodeError(f"smoothness is {self.smoothness}: it must be above 0 and finite.")

    @property
    def L(self) -> float:
        """The smoothness given; L0 where L1 = 0; else NaN, because no L would do."""
        if self.smoothness is not None:
            return self.smoothness
        return self.constants.L0 if self.constants.L1 == 0 else math.nan

    @property
    def noise(self) -> float:
        """ΔL0σ²/(Nε⁴): the best iteration complexity, that of linear speed-up."""
        c = self.constants
        return c.delta * c.L0 * c.sigma**2 / (self.clients * self.epsilon**4)


@dataclass(frozen=True)
class Row:
    """One method at one setting; `obstacle` says why its theory does not cover it."""

    method: str
    rounds: float
    iterations: float
    best_iterations: float
    largest_local_steps: float | None
    """I_max; None where the method runs on a single machine."""
    obstacle: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def table(setting: Setting) -> list[Row]:
    """All six methods, in the paper's order."""
    return [method(setting) for method in METHODS.values()]


def fewest(rows: Sequence[Row], what: str = "rounds") -> list[str]:
    """The covered methods with the fewest rounds (or iterations): several at a tie, or none."""
    covered = [row for row in rows if row.obstacle is None]
    best = min((getattr(row, what) for row in covered), default=math.inf)
    return [row.method for row in covered if getattr(row, what) <= best * (1 + 1e-9)]


def local_sgd(s: Setting) -> Row:
    """Local SGD: ΔLσ²/(NIε⁴) + ΔLκ²NI/(σ²ε²) + ΔLN/ε² rounds."""
    c, N, I, eps = s.constants, s.clients, s.local_steps, s.epsilon
    square = c.sigma**2
    drift = _ratio(c.delta * s.L * c.kappa**2 * N * I, square * eps**2)
    rounds = c.delta * s.L * square / (N * I * eps**4) + drift + c.delta * s.L * N / eps**2
    limit = _ratio(square, c.kappa * N * eps)
    obstacle = _needs_smoothness(s)
    if math.isinf(drift):
        obstacle = obstacle or "its bound divides by σ, which is 0"
    return Row("Local SGD", rounds, rounds * I, s.noise, limit, obstacle)


def scaffold(s: Setting) -> Row:
    """SCAFFOLD: ΔLσ²/(NIε⁴) + ΔL/ε² rounds."""
    c, N, I, eps = s.constants, s.clients, s.local_steps, s.epsilon
    rounds = c.delta * s.L * c.sigma**2 / (N * I * eps**4) + c.delta * s.L / eps**2
    limit = c.sigma**2 / (N * eps**2)
    return Row("SCAFFOLD", rounds, rounds * I, s.noise, limit, _needs_smoothness(s))


def clipped_sgd(s: Setting) -> Row:
    """Clipped SGD on one machine: (Δ + (L0 + L1σ)σ² + σL0²/L1)²/ε⁴ iterations."""
    c = s.constants
    last = _ratio(c.sigma * c.L0**2, c.L1)
    steps = (c.delta + (c.L0 + c.L1 * c.sigma) * c.sigma**2 + last) ** 2 / s.epsilon**4
    obstacle = _single_machine(s)
    if math.isinf(steps):
        obstacle = obstacle or "its bound divides by L1, which is 0"
    return Row("Clipped SGD", steps, steps, steps, None, obstacle)


def clipping_framework(s: Setting) -> Row:
    """The clipping framework on one machine: ΔL0σ²/ε⁴ iterations."""
    c = s.constants
    steps = c.delta * c.L0 * c.sigma**2 / s.epsilon**4
    return Row(
        "Clipping Framework", steps, steps, steps, None, _single_machine(s) or _needs_noise(s)
    )


def celgc(s: Setting) -> Row:
    """CELGC: ΔL0σ²/(NIε⁴) rounds, for homogeneous data."""
    c = s.constants
    rounds = s.noise / s.local_steps
    limit = c.sigma / (s.clients * s.epsilon)
    obstacle = None if c.homogeneous else "clients differ (κ > 0 or ρ > 1)"
    obstacle = obstacle or _needs_noise(s)
    if obstacle is None and s.local_steps > limit:
        obstacle = f"I is above its I_max of {limit:.3g}"
    return Row("CELGC", rounds, rounds * s.local_steps, s.noise, limit, obstacle)


def episode(s: Setting) -> Row:
    """EPISODE: ΔL0σ²/(NIε⁴) + Δ(L0 + L1(κ + σ))/ε² · (1 + σ/ε) rounds."""
    c, eps = s.constants, s.epsilon
    smooth = c.L0 + c.L1 * (c.kappa + c.sigma)
    rounds = s.noise / s.local_steps + c.delta * smooth / eps**2 * (1 + c.sigma / eps)
    limit = c.L0 * c.sigma**2 / (smooth * (1 + c.sigma / eps) * s.clients * eps**2)
    return Row("EPISODE", rounds, rounds * s.local_steps, s.noise, limit)


METHODS: dict[str, Callable[[Setting], Row]] = {
    "Local SGD": local_sgd,
    "SCAFFOLD": scaffold,
    "Clipped SGD": clipped_sgd,
    "Clipping Framework": clipping_framework,
    "CELGC": celgc,
    "EPISODE": episode,
}


def _ratio(numerator: float, denominator: float) -> float:
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 0.0


def _needs_smoothness(s: Setting) -> str | None:
    return "f is not L-smooth (L1 > 0) and no L is given" if math.isnan(s.L) else None


def _single_machine(s: Setting) -> str | None:
    return "a single machine" if s.clients > 1 else None


def _needs_noise(s: Setting) -> str | None:
    return "its analysis needs σ ≥ 1" if s.constants.sigma < 1 else None
