"""Whether two answers of a site are the same but for rounding.

Fresh batches that hold all of a site's examples once more, in another order, give such answers. To
notice it, the site keeps a few numbers of each of its last answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

_SIZE = 64
_BLOCK = 128 * _SIZE
"""Elements that are added up in their own precision, which is four times as fast."""
_KEPT = 16
"""Answers whose sketches are kept: more than a round is tried."""
_SAME = 1e-5
_HEAD = 16
_ENTRY = _HEAD + 8 * _SIZE


def sketch_of(vector: Tensor) -> Tensor:
    """Return 64 sums of a vector's elements, of which each is in one.

    Example:
        >>> sketch_of(torch.ones(130)).tolist()[:3]
        [3.0, 3.0, 2.0]
    """
    flat = vector.detach().cpu().reshape(-1)
    wide = torch.promote_types(flat.dtype, torch.float32)
    many, whole = len(flat) // _BLOCK * _BLOCK, len(flat) // _SIZE * _SIZE
    sums = (
        flat[:many].view(-1, _BLOCK // _SIZE, _SIZE).sum(1, dtype=wide).sum(0, dtype=torch.float64)
    )
    sums += flat[many:whole].view(-1, _SIZE).sum(0, dtype=torch.float64)
    sums[: len(flat) - whole] += flat[whole:]
    return sums


@dataclass
class Sketches:
    """Sketches of the last answers, each with hashes of what it answered and of the cohort."""

    entries: list[tuple[bytes, bytes, Tensor]] = field(default_factory=list)

    @classmethod
    def read(cls, blob: bytes) -> Sketches:
        """Read what `blob` returned."""
        found = cls()
        for start in range(0, len(blob) - _ENTRY + 1, _ENTRY):
            entry = blob[start : start + _ENTRY]
            values = torch.from_numpy(np.frombuffer(entry[_HEAD:], np.float64).copy())
            found.entries.append((entry[:8], entry[8:_HEAD], values))
        return found

    def blob(self) -> bytes:
        """Return all sketches as bytes."""
        return b"".join(a + b + values.numpy().tobytes() for a, b, values in self.entries)

    def other_cohort_has(self, subject: bytes, members: bytes, values: Tensor) -> bool:
        """Whether another cohort was given the same values about this subject, up to rounding."""
        return any(
            about == subject
            and cohort != members
            and float((old - values).norm()) <= _SAME * float(values.norm())
            for about, cohort, old in self.entries
        )

    def add(self, subject: bytes, members: bytes, values: Tensor) -> None:
        """Keep the sketch of an answer, and forget the oldest ones."""
        self.entries = [*self.entries, (subject, members, values)][-_KEPT:]
