"""Every random choice is a pure function of (seed, client, round, step, stream).

So engines can be compared draw by draw, and a resumed run is the same run: there is no generator
whose state a checkpoint would have to store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch

Key = int | str


def derive(seed: int, *key: Key) -> int:
    """Return a 63-bit seed for the stream that `key` names, independent of all other keys."""
    text = "/".join([str(seed), *map(str, key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(seed: int, *key: Key) -> torch.Generator:
    """Return a CPU generator at the start of the stream that `key` names."""
    return torch.Generator().manual_seed(derive(seed, *key))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let layers such as dropout draw from this seed on, one thread at a time.

    They draw from torch's own generator, of which a process has only one.
    """
    with _TURN:
        torch.manual_seed(seed)
        yield


_TURN = Lock()


def permutation(size: int, seed: int, *key: Key) -> torch.Tensor:
    """Return the permutation of 0 … size-1 that `key` names, int64 `[size]`."""
    return torch.randperm(size, generator=generator(seed, *key))


def sample(size: int, count: int, seed: int, *key: Key) -> list[int]:
    """Return `count` of the numbers 0 … size-1 without replacement, in ascending order.

    The work is proportional to `count`, not to `size` (Floyd's algorithm): the k-th draw is from
    the first size-count+k+1 numbers, and one that was drawn before stands for the last of them.
    """
    ends = np.arange(size - count, size)
    drawn = (uniform(derive(seed, *key), np.arange(count)) * (ends + 1)).astype(np.int64)
    chosen: set[int] = set()
    for number, last in zip(drawn.tolist(), ends.tolist(), strict=True):
        chosen.add(last if number in chosen else number)
    return sorted(chosen)


def uniform(*keys: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each combination of the (broadcast) integer keys.

    This is a counter-based generator: the SplitMix64 finaliser, chained over the keys. It is
    vectorised, so that the noise of a whole table of runs costs one call; each entry is what a
    single run would draw.
    """
    state: npt.NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            word = np.asarray(key).astype(np.int64).astype(np.uint64)
            state = _mix(state * _ODD + word + _GOLDEN)
    # 53 bits give evenly spaced float64 values in [0, 1).
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1342543DE82EF95)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
