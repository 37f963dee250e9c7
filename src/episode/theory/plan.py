"""Theorem 1 as a calculator: from a problem's constants to η, γ, R, T and the largest useful I.

The theorem is stated twice in the paper with different numbers (see docs/theory.md):

- section 4.2: η ≤ min{1/(216 Γ I), ε/(180 Γ I σ), N ε²/(16 A L0 σ²)}; the default here;
- appendix C:  η ≤ min{1/(856 Γ I), ε/(180 Γ I σ), N ε²/( 8 A L0 σ²)}.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from episode.errors import EpisodeError, unknown
from episode.theory.constants import Constants, Smoothing, check_counts, check_epsilon

STATEMENTS: dict[str, tuple[float, float, float]] = {
    "main": (216.0, 180.0, 16.0),
    "appendix": (856.0, 180.0, 8.0),
}
"""The three numbers in the bounds on η, where the theorem is stated."""


@dataclass(frozen=True)
class Condition:
    """One thing that the theorem asks for: `value` must be at most `bound`."""

    name: str
    formula: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        # Equal by construction where η is the largest allowed: rounding must not break it.
        return self.value <= self.bound * (1 + 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"holds": self.holds}


@dataclass(frozen=True)
class TheoremPlan:
    """What Theorem 1 prescribes: with these, the mean of E‖∇f(x̄_r)‖ over r = 0 … R is ≤ 3ε."""

    constants: Constants
    epsilon: float
    clients: int
    local_steps: int
    smoothing: Smoothing
    statement: str
    threshold: float
    """γ/η = 11σ + AL0/(BL1ρ); infinite where L1 = 0, which means: never clip."""
    Gamma: float
    eta: float
    eta_bounds: dict[str, float]
    """The three bounds of which η is the smallest, by what they guard against."""
    gamma: float
    rounds: int
    """R, the smallest whole number that is at least 4Δ/(ε²ηI)."""
    largest_local_steps: float
    """I_max: up to here the noise term decides η, so T = RI does not grow with I and falls as 1/N.
    Below 1 there is no such I at this N; 0 where σ = 0, since there is no noise to average away."""
    conditions: tuple[Condition, ...]

    @property
    def iterations(self) -> int:
        """T = RI."""
        return self.rounds * self.local_steps

    @property
    def binding(self) -> str:
        """Which of the three bounds is η's."""
        return min(self.eta_bounds, key=self.eta_bounds.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "constants": self.constants.to_dict(),
            "epsilon": self.epsilon,
            "clients": self.clients,
            "local_steps": self.local_steps,
            "C": self.smoothing.C,
            "A": self.smoothing.A,
            "B": self.smoothing.B,
            "statement": self.statement,
            "Gamma": self.Gamma,
            "eta": self.eta,
            "eta_bounds": self.eta_bounds,
            "binding": self.binding,
            "gamma": self.gamma,
            "threshold": self.threshold,
            "rounds": self.rounds,
            "iterations": self.iterations,
            "largest_local_steps": self.largest_local_steps,
            "conditions": [c.to_dict() for c in self.conditions],
        }


def plan(
    constants: Constants,
    *,
    epsilon: float,
    clients: int,
    local_steps: int,
    C: float = 1.0,
    statement: str = "main",
) -> TheoremPlan:
    """The largest η that Theorem 1 admits, with γ, Γ, R and I_max; refuses an ε that it does not.

    The constants of the theorem are worst cases of worst cases: use its η to prove something, and
    `diagnose` to train something.
    """
    check_counts(clients=clients, local_steps=local_steps)
    smoothing = Smoothing(C)
    largest = largest_epsilon(constants, smoothing)
    check_epsilon(epsilon)
    if epsilon > largest:
        raise EpisodeError(
            f"epsilon is {epsilon:g}, but Theorem 1 admits at most 3AL0/(5BL1ρ) = {largest:.4g} "
            "for these constants: ask for a smaller epsilon."
        )
    bounds = eta_bounds(constants, epsilon, clients, local_steps, smoothing, statement)
    eta = min(bounds.values())
    threshold = threshold_of(constants, smoothing)
    exact = _ratio(4 * constants.delta, epsilon**2 * eta * local_steps)
    if not math.isfinite(exact):
        raise EpisodeError("These constants give more rounds than a float can hold: rescale them.")
    gamma = threshold * eta
    return TheoremPlan(
        constants,
        epsilon,
        clients,
        local_steps,
        smoothing,
        statement,
        threshold,
        gamma_capital(constants, smoothing),
        eta,
        bounds,
        gamma,
        math.ceil(exact * (1 - 1e-12)),  # a whole number stays one, whatever rounding did
        largest_local_steps(constants, epsilon, clients, smoothing, statement),
        tuple(
            check(
                constants,
                epsilon=epsilon,
                clients=clients,
                local_steps=local_steps,
                eta=eta,
                gamma=gamma,
                C=C,
                statement=statement,
            )
        ),
    )


