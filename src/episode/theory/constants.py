"""The constants of Assumption 1, and the numbers A and B of Lemmas 5 and 6."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from episode.errors import EpisodeError


@dataclass(frozen=True)
class Constants:
    """What Assumption 1 says about a problem.

    ‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖;  ‖∇F_i - ∇f_i‖ ≤ σ;  ‖∇f_i‖ ≤ κ + ρ‖∇f‖;  f(x_0) - min f ≤ Δ.
    """

    L0: float
    L1: float
    sigma: float
    kappa: float = 0.0
    rho: float = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _check_number(name, value)
        for name in ("L1", "sigma", "kappa"):
            if getattr(self, name) < 0:
                raise EpisodeError(f"{name} is {getattr(self, name)}: it must be 0 or more.")
        for name in ("L0", "delta"):
            if getattr(self, name) <= 0:
                raise EpisodeError(f"{name} is {getattr(self, name)}: it must be above 0.")
        if self.rho < 1:
            raise EpisodeError(
                f"rho is {self.rho}, which no problem has: f is the mean of the clients' f_i, so "
                "some ‖∇f_i‖ is at least ‖∇f‖. Give 1 or more."
            )

    @property
    def homogeneous(self) -> bool:
        """κ = 0 and ρ = 1: every client has the same gradient."""
        return self.kappa == 0 and self.rho == 1

    def to_dict(self) -> dict[str, float]:
        """The constants by name."""
        return asdict(self)


@dataclass(frozen=True)
class Smoothing:
    """C of Lemmas 5 and 6, how far (in units of 1/L1) a bound may reach, and A and B from it.

    A = 1 + e^C - (e^C - 1)/C and B = (e^C - 1)/C; the paper asks for C ≥ 1, so that both are ≥ 1.
    """

    C: float = 1.0

    def __post_init__(self) -> None:
        _check_number("C", self.C)
        if not 1 <= self.C <= 100:
            raise EpisodeError(f"C is {self.C}: it must be from 1 (as in the paper) to 100.")

    @property
    def B(self) -> float:
        return math.expm1(self.C) / self.C

    @property
    def A(self) -> float:
        return 1 + math.exp(self.C) - self.B


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EpisodeError(f"{name} is {value!r}: it must be a number.")
    if not math.isfinite(value):
        raise EpisodeError(f"{name} is {value}: it must be a finite number.")


def check_counts(**counts: int) -> None:
    """Refuses a number of clients or local steps that is not a whole number of 1 or more."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise EpisodeError(f"{name} is {value!r}: it must be a whole number of 1 or more.")


def check_epsilon(epsilon: float) -> None:
    """Refuses a tolerance that is not a positive number."""
    _check_number("epsilon", epsilon)
    if epsilon <= 0:
        raise EpisodeError(f"epsilon is {epsilon}: it must be above 0.")
