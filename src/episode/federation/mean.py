"""The weighted mean of clients' replies, added up in the cohort's order.

The order is fixed, so the result does not depend on which thread or site answered first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

import torch

from episode.federation.protocols import Reply
from episode.federation.state import Buffers


def mean_of(replies: Iterable[Reply], weights: Sequence[float]) -> Reply:
    """Return the weighted mean of replies that are all here; metrics become lists."""
    total = sum(weights)
    mean = OrderedSum([weight / total for weight in weights])
    for place, reply in enumerate(replies):
        mean.add(place, reply)
    return mean.reply


class OrderedSum:
    """Sum of replies, each times its share, added in order by whichever thread brings the next one.

    That thread has the vector in its cache. A reply that comes before its turn waits as a copy.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self.reply = Reply({})
        self._shares = shares
        self._early: dict[int, Reply] = {}
        self._next = 0
        self._lock = Lock()

    def add(self, place: int, reply: Reply) -> None:
        """Add the reply of the client at this place in the cohort."""
        with self._lock:
            if place != self._next:
                if "x" in reply.vectors:  # the worker's next client overwrites it
                    reply.vectors["x"] = reply.vectors["x"].clone()
                self._early[place] = reply
                return
            while True:
                _add(self.reply, reply, self._shares[self._next])
                self._next += 1
                if self._next not in self._early:
                    return
                reply = self._early.pop(self._next)


def _add(mean: Reply, reply: Reply, share: float) -> None:
    """mean ← mean + share · reply, for vectors and float buffers; integer buffers: the maximum."""
    for name, vector in reply.vectors.items():
        if name in mean.vectors:
            mean.vectors[name].add_(vector, alpha=share)
        else:
            mean.vectors[name] = vector * share
    if reply.buffers is not None:
        mean.buffers = _add_buffers(mean.buffers, reply.buffers, share)
    for name, value in reply.metrics.items():
        mean.metrics.setdefault(name, []).append(value)


def _add_buffers(mean: Buffers | None, buffers: Buffers, share: float) -> Buffers:
    if mean is None:
        return Buffers(buffers.floats * share, buffers.integers)
    return Buffers(
        mean.floats.add_(buffers.floats, alpha=share),
        torch.maximum(mean.integers, buffers.integers),
    )
