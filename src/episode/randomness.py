"""Every random choice is a pure function of (seed, client, round, step, stream).

So engines can be compared draw by draw, and a resumed run is the same run: no generator has a
state that a checkpoint could forget.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

Key = int | str


def derive(seed: int, *key: Key) -> int:
    """A 63-bit seed for the stream that `key` names, unrelated to that of any other key."""
    text = "/".join([str(seed), *map(str, key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(seed: int, *key: Key) -> torch.Generator:
    """A CPU generator at the start of the stream that `key` names."""
    return torch.Generator().manual_seed(derive(seed, *key))


def permutation(size: int, seed: int, *key: Key) -> torch.Tensor:
    """The permutation of 0 … size-1 that `key` names, int64 `[size]`."""
    return torch.randperm(size, generator=generator(seed, *key))


def uniform(*keys: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each combination of the (broadcast) integer keys.

    A counter-based generator: the SplitMix64 finaliser, chained over the keys. Vectorised, so the
    noise of a whole table of runs costs one call, and each entry is what a single run would draw.
    """
    state: npt.NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            word = np.asarray(key).astype(np.int64).astype(np.uint64)
            state = _mix(state * _ODD + word + _GOLDEN)
    # 53 bits: every float64 in [0, 1) on an even grid.
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1342543DE82EF95)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
