"""The algorithms once more, deliberately plain: the paper's lines on numpy arrays.

This module uses no code of `episode.core` and `episode.federation`, because they are measured
against it. It is slow, and meant to be read beside the paper. All clients take part in every round,
unless `cohorts` names each round's clients. Every program returns x̄_0, …, x̄_R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from episode.core import (
    Episodic,
    FullTrust,
    Guarded,
    MeasuredTrust,
    PerStep,
    ServerAdagrad,
    ServerAdam,
    ServerAdamW,
    ServerMean,
    ServerSGD,
    ServerYogi,
    Unclipped,
)

Vector = npt.NDArray[np.float64]
Gradient = Callable[[int, Vector, str, int], Vector]
"""`gradient(i, x, stream, k)`: the k-th stochastic gradient of client i in that stream, at x."""
Trust = Callable[[float, float, float, float, int], float]
"""λ, from ⟨∇F_i(x; ξ), D⟩, ‖D‖², ‖G‖, γ/η and the number of steps taken, where D = G_i - G."""
Rule = Callable[[float, float, float, float], float]
"""The step size that ‖g‖, ‖G‖ (NaN if there is no G), η and γ lead to."""
Server = Callable[[Vector, Vector], Vector]
"""x̄_{r+1}, from x̄_r and the mean of the clients' models."""
Move = Callable[[Vector, Vector, float, float], Vector]
"""A client's next point, from x, g, the step size and η."""

EPS = 1e-10
RULES: dict[type, Rule] = {
    Unclipped: lambda g, G, eta, gamma: eta,
    PerStep: lambda g, G, eta, gamma: min(eta, gamma / (g + EPS)),
    Episodic: lambda g, G, eta, gamma: gamma / (g + EPS) if G > gamma / eta else eta,  # noqa: SIM300
    Guarded: lambda g, G, eta, gamma: min(eta if gamma / eta >= G else math.inf, gamma / (g + EPS)),
}
"""The rules of the built-in clippings, which are their keys only: the rules are written anew."""


def full_trust() -> Trust:
    """Return the rule by which all of a correction is believed."""
    return lambda held, square, G, threshold, t: 1.0


def measured_trust(full_from: float, lifetime: float) -> Trust:
    """Return the rule by which a correction is believed as far as it is still true."""

    def rule(held: float, square: float, G: float, threshold: float, t: int) -> float:
        share = 0.0 if square == 0 else held / square
        long = max(threshold, math.sqrt(square) / lifetime)
        left = max(1 - t * min(G / long, 1.0) / lifetime, 0.0)
        return left if share >= full_from else left * max(share, 0.0) / full_from

    return rule


TRUSTS: dict[type, Callable[..., Trust]] = {FullTrust: full_trust, MeasuredTrust: measured_trust}
"""The same for how much of a correction is believed, by the fields of the trust."""


@dataclass(frozen=True)
class Setting:
    """A problem, and the constants to run it with."""

    gradient: Gradient
    x_0: Vector
    clients: int
    rounds: int
    local_steps: int
    eta: float
    gamma: float
    cohorts: Sequence[Sequence[int]] | None = None
    server: Server = lambda x, mean: mean
    probe_batches: int = 1
    proximal: float = 0.0
    clips_steps: bool = True
    """Whether γ is the length of a clipped step."""
    local: Callable[[int, int], Move] = lambda i, r: lambda x, g, size, eta: x - size * g
    """How client i steps in round r."""

    def probe(self, i: int, x: Vector, r: int) -> Vector:
        """The mean of the probe's batches of client i in round r."""
        first, count = r * self.probe_batches, self.probe_batches
        return mean([self.gradient(i, x, "probe", first + k) for k in range(count)])

    @property
    def threshold(self) -> float:
        """γ/η; infinite where γ is not the length of a step."""
        return self.gamma / self.eta if self.clips_steps else math.inf

    def cohort(self, r: int) -> Sequence[int]:
        return range(self.clients) if self.cohorts is None else self.cohorts[r]


def mean(vectors: Sequence[Vector]) -> Vector:
    """(1/n) Σ v_i."""
    return np.asarray(np.sum(vectors, axis=0) / len(vectors))


def length(v: Vector) -> float:
    """‖v‖, the Euclidean norm."""
    return float(np.sqrt(np.sum(v * v)))


def step(
    x: Vector, g: Vector, G: Vector | None, s: Setting, rule: Rule, move: Move | None = None
) -> Vector:
    """Return x - size · g, with the size that the rule gives (Algorithm 1, line 10)."""
    G_norm = math.nan if G is None else length(G)
    size = rule(length(g), G_norm, s.eta, s.gamma)
    return x - size * g if move is None else move(x, g, size, s.eta)


def believed(raw: Vector, own: Vector, G: Vector, trust: Trust, s: Setting, t: int) -> Vector:
    """Return the corrected gradient of the t-th step, raw + λ (G - own)."""
    D = own - G
    held, square = float(np.sum(raw * D)), float(np.sum(D * D))
    return raw - trust(held, square, length(G), s.threshold, t) * D


def resampled(s: Setting, rule: Rule, trust: Trust, reuse_probe: bool = False) -> list[Vector]:
    """Algorithm 1: EPISODE and, with other rules, EPISODE-unclipped and EPISODE-guarded."""
    path = [s.x_0]
    for r in range(s.rounds):
        x_bar, cohort = path[-1], s.cohort(r)
        G_i = {i: s.probe(i, x_bar, r) for i in cohort}
        G = mean(list(G_i.values()))
        ends = []
        for i in cohort:
            x, move = x_bar, s.local(i, r)
            for t in range(s.local_steps):
                raw = s.gradient(i, x, "local", r * s.local_steps + t)
                g = believed(raw, G_i[i], G, trust, s, t)
                g = G if t == 0 and reuse_probe else g
                x = step(x, g + s.proximal * (x - x_bar), G, s, rule, move)
            ends.append(x)
        path.append(s.server(path[-1], mean(ends)))
    return path


