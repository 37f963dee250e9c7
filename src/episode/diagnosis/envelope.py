"""The lowest line a + b·x above all points, and how sure one can be of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from episode.errors import EpisodeError
from episode.randomness import derive

Array = npt.NDArray[np.float64]
DRAWS = 400


@dataclass(frozen=True)
class Envelope:
    """y ≤ intercept + slope·x for all points seen; the ranges hold 90% of the bootstrap's lines."""

    intercept: float
    slope: float
    intercept_range: tuple[float, float]
    slope_range: tuple[float, float]
    points: int

    def at(self, x: float) -> float:
        """The line at x."""
        return self.intercept + self.slope * x

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "intercept": self.intercept,
            "slope": self.slope,
            "intercept_range": list(self.intercept_range),
            "slope_range": list(self.slope_range),
            "points": self.points,
        }


def fit(
    x: Sequence[float], y: Sequence[float], group: Sequence[int], seed: int, least: float = 0.0
) -> Envelope:
    """The line above all points with the smallest mean distance to them; slope ≥ `least`.

    The bootstrap draws groups (points of the trajectory), since the clients of one point are not
    independent. It cannot know what was never visited: a true bound may lie above its range.
    """
    xs, ys, groups = np.asarray(x, float), np.asarray(y, float), np.asarray(group)
    if len(xs) < 2:
        raise EpisodeError(f"An envelope needs 2 points or more, but there are {len(xs)}.")
    line = lowest_line(xs, ys, least)
    names = np.unique(groups)
    members = [np.flatnonzero(groups == name) for name in names]
    generator = np.random.default_rng(derive(seed, "envelope"))
    drawn = []
    for _ in range(DRAWS):
        chosen = np.concatenate(
            [members[k] for k in generator.integers(len(names), size=len(names))]
        )
        drawn.append(lowest_line(xs[chosen], ys[chosen], least))
    low, high = np.quantile(np.array(drawn), [0.05, 0.95], axis=0)
    return Envelope(
        *line, (float(low[0]), float(high[0])), (float(low[1]), float(high[1])), len(xs)
    )


def lowest_line(x: Array, y: Array, least: float = 0.0) -> tuple[float, float]:
    """(a, b) with a + bx ≥ y, a ≥ 0, b ≥ least, that minimises a + b·mean(x).

    For a slope b the best a is max(0, max(y - bx)), so the aim is convex and piecewise linear in b,
    with corners only at slopes of the upper hull and where a becomes 0.
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
    """Indices of the upper hull from left to right, each x once."""
    order = np.lexsort((-y, x))
    hull: list[int] = []
    for k in order:
        if hull and x[k] == x[hull[-1]]:
            continue
        while len(hull) > 1 and _is_below(x, y, hull[-2], hull[-1], int(k)):
            hull.pop()
        hull.append(int(k))
    return np.array(hull)


def _is_below(x: Array, y: Array, i: int, j: int, k: int) -> bool:
    return bool((x[j] - x[i]) * (y[k] - y[i]) >= (y[j] - y[i]) * (x[k] - x[i]))
