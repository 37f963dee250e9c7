"""Silos of numbers: their columns, scaled by a mean and a deviation that all silos agree on.

Each silo tells how many training rows it has and, of each column, their mean and their summed
squared deviations from it. These are combined in the order of the silos, wherever that happens, so
that a simulation and real sites scale alike. No row is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from episode.data import silos
from episode.data.batches import LabelledDataset
from episode.data.storage import PreparedArrays
from episode.errors import EpisodeError
from episode.randomness import Key
from episode.tasks.silo_arrays import SPLITS, number_labels

FEWEST_ROWS = 10
"""A real site with fewer training rows tells no means, which might reveal them."""
Moments = Mapping[str, Any]
"""Of a silo's training rows: `count`, and of each column `mean` and `spread`, as JSON values."""
Scaling = Mapping[str, Any]
"""What all silos agree on: `columns`, and of each the `mean` and the `deviation`."""


class Numbers(LabelledDataset):
    """Rows of numbers and their labels.

    Args:
        rows: The rows, `[examples, columns]`.
        labels: Their labels.
    """

    batches_at_once = 8

    def __init__(self, rows: Tensor, labels: Tensor) -> None:
        super().__init__(labels)
        self._rows = rows

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        chosen = self._selected[indices]
        return self._rows[chosen], self._labels[chosen]

    def compact(self) -> Self:
        return type(self)(self._rows[self._selected], self.labels)


def write_numbers(
    target: Path,
    read: Callable[[], Iterable[silos.Row]],
    labels: Sequence[str] | None,
    columns: Sequence[str],
) -> dict[str, Any]:
    """Write the arrays of silos of numbers, and return what to note of them.

    Args:
        target: Where to write.
        read: Reads all rows.
        labels: All labels, if they were given or agreed on.
        columns: Names of the columns.
    """
    rows = list(read())
    numbers = number_labels(rows, labels)
    info: dict[str, Any] = {"labels": list(numbers), "splits": {}, "columns": list(columns)}
    for split in SPLITS:
        own = [row for row in rows if row.split == split]
        if own:
            values = np.array([numbers_of(row) for row in own], np.float64)
            np.save(target / f"{split}-rows", values.reshape(len(own), len(columns)))
            np.save(target / f"{split}-labels", np.array([numbers[row.label] for row in own]))
            np.save(target / f"{split}-groups", np.array([row.silo for row in own], np.int32))
            info["splits"][split] = len(own)
    return info


def numbers_of(row: silos.Row) -> list[float]:
    """Return the numbers of a row."""
    return [float(text) for text in row.content.split()]


def moments_of(rows: Tensor) -> dict[str, Any]:
    """Return the count of some rows, and mean and summed squared deviations of each column.

    Example:
        >>> moments_of(torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64))
        {'count': 2, 'mean': [2.0, 5.0], 'spread': [2.0, 0.0]}
    """
    mean = rows.mean(0)
    return {"count": len(rows), "mean": mean.tolist(),
            "spread": (rows - mean).square().sum(0).tolist()}  # fmt: skip


def scaling_of(columns: Sequence[str], silos: Sequence[Moments]) -> dict[str, Any]:
    """Combine what silos told into a mean and a deviation of each column, over all their rows.

    Raises:
        EpisodeError: What a silo told makes no sense.

    Example:
        >>> parts = [torch.tensor([[1.0], [3.0]]).double(), torch.tensor([[8.0]]).double()]
        >>> found = scaling_of(["age"], [moments_of(part) for part in parts])
        >>> found["mean"], round(found["deviation"][0], 6)
        ([4.0], 2.94392)
    """
    count, mean = 0, [0.0] * len(columns)
    spread = [0.0] * len(columns)
    for client, told in enumerate(silos):
        more = told["count"]
        values = [*told["mean"], *told["spread"]]
        sound = type(more) is int and more > 0 and len(values) == 2 * len(columns)
        if not sound or not all(math.isfinite(v) for v in values) or min(told["spread"]) < 0:
            raise EpisodeError(f"Silo {client} told means of its columns that make no sense.")
        for k in range(len(columns)):
            gap = told["mean"][k] - mean[k]
            mean[k] += gap * more / (count + more)
            spread[k] += told["spread"][k] + gap * gap * count * more / (count + more)
        count += more
    deviation = [math.sqrt(s / count) for s in spread]
    return {"columns": list(columns), "mean": mean, "deviation": [d or 1.0 for d in deviation]}


def dataset_of(arrays: PreparedArrays, split: str, scaling: Scaling) -> Numbers:
    """Return the rows of a split, with columns of mean 0 and deviation 1 over all silos."""
    mean = torch.tensor(scaling["mean"], dtype=torch.float64)
    deviation = torch.tensor(scaling["deviation"], dtype=torch.float64)
    rows = ((arrays[f"{split}-rows"] - mean) / deviation).float()
    return Numbers(rows, arrays[f"{split}-labels"])


def told_moments(rows: Sequence[silos.Row], columns: Sequence[str]) -> dict[str, Any]:
    """Return what a real site tells of its training rows.

    Raises:
        EpisodeError: They are so few that their means might reveal them.
    """
    if len(rows) < FEWEST_ROWS:
        raise EpisodeError(
            f"This site has {len(rows)} rows to train on: with fewer than {FEWEST_ROWS}, the means "
            "of its columns might reveal them."
        )
    values = torch.tensor([numbers_of(row) for row in rows], dtype=torch.float64)
    return {"columns": list(columns), **moments_of(values)}
