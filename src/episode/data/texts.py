"""Texts of unequal length as a dataset whose batches end with their longest text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from episode.data.batches import LabelledDataset
from episode.data.storage import PreparedArrays
from episode.randomness import Key


class TextBatch(NamedTuple):
    """A batch: tokens `[columns · batch, time]` (all first texts, then all second ones)."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Sequences:
    """Texts one after the other: number i is `tokens[offsets[i] : offsets[i + 1]]`."""

    tokens: Tensor
    offsets: Tensor


class Texts(LabelledDataset):
    """Labelled texts, one or more per example (SNLI has two), or a selection of them."""

    batches_at_once = 4  # batches are small: with the code in the cache, four times as fast

    def __init__(self, columns: Sequence[Sequences], labels: Tensor) -> None:
        self._tokens = [column.tokens.numpy() for column in columns]
        starts = [column.offsets[:-1] for column in columns]
        lengths = [column.offsets.diff() for column in columns]
        # One row per example, so that one look-up finds everything that a batch needs.
        self._index = torch.stack([*starts, *lengths, labels.long()], dim=1)
        super().__init__(self._index[:, -1])

    @classmethod
    def from_prepared(cls, arrays: PreparedArrays, split: str, columns: int) -> Self:
        """Return a split of a prepared corpus."""
        sequences = [
            Sequences(arrays[f"{split}-{c}-tokens"], arrays[f"{split}-{c}-offsets"])
            for c in range(columns)
        ]
        return cls(sequences, arrays[f"{split}-labels"])

    def gather(self, indices: Tensor, key: Sequence[Key] = ()) -> TextBatch:
        """Return the batch, padded to its longest text; padding repeats each text's last word."""
        # In numpy: torch takes two and a half times as long for so many small operations.
        index = self._index.numpy()[self._selected[indices].numpy()]
        starts, lengths = np.ascontiguousarray(index[:, :-1].T).reshape(2, -1)
        positions = starts[:, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
        parts = zip(self._tokens, np.split(positions, len(self._tokens)), strict=True)
        tokens = np.concatenate([column[inside] for column, inside in parts])
        labels = np.ascontiguousarray(index[:, -1])
        return TextBatch(*map(torch.from_numpy, (tokens, lengths, labels)))
