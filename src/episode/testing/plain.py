"""The algorithms once more, deliberately plain: the paper's lines on numpy arrays, nothing shared.

Kept independent of `episode.core` and `episode.federation` on purpose: it is what they are
measured against. Slow, and meant to be read beside the paper. Full participation unless `cohorts`
names each round's clients. `gradient(i, x, stream, k)` is the k-th stochastic gradient of client i
in that stream. Every function returns x̄_0, …, x̄_R.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Gradient = Callable[[int, Vector, str, int], Vector]


@dataclass(frozen=True)
class Setting:
    """A problem and the constants to run it with."""

    gradient: Gradient
    x_0: Vector
    clients: int
    rounds: int
    local_steps: int
    eta: float
    gamma: float
    cohorts: Sequence[Sequence[int]] | None = None

    def cohort(self, r: int) -> Sequence[int]:
        return range(self.clients) if self.cohorts is None else self.cohorts[r]


def mean(vectors: Sequence[Vector]) -> Vector:
    """(1/n) Σ v_i."""
    return np.asarray(np.sum(vectors, axis=0) / len(vectors))


def clipped_step(x: Vector, g: Vector, G: Vector | None, s: Setting, clipping: str) -> Vector:
    """X - η g or x - γ g/‖g‖, as each clipping decides."""
    length = float(np.sqrt(np.sum(g * g))) + 1e-10
    if clipping == "unclipped":
        return x - s.eta * g
    if clipping == "per_step":
        return x - min(s.eta, s.gamma / length) * g
    assert G is not None
    if float(np.sqrt(np.sum(G * G))) > s.gamma / s.eta:
        return x - s.gamma / length * g
    if clipping == "guarded":
        return x - min(s.eta, s.gamma / length) * g
    return x - s.eta * g


def episode(s: Setting, clipping: str = "episodic", reuse_probe: bool = False) -> list[Vector]:
    """Algorithm 1 (and, by its `clipping`, EPISODE-unclipped and EPISODE-guarded)."""
    path = [s.x_0]
    for r in range(s.rounds):
        x_bar, cohort = path[-1], s.cohort(r)
        G_i = {i: s.gradient(i, x_bar, "probe", r) for i in cohort}
        G = mean(list(G_i.values()))
        ends = []
        for i in cohort:
            x = x_bar
            for t in range(s.local_steps):
                if t == 0 and reuse_probe:
                    g = G
                else:
                    g = s.gradient(i, x, "local", r * s.local_steps + t) - G_i[i] + G
                x = clipped_step(x, g, G, s, clipping)
            ends.append(x)
        path.append(mean(ends))
    return path


def fedavg(s: Setting, clipping: str = "unclipped") -> list[Vector]:
    """FedAvg; with `clipping="per_step"`, CELGC."""
    path = [s.x_0]
    for r in range(s.rounds):
        ends = []
        for i in s.cohort(r):
            x = path[-1]
            for t in range(s.local_steps):
                g = s.gradient(i, x, "local", r * s.local_steps + t)
                x = clipped_step(x, g, None, s, clipping)
            ends.append(x)
        path.append(mean(ends))
    return path


def scaffold(s: Setting, clipping: str = "unclipped") -> list[Vector]:
    """SCAFFOLD with the mean gradient of the round as memory (option I's cousin, exact if clipped).

    With an episodic clipping it is EPISODE++, whose memories start from one gradient at x_0.
    """
    path = [s.x_0]
    c_i = [np.zeros_like(s.x_0) for _ in range(s.clients)]
    if clipping in ("episodic", "guarded"):
        c_i = [s.gradient(i, s.x_0, "probe", 0) for i in range(s.clients)]
    for r in range(s.rounds):
        c = mean(c_i)
        ends, memories = [], {}
        for i in s.cohort(r):
            x, gradients = path[-1], []
            for t in range(s.local_steps):
                raw = s.gradient(i, x, "local", r * s.local_steps + t)
                gradients.append(raw)
                x = clipped_step(x, raw - c_i[i] + c, c, s, clipping)
            ends.append(x)
            memories[i] = mean(gradients)
        for i, memory in memories.items():
            c_i[i] = memory
        path.append(mean(ends))
    return path


def synchronous(s: Setting, clipping: str = "per_step") -> list[Vector]:
    """NaiveParallelClip; with `clipping="unclipped"`, parallel SGD. R·I rounds of one step."""
    path = [s.x_0]
    for r in range(s.rounds * s.local_steps):
        cohort = s.cohort(r)
        G = mean([s.gradient(i, path[-1], "probe", r) for i in cohort])
        path.append(clipped_step(path[-1], G, G, s, clipping))
    return path


ROWS: dict[str, Callable[..., list[Vector]]] = {
    "uncorrected": fedavg,
    "remembered": scaffold,
    "resampled": episode,
    "synchronous": synchronous,
}
"""The plain program of each correction; all take the clipping's name."""
