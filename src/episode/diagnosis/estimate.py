"""From measured points to the constants of Assumption 1, with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from episode.diagnosis.envelope import DRAWS, Envelope, fit
from episode.diagnosis.measure import Curvature, Point
from episode.errors import EpisodeError
from episode.randomness import derive
from episode.theory.constants import Constants


@dataclass(frozen=True)
class Estimates:
    """What the points say about the constants; ranges hold 90% of a bootstrap over points."""

    smoothness: Envelope
    """L0 + L1‖∇f_i‖."""
    smoothness_from: str
    """Hessian or path: what the smoothness was measured by."""
    path_smoothness: Envelope
    """The same from gradient differences along the path: a second opinion."""
    heterogeneity: Envelope
    """κ + ρ‖∇f‖."""
    sigma: float
    """The largest over points of what 95% of the ‖∇F_i - ∇f_i‖ there stay below."""
    sigma_range: tuple[float, float]
    noise: float
    """The median over points and clients of (E‖∇F_i - ∇f_i‖²)^½."""
    delta: float
    """f(x_0) less the lowest f seen: Δ is at least that."""

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

    def constants(self) -> Constants | None:
        """For the theorem; None where L0 or Δ was not seen to be above 0, as it must be there."""
        if self.L0 <= 0 or self.delta <= 0:
            return None
        return Constants(self.L0, self.L1, self.sigma, self.kappa, self.rho, self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        s, h = self.smoothness, self.heterogeneity
        return {
            "L0": {"value": self.L0, "range": list(s.intercept_range)},
            "L1": {"value": self.L1, "range": list(s.slope_range)},
            "kappa": {"value": self.kappa, "range": list(h.intercept_range)},
            "rho": {"value": self.rho, "range": list(h.slope_range)},
            "sigma": {"value": self.sigma, "range": list(self.sigma_range)},
            "noise": self.noise,
            "delta": self.delta,
            "smoothness_from": self.smoothness_from,
            "path_smoothness": self.path_smoothness.to_dict(),
        }


def estimate(points: Sequence[Point], losses: Sequence[float], seed: int) -> Estimates:
    """The envelopes of smoothness and heterogeneity, and the noise."""
    if len(points) < 3:
        raise EpisodeError(
            f"Only {len(points)} points were measured before the path ended, and an envelope needs "
            "3: the start is (nearly) stationary, so start from another model."
        )
    by_hessian = any(p.hessian for p in points)
    along_path = _envelope(points, [p.path for p in points], seed)
    return Estimates(
        _envelope(points, [p.hessian for p in points], seed) if by_hessian else along_path,
        "Hessian" if by_hessian else "path",
        along_path,
        fit(
            [p.gradient_norm for p in points for _ in p.client_norms],
            [n for p in points for n in p.client_norms],
            [k for k, p in enumerate(points) for _ in p.client_norms],
            seed,
            least=1.0,
        ),
        max(p.noise_bound for p in points),
        _range_of_largest([p.noise_bound for p in points], seed),
        float(np.median([n for p in points for n in p.noise])),
        losses[0] - min(losses),
    )


def _envelope(
    points: Sequence[Point], curvatures: Sequence[Sequence[Curvature]], seed: int
) -> Envelope:
    rows = [(c, k) for k, found in enumerate(curvatures) for c in found]
    return fit(
        [c.gradient_norm for c, _ in rows],
        [c.smoothness for c, _ in rows],
        [k for _, k in rows],
        seed,
    )


def _range_of_largest(values: Sequence[float], seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(derive(seed, "largest"))
    drawn = generator.choice(np.asarray(values), (DRAWS, len(values))).max(axis=1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    return float(low), float(high)
