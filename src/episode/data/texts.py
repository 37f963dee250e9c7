"""Texts of unequal length as a dataset: batches are cut to their longest text, by indexing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from episode.data.home import Prepared
from episode.randomness import Key


class TextBatch(NamedTuple):
    """Tokens `[columns · batch, time]` (all first texts, then all second ones), lengths, labels."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Sequences:
    """Texts one after the other: number i is `tokens[offsets[i] : offsets[i + 1]]`."""

    tokens: Tensor
    offsets: Tensor


class Texts:
    """Labelled texts, one or more per example (SNLI has two), or a selection of them."""

    def __init__(self, columns: Sequence[Sequences], labels: Tensor, rows: Tensor | None = None):
        self.columns = columns
        self._labels = labels
        self._rows = rows

    @classmethod
    def of(cls, prepared: Prepared, split: str, columns: int) -> Texts:
        """A split of a prepared corpus."""
        sequences = [
            Sequences(prepared[f"{split}-{c}-tokens"], prepared[f"{split}-{c}-offsets"])
            for c in range(columns)
        ]
        return cls(sequences, prepared[f"{split}-labels"])

    def __len__(self) -> int:
        return len(self._labels if self._rows is None else self._rows)

    @property
    def labels(self) -> Tensor:
        """The labels of the selected texts."""
        return self._labels if self._rows is None else self._labels[self._rows]

    def select(self, indices: Tensor) -> Texts:
        """A view of some of these texts; nothing is copied but their numbers."""
        rows = indices if self._rows is None else self._rows[indices]
        return Texts(self.columns, self._labels, rows)

    def gather(self, indices: Tensor, key: Sequence[Key] = ()) -> TextBatch:
        """The batch of these texts, padded with word 0 to the longest of them."""
        rows = indices if self._rows is None else self._rows[indices]
        starts = torch.cat([c.offsets[rows] for c in self.columns])
        lengths = torch.cat([c.offsets[rows + 1] for c in self.columns]) - starts
        time = torch.arange(int(lengths.max()))
        positions = starts[:, None] + time
        beyond = time >= lengths[:, None]
        pieces = []
        for k, column in enumerate(self.columns):
            part = slice(k * len(rows), (k + 1) * len(rows))
            inside = positions[part].clamp_(max=len(column.tokens) - 1)
            pieces.append(column.tokens[inside].masked_fill_(beyond[part], 0))
        tokens = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        return TextBatch(tokens, lengths, self._labels[rows])