def uncorrected(s: Setting, rule: Rule) -> list[Vector]:
    """FedAvg; with `PerStep`, CELGC; with a proximal term, FedProx."""
    path = [s.x_0]
    for r in range(s.rounds):
        ends = []
        for i in s.cohort(r):
            x, move = path[-1], s.local(i, r)
            for t in range(s.local_steps):
                g = s.gradient(i, x, "local", r * s.local_steps + t)
                x = step(x, g + s.proximal * (x - path[-1]), None, s, rule, move)
            ends.append(x)
        path.append(s.server(path[-1], mean(ends)))
    return path


def remembered(s: Setting, rule: Rule, trust: Trust, probe_first: bool) -> list[Vector]:
    """SCAFFOLD, with the mean raw gradient of the round as memory.

    With `Episodic` it is EPISODE++, whose memories start from a gradient at x_0.
    """
    path = [s.x_0]
    c_i = [np.zeros_like(s.x_0) for _ in range(s.clients)]
    if probe_first:
        c_i = [s.probe(i, s.x_0, 0) for i in range(s.clients)]
    for r in range(s.rounds):
        c, ends = mean(c_i), []
        for i in s.cohort(r):
            x, gradients, move = path[-1], [], s.local(i, r)
            for t in range(s.local_steps):
                raw = s.gradient(i, x, "local", r * s.local_steps + t)
                gradients.append(raw)
                g = believed(raw, c_i[i], c, trust, s, t)
                x = step(x, g + s.proximal * (x - path[-1]), c, s, rule, move)
            ends.append(x)
            c_i[i] = mean(gradients)
        path.append(s.server(path[-1], mean(ends)))
    return path


def synchronous(s: Setting, rule: Rule, rounds: int) -> list[Vector]:
    """NaiveParallelClip and mini-batch clip; with `Unclipped`, parallel SGD. One step a round."""
    path = [s.x_0]
    for r in range(rounds):
        G = mean([s.probe(i, path[-1], r) for i in s.cohort(r)])
        path.append(step(path[-1], G, G, s, rule))
    return path


def server_sgd(rate: float, momentum: float, nesterov: bool) -> Server:
    """FedAvgM, and DiLoCo's outer step."""
    v: Any = 0.0

    def step(x: Vector, mean: Vector) -> Vector:
        nonlocal v
        pseudo_gradient = x - mean
        v = momentum * v + pseudo_gradient
        return np.asarray(x - rate * (pseudo_gradient + momentum * v if nesterov else v))

    return step


def fed_opt(second: Callable[[Vector, Vector], Vector], given: Mapping[str, float]) -> Server:
    """FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021, Algorithm 2)."""
    rate, beta1, tau = given["rate"], given["beta1"], given["tau"]
    m: Any = 0.0
    v: Any = given["start"] * tau**2

    def step(x: Vector, mean: Vector) -> Vector:
        nonlocal m, v
        delta = mean - x
        m = beta1 * m + (1 - beta1) * delta
        v = second(v, delta**2)
        return np.asarray(x + rate * m / (np.sqrt(v) + tau))

    return step


def server_adam(beta2: float, **given: float) -> Server:
    """FedAdam."""
    return fed_opt(lambda v, square: beta2 * v + (1 - beta2) * square, given)


def server_yogi(beta2: float, **given: float) -> Server:
    """FedYogi."""
    return fed_opt(lambda v, square: v - (1 - beta2) * square * np.sign(v - square), given)


def server_adagrad(**given: float) -> Server:
    """FedAdagrad."""
    return fed_opt(lambda v, square: v + square, given)


def server_adamw(
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Server:
    """AdamW, with bias correction and decoupled decay."""
    m: Any = 0.0
    v: Any = 0.0
    t = 0

    def step(x: Vector, mean: Vector) -> Vector:
        nonlocal m, v, t
        t += 1
        m = beta1 * m + (1 - beta1) * (x - mean)
        v = beta2 * v + (1 - beta2) * (x - mean) ** 2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        return np.asarray(x - rate * weight_decay * x - rate * m_hat / (np.sqrt(v_hat) + eps))

    return step


SERVERS: dict[type, Callable[..., Server]] = {
    ServerMean: lambda: lambda x, mean: mean,
    ServerSGD: server_sgd,
    ServerAdam: server_adam,
    ServerYogi: server_yogi,
    ServerAdagrad: server_adagrad,
    ServerAdamW: server_adamw,
}
"""The built-in server steps, which are their keys only, made from their fields."""


def local_adamw(
    beta1: float, beta2: float, eps: float, weight_decay: float, moments: str
) -> Callable[[int, int], Move]:
    """AdamW on each client, whose gradients are clipped; moments by client, or by round too."""
    held: dict[Any, tuple[Any, Any, int]] = {}

    def of(i: int, r: int) -> Move:
        key = i if moments == "kept" else (i, r)

        def move(x: Vector, g: Vector, size: float, eta: float) -> Vector:
            m, v, t = held.get(key, (0.0, 0.0, 0))
            clipped = size / eta * g
            m, v, t = beta1 * m + (1 - beta1) * clipped, beta2 * v + (1 - beta2) * clipped**2, t + 1
            held[key] = m, v, t
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
            return np.asarray(x - eta * weight_decay * x - eta * m_hat / (np.sqrt(v_hat) + eps))

        return move

    return of
