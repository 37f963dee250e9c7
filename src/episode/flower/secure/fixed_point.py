"""Real numbers as integers modulo 2^64, in which masks cancel exactly and sums have no order.

A number v becomes round(v · 2^bits). A site refuses to send one that is beyond its share of the
range, so a sum over the cohort is at most 2^61 and never wraps around. A sum beyond 2^62 was not
made of such numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]
SUM_BITS = 61
"""The sum of a cohort is at most 2^61, so that most words are no honest sum."""
HEADROOM = 24
"""Values may grow to 2^24 times the size that sites agreed on before the range is widened."""
HEAD = 128
"""Bytes that numpy writes before a vector."""
_CHUNK = 1 << 14
"""Values that are converted at a time: they stay in the processor's cache."""


class OutOfRangeError(Exception):
    """A value cannot be sent: it is beyond the range of its fixed-point numbers."""


def new_words(size: int) -> Words:
    """Return words to be written, with room before them for the head of a message's array."""
    return np.frombuffer(bytearray(HEAD + 8 * size), np.uint64, offset=HEAD)


def buffer_of(words: Words) -> bytearray:
    """Return what `new_words` has made its words from, head and all."""
    view = words.base
    assert isinstance(view, memoryview)
    assert isinstance(view.obj, bytearray)
    return view.obj


def bits_for(exponent: int, sites: int) -> int:
    """Return how many binary places fit for values up to 2^(exponent + HEADROOM).

    Args:
        exponent: The values that sites have agreed on are less than 2^exponent.
        sites: Number of sites that may be in a sum.

    Example:
        >>> bits_for(0, 8)
        34
    """
    return SUM_BITS - HEADROOM - exponent - (sites - 1).bit_length()


def exponent_of(values: Tensor) -> int:
    """Return the least e with |v| < 2^e for all finite values; -1074 if they are all zero.

    Example:
        >>> exponent_of(torch.tensor([0.5, -3.0]))
        2
    """
    finite = values[torch.isfinite(values)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return math.frexp(largest)[1] if largest else -1074


def encode(
    values: Tensor, bits: int, sites: int, share: float = 1.0, out: Words | None = None
) -> Words:
    """Return values as words; whole numbers are exact with 0 bits.

    Args:
        values: Finite numbers, as a vector.
        bits: Binary places.
        sites: Number of sites in the sum.
        share: What values are multiplied by, if they are not whole numbers.
        out: Where the words go; by default, to an array of their own.

    Raises:
        OutOfRangeError: A value is not finite, or beyond a site's share of the range.

    Example:
        >>> encode(torch.tensor([1.5, -0.25]), bits=2, sites=3).astype(np.int64).tolist()
        [6, -1]
    """
    limit = 2**SUM_BITS // sites
    words = np.empty(len(values), np.uint64) if out is None else out
    signed = words.view(np.int64)
    if values.is_floating_point():
        known = torch.promote_types(values.dtype, torch.float32)  # numpy has no bfloat16
        plain = values.detach().cpu().to(known).numpy()
        largest = _round_into(signed, plain, share * 2.0**bits)
        if not largest <= limit:  # or NaN
            sizes = math.ldexp(largest, -bits), math.ldexp(limit, -bits)
            raise OutOfRangeError(f"{sizes[0]:.3g}, where ±{sizes[1]:.3g} can be sent")
        return words
    signed[:] = values.detach().cpu().to(torch.int64).numpy()
    most = max(int(signed.max(initial=0)), -int(signed.min(initial=0)))
    if most > limit:
        raise OutOfRangeError(f"{most}, where ±{limit} can be sent")
    return words


def _round_into(
    signed: npt.NDArray[np.int64], plain: npt.NDArray[np.floating[Any]], factor: float
) -> float:
    """Write round(v · factor) for each value; return the largest size, or NaN if one is NaN."""
    sizes = (plain.max(), -plain.min()) if len(plain) else (0.0,)
    largest = math.nan if np.isnan(sizes[0]) else float(np.rint(factor * np.float64(max(sizes))))
    if not largest < 2.0**63:  # no such integer, so nothing to write
        return largest
    scaled = np.empty(min(_CHUNK, len(plain)))
    for start in range(0, len(plain), _CHUNK):
        part = plain[start : start + _CHUNK]
        rounded = np.multiply(part, factor, out=scaled[: len(part)], dtype=np.float64)
        np.rint(rounded, out=rounded)
        signed[start : start + len(part)] = rounded
    return largest


def add_up(answers: Sequence[Words]) -> Words:
    """Return the sum of words, modulo 2^64.

    Example:
        >>> add_up([np.array([2**64 - 1], np.uint64), np.array([3], np.uint64)])
        array([2], dtype=uint64)
    """
    total = np.empty_like(answers[0])
    for start in range(0, len(total), _CHUNK):
        part = total[start : start + _CHUNK]
        part[:] = answers[0][start : start + _CHUNK]
        for words in answers[1:]:
            part += words[start : start + _CHUNK]
    return total


def decode(words: Words, bits: int) -> Tensor:
    """Return the numbers that words stand for, in float64.

    Raises:
        OutOfRangeError: A word is no sum of values that were in range.

    Example:
        >>> words = encode(torch.tensor([1.5]), 8, 3) + encode(torch.tensor([-4.0]), 8, 3)
        >>> decode(words, 8)
        tensor([-2.5000], dtype=torch.float64)
    """
    signed, values = words.view(np.int64), np.empty(len(words))
    limit = 2 ** (SUM_BITS + 1)
    for start in range(0, len(words), _CHUNK):
        part = signed[start : start + _CHUNK]
        if part.max() > limit or part.min() < -limit:
            raise OutOfRangeError("it is no sum of values that were in range")
        np.multiply(part, 2.0**-bits, out=values[start : start + _CHUNK], dtype=np.float64)
    return torch.from_numpy(values)
