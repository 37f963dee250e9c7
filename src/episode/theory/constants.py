"""Constants that describe a problem in the theory: the paper's Assumption 1, and A, B and C."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from episode.errors import EpisodeError


@dataclass(frozen=True)
class Constants:
    """Bounds on a problem, as in the paper's Assumption 1.

    f_i is the loss of client i, f the mean of the f_i, and ∇F_i a gradient on one batch.
    """

    L0: float
    """Curvature where client gradients vanish: ‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖."""
    L1: float
    """How fast the curvature may grow with the gradient; 0 if f is L0-smooth."""
    sigma: float
    """σ, the noise of a batch's gradient: ‖∇F_i - ∇f_i‖ ≤ σ."""
    kappa: float = 0.0
    """κ, how much clients differ where ∇f vanishes: ‖∇f_i‖ ≤ κ + ρ‖∇f‖."""
    rho: float = 1.0
    """ρ, how much larger than ∇f a client's gradient may be; at least 1."""
    delta: float = 1.0
    """Δ, how far the loss can fall: f(x_0) - min f ≤ Δ."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(name, value)
            if name in ("L1", "sigma", "kappa") and value < 0:
                raise EpisodeError(f"{name} is {value}: it must be 0 or more.")
        check_positive(L0=self.L0, delta=self.delta)
        if self.rho < 1:
            raise EpisodeError(
                f"rho is {self.rho}, but f is the mean of the clients' f_i, so some ‖∇f_i‖ is "
                "always at least ‖∇f‖: give 1 or more."
            )

    @property
    def homogeneous(self) -> bool:
        """Whether all clients have the same gradient: κ = 0 and ρ = 1."""
        return self.kappa == 0 and self.rho == 1


@dataclass(frozen=True)
class Smoothing:
    """C of the paper's Lemmas 5 and 6, and the factors A and B that follow from it.

    The lemmas bound how much gradients change between points at most C/L1 apart, with
    A = 1 + e^C - (e^C - 1)/C and B = (e^C - 1)/C. The paper asks for C ≥ 1, so that A and B ≥ 1.
    """

    C: float = 1.0

    def __post_init__(self) -> None:
        check_number("C", self.C)
        if not 1 <= self.C <= 100:
            raise EpisodeError(f"C is {self.C}: it must be from 1 (as in the paper) to 100.")

    @property
    def B(self) -> float:
        return math.expm1(self.C) / self.C

    @property
    def A(self) -> float:
        return 1 + math.exp(self.C) - self.B


def check_counts(**counts: int) -> None:
    """Raise an error unless every count is a whole number of 1 or more."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise EpisodeError(f"{name} is {value!r}: it must be a whole number of 1 or more.")


def check_positive(**values: float) -> None:
    """Raise an error unless every value is a finite number above 0."""
    for name, value in values.items():
        check_number(name, value)
        if value <= 0:
            raise EpisodeError(f"{name} is {value}: it must be above 0.")


@contextmanager
def within_floats() -> Iterator[None]:
    """Explain a calculation that leaves the range of floating-point numbers."""
    try:
        yield
    except (OverflowError, ZeroDivisionError):
        raise EpisodeError(
            "These values lead to numbers that are too large or too small for floating point: "
            "give values nearer to 1."
        ) from None


def check_number(name: str, value: Any) -> None:
    """Raise an error unless the value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EpisodeError(f"{name} is {value!r}: it must be a number.")
    if not -math.inf < value < math.inf:
        raise EpisodeError(f"{name} is {value}: it must be a finite number.")


def ratio(numerator: float, denominator: float) -> float:
    """Divide; a positive number over 0 is infinite, and 0 over 0 is 0."""
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 0.0
