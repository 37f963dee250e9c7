"""The lowest line a + b·x above all points, with the uncertainty of a and b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from episode.errors import EpisodeError
from episode.randomness import derive

Array = npt.NDArray[np.float64]
RESAMPLES = 400
"""Bootstrap samples."""


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
