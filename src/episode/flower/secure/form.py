"""The numbers of a masked answer in their order, as sites write and the server reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.federation.protocols import Reply
from episode.federation.state import Buffers
from episode.flower.messages import Ask
from episode.flower.secure.fixed_point import OutOfRangeError, Words, decode, encode, new_words

METRIC_BITS = 24
METRIC_LIMIT = 2.0**26
"""Metrics are only shown: a larger one is sent as this."""
WEIGHT_BITS = 50
EXPONENTS = range(-128, 128)
"""Sizes that sites can name in the first exchange, as powers of two."""


class RangeError(Exception):
    """A site's values are beyond the range."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Segment:
    """A stretch of numbers of one kind."""

    name: str
    size: int
    bits: int


def segments_of(
    ask: Ask, algorithm: Algorithm, bits: Mapping[str, int], x: Tensor, buffers: Buffers
) -> list[Segment]:
    """Return the form of the answer to a probe or to local steps."""
    form = ask.form(algorithm)
    found = [Segment(name, x.numel(), bits[kind_of(name)]) for name in form.vectors]
    if form.has_buffers:
        found.append(Segment("floats", buffers.floats.numel(), bits["floats"]))
        found.append(Segment("integers", buffers.integers.numel(), 0))
    found += [Segment(f"metric {name}", 1, METRIC_BITS) for name in form.metrics]
    return [*found, Segment("weight", 1, WEIGHT_BITS)]


def kind_of(name: str) -> str:
    """Return which of the agreed ranges holds for a vector: a change is made of gradients."""
    return "x" if name == "x" else "gradient"


def write_reply(
    reply: Reply, before: Buffers, share: float, segments: Sequence[Segment], sites: int
) -> Words:
    """Return a site's reply as words.

    Args:
        reply: The reply, of finite numbers.
        before: The buffers that the site was sent; what is infinite there is not sent.
        share: The site's weight.
        segments: The form of the answer.
        sites: Number of sites in the sum.

    Raises:
        RangeError: A value is beyond its range.
    """
    values: dict[str, Tensor] = dict(reply.vectors)
    if reply.buffers is not None:
        finite = torch.isfinite(before.floats)
        floats = reply.buffers.floats
        values["floats"] = torch.where(finite, floats, 0.0) if floats.numel() else floats
        values["integers"] = reply.buffers.integers
    for name, value in reply.metrics.items():
        number = 0.0 if value is None else float(value)
        clamped = max(-METRIC_LIMIT, min(METRIC_LIMIT, number))
        values[f"metric {name}"] = torch.tensor([clamped], dtype=torch.float64)
    values["weight"] = torch.ones(1, dtype=torch.float64)
    return write_values(values, segments, sites, share)


def write_values(
    values: Mapping[str, Tensor], segments: Sequence[Segment], sites: int, share: float = 1.0
) -> Words:
    """Return values as the words of one answer, segment by segment; metrics have no weight."""
    words = new_words(sum(segment.size for segment in segments))
    start = 0
    for segment in segments:
        weight = 1.0 if segment.name.startswith("metric ") else share
        stop = start + segment.size
        try:
            encode(values[segment.name], segment.bits, sites, weight, words[start:stop])
            start = stop
        except OutOfRangeError as error:
            kind = segment.name if segment.name in ("floats", "integers") else kind_of(segment.name)
            raise RangeError(kind, f"Its {segment.name} has a value of {error}") from None
    return words


def read_values(words: Words, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return the sums of an exchange, by segment, in float64.

    Raises:
        OutOfRangeError: A word is no sum of values that were in range.
    """
    edges = np.cumsum([segment.size for segment in segments])[:-1]
    parts = np.split(words, edges)
    return {s.name: decode(part, s.bits) for s, part in zip(segments, parts, strict=True)}


def read_reply(
    sums: Mapping[str, Tensor], ask: Ask, algorithm: Algorithm, x: Tensor, before: Buffers, n: int
) -> Reply:
    """Return the mean of an exchange; each metric is the cohort's mean, n times.

    Args:
        sums: The sums, by segment.
        ask: What was asked.
        algorithm: The algorithm.
        x: x̄_r, for the type of vectors.
        before: The buffers that sites were sent.
        n: Number of sites in the sum.
    """
    weight = float(sums["weight"])
    form = ask.form(algorithm)
    vectors = {name: sums[name].div_(weight).to(x) for name in form.vectors}  # no second copy
    reply = Reply(vectors)
    if form.has_buffers:
        floats = (sums["floats"] / weight).to(before.floats)
        floats = torch.where(torch.isfinite(before.floats), floats, before.floats)
        integers = (sums["integers"] / n).round().to(before.integers)
        reply.buffers = Buffers(floats, integers)
    measured = ask.measured(algorithm, 0, corrects=True)
    corrections = {"correction_norm", "gradient_norm"}
    for name in form.metrics:
        mean = float(sums[f"metric {name}"]) / n
        known = name in measured or name in corrections
        reply.metrics[name] = [mean if known else None] * n
    return reply


def write_exponents(exponents: Mapping[str, int], sites: int) -> Words:
    """Return the sizes of a site's values as counts: whose size is which, the sum does not show."""
    values = {}
    for name, exponent in exponents.items():
        row = torch.zeros(len(EXPONENTS), dtype=torch.int64)
        row[min(max(exponent, EXPONENTS.start), EXPONENTS.stop - 1) - EXPONENTS.start] = 1
        values[name] = row
    return write_values(values, SCALE_FORM, sites)


SCALE_FORM = [Segment(name, len(EXPONENTS), 0) for name in ("gradient", "floats", "examples")]


def read_exponent(counts: Tensor) -> int:
    """Return the largest size that any site has named."""
    return EXPONENTS.start + int(torch.nonzero(counts).max())
