"""Theorem 1 as a calculator: from the constants of a problem to η, γ, R, T and I_max.

The paper states the theorem twice, with different numbers (see docs/theory.md):

- section 4.2: η ≤ min{1/(216 Γ I), ε/(180 Γ I σ), N ε²/(16 A L0 σ²)}; the default here;
- appendix C:  η ≤ min{1/(856 Γ I), ε/(180 Γ I σ), N ε²/( 8 A L0 σ²)}.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from episode.errors import EpisodeError, unknown
from episode.theory.constants import (
    Constants,
    Smoothing,
    check_counts,
    check_positive,
    ratio,
    within_floats,
)

STATEMENTS: dict[str, tuple[float, float, float]] = {
    "main": (216.0, 180.0, 16.0),
    "appendix": (856.0, 180.0, 8.0),
}
"""The three numbers in the bounds on η, by where the theorem is stated."""


@within_floats()
def plan(
    constants: Constants,
    *,
    epsilon: float,
    clients: int,
    local_steps: int,
    C: float = 1.0,
    statement: str = "main",
) -> TheoremPlan:
    """Return the largest step size that Theorem 1 allows, with everything that follows from it.

    The bounds of the theorem are worst cases of worst cases: use its η to prove something, and
    `diagnose` to train something.

    Raises:
        EpisodeError: ε is larger than the theorem allows, or another value is out of range.
    """
    made = TheoremPlan(constants, epsilon, clients, local_steps, Smoothing(C), statement)
    largest = largest_epsilon(constants, made.smoothing)
    if epsilon > largest:
        raise EpisodeError(
            f"epsilon is {epsilon:g}, but Theorem 1 admits at most 3AL0/(5BL1ρ) = {largest:.4g} "
            "for these constants: ask for a smaller epsilon."
        )
    if not math.isfinite(made.exact_rounds):
        raise EpisodeError("These constants give more rounds than a float can hold: rescale them.")
    made.to_dict()  # so that no property fails later
    return made


@dataclass(frozen=True)
class Condition:
    """One condition of the theorem: `value` must be at most `bound`."""

    name: str
    formula: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        # With the largest allowed η, both sides are equal up to rounding.
        return self.value <= self.bound * (1 + 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"holds": self.holds}


@dataclass(frozen=True)
class TheoremPlan:
    """What Theorem 1 prescribes for a problem, N clients and I local steps per round.

    With these η, γ and R, the mean of E‖∇f(x̄_r)‖ over the rounds r = 0 … R is at most 3ε.
    """

    constants: Constants
    epsilon: float
    clients: int
    local_steps: int
    smoothing: Smoothing
    statement: str

    def __post_init__(self) -> None:
        check_counts(clients=self.clients, local_steps=self.local_steps)
        check_positive(epsilon=self.epsilon)
        if self.statement not in STATEMENTS:
            raise unknown("statement of the theorem", self.statement, STATEMENTS)

    @property
    def threshold(self) -> float:
        """The clipping threshold γ/η; infinite if L1 = 0, which means: never clip."""
        return clipping_threshold(self.constants, self.smoothing)

    @property
    def Gamma(self) -> float:
        """Γ = AL0 + BL1κ + BL1ρ(σ + γ/η), the smoothness constant in the bounds on η.

        With the theorem's γ/η, that is 2AL0 + BL1κ + 12BL1ρσ, which is defined for L1 = 0 too.
        """
        A, B, c = self.smoothing.A, self.smoothing.B, self.constants
        return 2 * A * c.L0 + B * c.L1 * c.kappa + 12 * B * c.L1 * c.rho * c.sigma

    @property
    def eta_bounds(self) -> dict[str, float]:
        """The three bounds on η by what they guard against; with σ = 0 only drift is finite."""
        c, I, Gamma = self.constants, self.local_steps, self.Gamma
        drift, noisy_drift, noise = STATEMENTS[self.statement]
        per_client = noise * self.smoothing.A * c.L0 * c.sigma**2
        return {
            "drift": ratio(1, drift * Gamma * I),
            "noisy drift": ratio(self.epsilon, noisy_drift * Gamma * I * c.sigma),
            "noise": ratio(self.clients * self.epsilon**2, per_client),
        }

    @property
    def eta(self) -> float:
        """The largest step size that satisfies all three bounds."""
        return min(self.eta_bounds.values())

    @property
    def binding(self) -> str:
        """Name of the bound that determines η."""
        return min(self.eta_bounds, key=self.eta_bounds.__getitem__)

    @property
    def gamma(self) -> float:
        """γ, the clipping parameter."""
        return self.threshold * self.eta

    @property
    def exact_rounds(self) -> float:
        """4Δ/(ε²ηI), before rounding up."""
        return ratio(4 * self.constants.delta, self.epsilon**2 * self.eta * self.local_steps)

    @property
    def rounds(self) -> int:
        """R, the smallest whole number that is at least 4Δ/(ε²ηI)."""
        return math.ceil(self.exact_rounds * (1 - 1e-12))  # rounding must not add a round

    @property
    def iterations(self) -> int:
        """T = RI, the number of local steps that each client takes in all."""
        return self.rounds * self.local_steps

    @property
    def largest_local_steps(self) -> float:
        """I_max: up to this I, the noise bound (which does not depend on I) determines η.

        Then T = RI does not grow with I and falls as 1/N. If I_max is below 1, no I does that at
        this N. It is 0 if σ = 0, because there is no noise to average away.
        """
        bounds = replace(self, local_steps=1).eta_bounds  # the other two are proportional to 1/I
        if math.isinf(bounds["noise"]):
            return 0.0
        return min(bounds["drift"], bounds["noisy drift"]) / bounds["noise"]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every condition of the theorem at its own η and γ."""
        return tuple(self.check(self.eta, self.gamma))

    def check(self, eta: float, gamma: float) -> list[Condition]:
        """Evaluate every condition of Theorem 1 and Lemma 1 for any η and γ."""
        for name, value in (("eta", eta), ("gamma", gamma)):
            if not value > 0:
                raise EpisodeError(f"{name} is {value}: it must be above 0.")
        c, I, threshold = self.constants, self.local_steps, gamma / eta
        low, high = sorted((threshold, self.threshold))
        off = 0.0 if low == high else (high - low) / low  # both may be infinite
        drift, noisy_drift, noise = STATEMENTS[self.statement]
        formulas = {
            "drift": f"η ≤ 1/({drift:g}ΓI)",
            "noisy drift": f"η ≤ ε/({noisy_drift:g}ΓIσ)",
            "noise": f"η ≤ Nε²/({noise:g}AL0σ²)",
        }
        return [
            Condition("tolerance", "ε ≤ 3AL0/(5BL1ρ)", self.epsilon,
                      largest_epsilon(c, self.smoothing)),
            *(Condition(f"step size: {name}", formulas[name], eta, bound)
              for name, bound in self.eta_bounds.items()),
            Condition("clipping threshold", "γ/η = 11σ + AL0/(BL1ρ), relative difference",
                      off, 1e-9),
            Condition("Lemma 1: smoothness", "2ηI(AL0 + BL1κ + BL1ρ(σ + γ/η)) ≤ 1",
                      2 * eta * I * self._smoothness(threshold), 1.0),
            Condition("Lemma 1: reach", "max{2ηI(2σ + γ/η), γI} ≤ C/L1",
                      max(2 * eta * I * (2 * c.sigma + threshold), gamma * I),
                      ratio(self.smoothing.C, c.L1)),
        ]  # fmt: skip

    def _smoothness(self, threshold: float) -> float:
        """AL0 + BL1κ + BL1ρ(σ + γ/η): Γ with a threshold of the user's choice."""
        A, B, c = self.smoothing.A, self.smoothing.B, self.constants
        spread = B * c.L1 * c.rho * threshold
        if c.L1 == 0:  # at the theorem's γ/η, BL1ρ·γ/η tends to AL0 as L1 → 0
            spread = A * c.L0 if math.isinf(threshold) else 0.0
        return A * c.L0 + B * c.L1 * c.kappa + B * c.L1 * c.rho * c.sigma + spread

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = (
            "epsilon", "clients", "local_steps", "statement", "Gamma", "eta", "eta_bounds",
            "binding", "gamma", "threshold", "rounds", "iterations", "largest_local_steps",
        )  # fmt: skip
        return {
            "constants": asdict(self.constants),
            **{name: getattr(self.smoothing, name) for name in ("C", "A", "B")},
            **{name: getattr(self, name) for name in names},
            "conditions": [c.to_dict() for c in self.conditions],
        }


def largest_epsilon(constants: Constants, smoothing: Smoothing) -> float:
    """Return 3AL0/(5BL1ρ), the largest ε that the theorem allows; infinite if L1 = 0."""
    A, B, c = smoothing.A, smoothing.B, constants
    return ratio(3 * A * c.L0, 5 * B * c.L1 * c.rho)


def clipping_threshold(constants: Constants, smoothing: Smoothing) -> float:
    """Return γ/η = 11σ + AL0/(BL1ρ); infinite if L1 = 0."""
    A, B, c = smoothing.A, smoothing.B, constants
    return 11 * c.sigma + ratio(A * c.L0, B * c.L1 * c.rho)
