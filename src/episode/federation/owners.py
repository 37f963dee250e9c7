"""Which process of a run serves which client: a pure function of the clients' sizes."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Owners:
    """Clients shared out by size: the largest first, each to the process with the least so far.

    Among equal clients, and among equal processes, the one with the lower number comes first. So
    clients of equal size are dealt out in turn: client c to process c mod W.

    Args:
        sizes: Number of examples of each client.
        ranks: Number W of processes.

    Example:
        >>> owners = Owners([10, 40, 20, 30], ranks=2)
        >>> owners.clients(0), owners.clients(1)
        ([0, 1], [2, 3])
    """

    sizes: Sequence[int]
    ranks: int

    def rank_of(self, client: int) -> int:
        """Return the process that serves a client."""
        return int(self._ranks[client])

    def clients(self, rank: int) -> list[int]:
        """Return the clients of a process, in ascending order."""
        return [int(client) for client in np.flatnonzero(self._ranks == rank)]

    @cached_property
    def checksum(self) -> int:
        """A number that another distribution of the clients does not have, almost surely."""
        return zlib.crc32(self._ranks.astype("<i4").tobytes(), self.ranks)

    @cached_property
    def _ranks(self) -> npt.NDArray[np.int32]:
        sizes = np.asarray(self.sizes, np.int64)
        largest_first = np.argsort(-sizes, kind="stable")
        loads = [(0, rank) for rank in range(self.ranks)]
        found = np.empty(len(sizes), np.int32)
        for client, size in zip(largest_first.tolist(), sizes[largest_first].tolist(), strict=True):
            load, rank = loads[0]
            heapq.heapreplace(loads, (load + size, rank))
            found[client] = rank
        return found
