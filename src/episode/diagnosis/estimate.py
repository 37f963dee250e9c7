"""Estimate the constants of Assumption 1, with their uncertainty, from the measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from episode.diagnosis.envelope import RESAMPLES, Envelope, fit
from episode.diagnosis.measure import Curvature, Point
from episode.errors import EpisodeError
from episode.randomness import derive
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import clipping_threshold

USUAL_SHARE = 0.95
"""Share of the corrected steps on the path that clipping should leave alone. The 11σ in the
theorem's γ/η has the same purpose, and σ is estimated with the same share."""


@dataclass(frozen=True)
class Estimates:
    """Estimated constants; ranges contain 90% of a bootstrap over the measured points."""

    smoothness: Envelope
    """L0 + L1‖∇f_i‖, a bound on curvature."""
    smoothness_from: str
    """What smoothness was measured by: "Hessian", or "path" for gradient differences along it."""
    path_smoothness: Envelope
    """The same bound from gradient differences along the path, for comparison."""
    heterogeneity: Envelope
    """κ + ρ‖∇f‖, a bound on client gradients."""
    sigma: float
    """Largest value over points of the 95% quantile of ‖∇F_i - ∇f_i‖."""
    sigma_range: tuple[float, float]
    noise: float
    """Median over points and clients of (E‖∇F_i - ∇f_i‖²)^½."""
    delta: float
    """f(x_0) minus the lowest f seen, a lower bound for Δ."""

    @property
    def L0(self) -> float:
        return self.smoothness.intercept

    @property
    def L1(self) -> float:
        return self.smoothness.slope

    @property
    def kappa(self) -> float:
        return self.heterogeneity.intercept

    @property
    def rho(self) -> float:
        return self.heterogeneity.slope

    @property
    def theorem_threshold(self) -> float:
        """γ/η of Theorem 1 for these estimates; NaN if L0 or Δ is 0, where it does not apply."""
        if self.L0 <= 0 or self.delta <= 0:
            return math.nan
        constants = Constants(self.L0, self.L1, self.sigma, self.kappa, self.rho, self.delta)
        return clipping_threshold(constants, Smoothing())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        s, h = self.smoothness, self.heterogeneity
        return {
            "L0": {"value": self.L0, "range": s.intercept_range},
            "L1": {"value": self.L1, "range": s.slope_range},
            "kappa": {"value": self.kappa, "range": h.intercept_range},
            "rho": {"value": self.rho, "range": h.slope_range},
            "sigma": {"value": self.sigma, "range": self.sigma_range},
            "noise": self.noise,
            "delta": self.delta,
            "smoothness_from": self.smoothness_from,
            "path_smoothness": asdict(self.path_smoothness),
        }


def estimate(points: Sequence[Point], losses: Sequence[float], seed: int) -> Estimates:
    """Fit smoothness and heterogeneity to the points, and summarise the noise."""
    if len(points) < 3:
        raise EpisodeError(
            f"Only {len(points)} points could be measured, but the estimates need 3: the gradient "
            "at the start is (nearly) zero, so start from another model."
        )
    by_hessian = any(p.hessian for p in points)
    along_path = _smoothness([p.path for p in points], seed)
    bounds = [p.noise_bound for p in points]
    norms = [(p.gradient_norm, n, k) for k, p in enumerate(points) for n in p.client_norms]
    return Estimates(
        smoothness=_smoothness([p.hessian for p in points], seed) if by_hessian else along_path,
        smoothness_from="Hessian" if by_hessian else "path",
        path_smoothness=along_path,
        heterogeneity=fit(norms, seed, least=1.0),
        sigma=max(bounds),
        sigma_range=_range_of_largest(bounds, seed),
        noise=float(np.median([n for p in points for n in p.noise])),
        delta=losses[0] - min(losses),
    )


def usual_step_norm(points: Sequence[Point]) -> float:
    """Return the norm that most corrected local steps on the path stay below."""
    return float(np.quantile([n for p in points for n in p.step_norms], USUAL_SHARE))


def _smoothness(by_point: Sequence[Sequence[Curvature]], seed: int) -> Envelope:
    rows = [(c.gradient_norm, c.smoothness, k) for k, found in enumerate(by_point) for c in found]
    return fit(rows, seed)


def _range_of_largest(values: Sequence[float], seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(derive(seed, "largest"))
    drawn = generator.choice(np.asarray(values), (RESAMPLES, len(values))).max(axis=1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    return float(low), float(high)