def largest_epsilon(constants: Constants, smoothing: Smoothing) -> float:
    """3AL0/(5BL1ρ): how coarse a tolerance the theorem admits; any, where L1 = 0."""
    if constants.L1 == 0:
        return math.inf
    return 3 * smoothing.A * constants.L0 / (5 * smoothing.B * constants.L1 * constants.rho)


def threshold_of(constants: Constants, smoothing: Smoothing) -> float:
    """γ/η = 11σ + AL0/(BL1ρ)."""
    if constants.L1 == 0:
        return math.inf
    return 11 * constants.sigma + smoothing.A * constants.L0 / (
        smoothing.B * constants.L1 * constants.rho
    )


def gamma_capital(constants: Constants, smoothing: Smoothing) -> float:
    """Γ = AL0 + BL1κ + BL1ρ(σ + γ/η).

    With the theorem's γ/η that is 2AL0 + BL1κ + 12BL1ρσ, which has a meaning for L1 = 0 too.
    """
    A, B, c = smoothing.A, smoothing.B, constants
    return 2 * A * c.L0 + B * c.L1 * c.kappa + 12 * B * c.L1 * c.rho * c.sigma


def eta_bounds(
    constants: Constants,
    epsilon: float,
    clients: int,
    local_steps: int,
    smoothing: Smoothing,
    statement: str,
) -> dict[str, float]:
    """The three bounds on η; with σ = 0 only the first is finite."""
    if statement not in STATEMENTS:
        raise unknown("statement of the theorem", statement, STATEMENTS)
    drift, noisy_drift, noise = STATEMENTS[statement]
    Gamma, sigma = gamma_capital(constants, smoothing), constants.sigma
    return {
        "drift": _ratio(1, drift * Gamma * local_steps),
        "noisy drift": _ratio(epsilon, noisy_drift * Gamma * local_steps * sigma),
        "noise": _ratio(clients * epsilon**2, noise * smoothing.A * constants.L0 * sigma**2),
    }


def largest_local_steps(
    constants: Constants,
    epsilon: float,
    clients: int,
    smoothing: Smoothing,
    statement: str = "main",
) -> float:
    """I_max: the largest I at which the noise bound on η, which has no I in it, is the smallest."""
    bounds = eta_bounds(constants, epsilon, clients, 1, smoothing, statement)
    if math.isinf(bounds["noise"]):
        return 0.0
    return min(bounds["drift"], bounds["noisy drift"]) / bounds["noise"]


def check(
    constants: Constants,
    *,
    epsilon: float,
    clients: int,
    local_steps: int,
    eta: float,
    gamma: float,
    C: float = 1.0,
    statement: str = "main",
) -> list[Condition]:
    """Every condition of Theorem 1 and Lemma 1 for an η and γ of your own; none is left out."""
    check_counts(clients=clients, local_steps=local_steps)
    check_epsilon(epsilon)
    for name, value in (("eta", eta), ("gamma", gamma)):
        if not value > 0 or math.isnan(value):
            raise EpisodeError(f"{name} is {value}: it must be above 0.")
    smoothing, c, I = Smoothing(C), constants, local_steps
    A, B, threshold = smoothing.A, smoothing.B, gamma / eta
    bounds = eta_bounds(c, epsilon, clients, I, smoothing, statement)
    asked = threshold_of(c, smoothing)
    # B·L1·ρ·γ/η, whose limit for L1 → 0 at the theorem's γ/η is AL0.
    spread = B * c.L1 * c.rho * threshold if c.L1 else (A * c.L0 if math.isinf(threshold) else 0.0)
    smooth = A * c.L0 + B * c.L1 * c.kappa + B * c.L1 * c.rho * c.sigma + spread
    reach = 2 * eta * I * (2 * c.sigma + threshold)
    first, second, third = STATEMENTS[statement]
    same = asked == threshold
    return [
        Condition("tolerance", "ε ≤ 3AL0/(5BL1ρ)", epsilon, largest_epsilon(c, smoothing)),
        Condition("step size: drift", f"η ≤ 1/({first:g}ΓI)", eta, bounds["drift"]),
        Condition("step size: noisy drift", f"η ≤ ε/({second:g}ΓIσ)", eta, bounds["noisy drift"]),
        Condition("step size: noise", f"η ≤ Nε²/({third:g}AL0σ²)", eta, bounds["noise"]),
        Condition(
            "clipping threshold",
            "γ/η = 11σ + AL0/(BL1ρ), relative difference",
            0.0 if same else abs(threshold - asked) / min(asked, threshold),
            1e-9,
        ),
        Condition(
            "Lemma 1: smoothness", "2ηI(AL0 + BL1κ + BL1ρ(σ + γ/η)) ≤ 1", 2 * eta * I * smooth, 1.0
        ),
        Condition(
            "Lemma 1: reach",
            "max{2ηI(2σ + γ/η), γI} ≤ C/L1",
            max(reach, gamma * I),
            C / c.L1 if c.L1 else math.inf,
        ),
    ]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf
