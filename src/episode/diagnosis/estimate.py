"""Estimate the constants of Assumption 1, with their uncertainty, from the measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from episode.diagnosis.measure import Curvature, Point
from episode.errors import EpisodeError
from episode.randomness import derive
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import clipping_threshold

Array = npt.NDArray[np.float64]
RESAMPLES = 400
"""Bootstrap samples."""
USUAL_SHARE = 0.95
"""Share of the corrected steps on the path that clipping should leave alone. The 11σ in the
theorem's γ/η has the same purpose, and σ is estimated with the same share."""


@dataclass(frozen=True)
class Envelope:
    """A line with y ≤ intercept + slope·x at every point that was measured.

    The ranges contain 90% of the lines fitted to bootstrap samples.
    """

    intercept: float
    slope: float
    intercept_range: tuple[float, float]
    slope_range: tuple[float, float]
    points: int


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


def fit(rows: Sequence[tuple[float, float, int]], seed: int, least: float = 0.0) -> Envelope:
    """Fit the line above all (x, y, group) with the smallest mean distance; slope ≥ `least`.

    The bootstrap resamples groups (points of the descent), because the clients at one point are not
    independent. It knows nothing about unvisited places: the true bound may lie above its range.
    """
    if len(rows) < 2:
        raise EpisodeError(f"An envelope needs 2 points or more, but there are {len(rows)}.")
    xs, ys, groups = np.array(rows, float).T
    line = lowest_line(xs, ys, least)
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    generator = np.random.default_rng(derive(seed, "envelope"))
    lines = []
    for _ in range(RESAMPLES):
        drawn = generator.integers(len(members), size=len(members))
        chosen = np.concatenate([members[k] for k in drawn])
        lines.append(lowest_line(xs[chosen], ys[chosen], least))
    low, high = np.quantile(lines, [0.05, 0.95], axis=0).tolist()
    return Envelope(*line, (low[0], high[0]), (low[1], high[1]), len(rows))


def lowest_line(x: Array, y: Array, least: float = 0.0) -> tuple[float, float]:
    """Return (a, b) with a + bx ≥ y, a ≥ 0 and b ≥ least that minimises a + b·mean(x).

    For a slope b the best a is max(0, max(y - bx)), so the objective is convex and piecewise linear
    in b, with corners only at slopes of the upper hull and where a becomes 0.
    """
    hull = _upper_hull(x, y)
    hx, hy = x[hull], y[hull]
    slopes = np.diff(hy) / np.diff(hx)
    positive = x > 0
    through_origin = (y[positive] / x[positive]).max(initial=least)
    candidates = np.clip(np.concatenate([slopes, [least, through_origin]]), least, None)
    a = np.maximum(0.0, (hy - candidates[:, None] * hx).max(axis=1))
    best = int(np.argmin(a + candidates * x.mean()))
    return float(a[best]), float(candidates[best])


def _upper_hull(x: Array, y: Array) -> npt.NDArray[np.intp]:
    """Return the indices of the upper hull from left to right, each x once."""
    hull: list[int] = []
    for k in np.lexsort((-y, x)):
        if hull and x[k] == x[hull[-1]]:
            continue
        while len(hull) > 1:
            i, j = hull[-2:]
            if (x[j] - x[i]) * (y[k] - y[i]) < (y[j] - y[i]) * (x[k] - x[i]):
                break  # point j is above the line from point i to point k
            hull.pop()
        hull.append(int(k))
    return np.array(hull)
