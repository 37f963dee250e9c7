"""Problems whose constants are known exactly, to hold estimators and the theorem against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from episode.errors import EpisodeError
from episode.tasks.closed_form import ClosedForm
from episode.tasks.quadratics import QuadraticTask
from episode.tasks.relaxed_smooth import RelaxedSmooth
from episode.tasks.synthetic import Quartics, minimum
from episode.theory.constants import Constants

Polynomial = np.polynomial.Polynomial


@dataclass(frozen=True)
class KnownProblem:
    """A task and what Assumption 1 says about it, from its formulas."""

    task: ClosedForm
    constants: Constants


def relaxed_smooth(settings: RelaxedSmooth | None = None, seed: int = 0) -> KnownProblem:
    """The problem in d dimensions with chosen constants; see `tasks.relaxed`."""
    s = settings or RelaxedSmooth()
    task = s.build(seed, "cpu")
    delta = task.mean(task.x_0)[0].item()
    if delta <= 0:
        raise EpisodeError(f"start_norm is {s.start_norm}: it must be above 0 to have a way to go.")
    return KnownProblem(task, Constants(s.L0, s.L1, s.sigma, s.kappa, s.rho, delta))


def quartics(
    heterogeneity: float, L1: float = 1.0, seed: int = 0, x_0: float = 1.0
) -> KnownProblem:
    """The paper's two quartics (appendix E.2), with the smallest κ for ρ = 2 and L0 for a given L1.

    A quartic is (L0, L1)-smooth for every L1 > 0, with an L0 that grows as L1 falls.
    """
    if L1 <= 0:
        raise EpisodeError(f"L1 is {L1}: quartics are not L-smooth, so it must be above 0.")
    task = Quartics([heterogeneity], x_0, seeds=[seed])
    value = task.mean(task.x_0)[0].item()
    L0 = max(_sup(f.deriv(), f, L1) for f in _slopes(heterogeneity))
    kappa = smallest_kappa(heterogeneity)
    delta = value - minimum(heterogeneity)[1]
    return KnownProblem(task, Constants(L0, L1, 1.0, kappa, 2.0, delta))


def quadratics(slopes: Sequence[float], curvature: float = 1.0, noise: float = 0.0) -> KnownProblem:
    """f_i = ½ax² + b_i x: L0 = a, L1 = 0, ρ = 1, κ = max |b_i - mean b|; from x_0 = 0."""
    b = torch.tensor(slopes, dtype=torch.float64)[:, None]
    task = QuadraticTask(torch.full_like(b, curvature), b, torch.zeros(1, dtype=b.dtype), noise)
    delta = float(b.mean() ** 2) / (2 * curvature)
    if delta == 0:
        raise EpisodeError("The slopes sum to 0, so the start is the minimum: change one of them.")
    kappa = float((b - b.mean()).abs().max())
    return KnownProblem(task, Constants(curvature, 0.0, noise, kappa, 1.0, delta))


def paper_kappa(H: float) -> float:
    """κ(H) of Proposition 1, as the end of its proof defines it (for H ≥ 1, with ρ = 2)."""
    x_2 = (-18 + math.sqrt(18**2 + 480 * H)) / 24
    return 9 * x_2**2 + 10 * H * x_2 + 25 * H**2 / 3 + 45 * H + 100


def smallest_kappa(H: float, rho: float = 2.0) -> float:
    """max over x and i of |f_i'(x)| - ρ|f'(x)|: what κ must at least be; needs ρ > 1."""
    first, second = _slopes(H)
    return max(_sup(f, (first + second) / 2, rho) for f in (first, second))


def _slopes(H: float) -> list[Polynomial]:
    """f_1' and f_2'."""
    return [Polynomial([1, 2 * c, -9, 4]) for c in (H, -2 * H)]


def _sup(p: Polynomial, q: Polynomial, weight: float) -> float:
    """sup |p| - weight·|q| over the line, exactly: between the roots of p and q it is a polynomial,

    so its maximum is at such a root or where a derivative of p ± weight·q is zero. It must fall at
    both ends, which it does where q has the higher degree, or a larger leading coefficient.
    """
    polynomials = (p, q, (p - weight * q).deriv(), (p + weight * q).deriv())
    roots = np.concatenate([r.roots() for r in polynomials])
    x = roots[abs(roots.imag) < 1e-9].real
    return float(np.max(abs(p(x)) - weight * abs(q(x))))
