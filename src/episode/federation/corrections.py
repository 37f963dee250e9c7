"""The maths at the beginning and the end of a round, for the engines and for `FederatedSGD` alike.

Vectors are tensors `[..., d]`, or lists of tensors, one per parameter.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.vectors import Vector, blocks_of

V = TypeVar("V", Tensor, list[Tensor])


def first_memory_is_probed(algorithm: Algorithm) -> bool:
    """Whether memories start from a gradient at x_0 instead of zero.

    A clipping that decides by G_r would never clip with G_r = 0, and could blow up in round 0.
    """
    wanted = algorithm.probe_first or algorithm.clipping.needs_global
    return algorithm.correction.remembers and wanted


def write_shift(out: Vector, G: Vector, local: Vector | None) -> None:
    """out ← G_r - G_r^i, which corrects every local step (line 9); G_r^i is zero if None."""
    if local is None:
        for o, g in zip(blocks_of(out), blocks_of(G), strict=True):
            o.copy_(g)
        return
    for o, g, own in zip(blocks_of(out), blocks_of(G), blocks_of(local), strict=True):
        torch.sub(g, own, out=o)


def new_memory(gradients: V, count: int, old: V | None) -> tuple[V, V]:
    """Return a client's memory after a round, and how it has changed.

    The memory is the mean raw gradient of the round. The popular (x̄ - x_i)/(ηI) equals it only
    without clipping, weight decay and momentum.

    Args:
        gradients: Sum of the round's raw gradients.
        count: How many gradients that is.
        old: Memory before the round; None stands for zero.
    """
    if isinstance(gradients, Tensor):
        memory = gradients / count
        return memory, memory if old is None else memory - old
    pairs = [new_memory(g, count, None if old is None else old[k]) for k, g in enumerate(gradients)]
    return [memory for memory, _ in pairs], [change for _, change in pairs]


def mean_memory(mean: V, change: V, share: float = 1.0) -> V:
    """G ← G + (1/N) Σ_{i∈S} Δ_i: the mean over all N memories, of which S have changed.

    Args:
        mean: Mean of all memories before the round.
        change: Mean change over the cohort.
        share: The cohort's share of all clients, by weight.
    """
    if isinstance(mean, Tensor):
        return mean + change * share
    return [mean_memory(m, c, share) for m, c in zip(mean, change, strict=True)]
