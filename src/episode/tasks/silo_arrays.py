"""Arrays of silos' rows, and which rows each silo trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episode.data import silos
from episode.data.images import verify_images
from episode.data.partition import Partition
from episode.data.sources.source import not_trained_on
from episode.data.storage import PreparedArrays
from episode.data.texts import Corpus
from episode.data.vocabulary import Vocabulary
from episode.errors import EpisodeError
from episode.randomness import permutation
from episode.tasks.partitioned import VALIDATION_SHARE

SPLITS = ("train", "validation", "test")
NO_ROWS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class SiloSplit:
    """A silo's training rows, and those that it holds out, as indices into the split's rows."""

    train: Tensor
    held_out: Tensor
    own_file: bool
    """Whether the held-out rows are those of a file; else they are rows of the training split."""
    kept: Tensor = NO_ROWS
    """Rows of the training split that are held out because of `task.holdout`."""


def split_silo(
    silo: int, rows: Mapping[str, Tensor], evaluate_on: str, test_share: float
) -> SiloSplit:
    """Split one silo's rows; the same for every seed.

    Args:
        silo: The silo's number, which the split depends on.
        rows: The silo's rows in each split that it has a file for.
        evaluate_on: `test` or `validation`.
        test_share: Share of the rows to hold out for testing, if there is no test file.

    Raises:
        EpisodeError: No row is left to train on.
    """
    left = rows.get("train", NO_ROWS)
    left = left[permutation(len(left), 0, "silo", silo)]
    held_out = rows.get(evaluate_on, NO_ROWS)
    for split, share in (("test", test_share), ("validation", VALIDATION_SHARE)):
        unused = split == "validation" and evaluate_on == "test"
        if unused or len(rows.get(split, NO_ROWS)):
            continue
        taken = max(1, round(share * len(left)))
        if split == evaluate_on:
            held_out = left[:taken]
        left = left[taken:]
    if not len(left):
        raise EpisodeError(f"Silo {silo} has too few rows to train on: it needs more data.")
    own_file = bool(len(rows.get(evaluate_on, NO_ROWS)))
    return SiloSplit(left.sort().values, held_out, own_file)


def rows_by_silo(arrays: PreparedArrays, clients: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """Return the rows of each silo in each split that has any."""
    found: dict[int, dict[str, Tensor]] = {client: {} for client in clients}
    for split in SPLITS:
        if split in arrays.info["splits"]:
            groups = arrays[f"{split}-groups"]
            for client in clients:
                found[client][split] = (groups == client).nonzero().flatten()
    return found


def partition_of(
    arrays: PreparedArrays, names: Sequence[str], splits: Mapping[int, SiloSplit]
) -> Partition:
    """Return which rows each silo trains on, as a partition."""
    parts = [split.train for split in splits.values()]
    return Partition(arrays["train-labels"], arrays.info["labels"], parts, list(names))


def number_labels(rows: Iterable[silos.Row], agreed: Sequence[str] | None) -> dict[str, int]:
    """Number the training labels in sorted order, or those that were given or agreed on.

    Raises:
        EpisodeError: A row has a label that is not among these, or there are fewer than two labels.
    """
    places: dict[str, str] = {}
    trained: set[str] = set()
    for row in rows:
        places.setdefault(row.label, row.place)
        if row.split == "train":
            trained.add(row.label)
    if agreed is not None:
        for label, place in places.items():
            if label not in agreed:
                raise EpisodeError(
                    f"{place} has the label {label!r}, which is not one of "
                    f"{', '.join(agreed)}: correct it, or list it in task.labels."
                )
        return {label: number for number, label in enumerate(agreed)}
    for label, place in places.items():
        if label not in trained:
            raise not_trained_on(place, label)
    if len(trained) < 2:
        raise EpisodeError(f"All rows have the label {trained.pop()!r}: two labels are needed.")
    return {label: number for number, label in enumerate(sorted(trained))}


def write_texts(
    target: Path,
    read: Callable[[], Iterable[silos.Row]],
    labels: Sequence[str] | None,
    know: Callable[[Corpus], Vocabulary],
) -> dict[str, Any]:
    """Write the arrays of silos of texts, and return what to note of them.

    Args:
        target: Where to write.
        read: Reads all rows; it is called twice.
        labels: The labels, if they were given or agreed on.
        know: Returns the vocabulary of the texts.
    """
    numbers = number_labels(read(), labels)
    corpus = Corpus(columns=1)
    for row in read():
        corpus.add(row.split, (row.content,), numbers[row.label], row.silo)
    return {**corpus.write(target, know(corpus)), "labels": list(numbers)}


def write_images(
    target: Path, read: Callable[[], Iterable[silos.Row]], labels: Sequence[str] | None
) -> dict[str, Any]:
    """Write the list of the silos' images, and return what to note of it; see `write_texts`."""
    rows = list(read())
    numbers = number_labels(rows, labels)
    verify_images([Path(row.content) for row in rows])
    info: dict[str, Any] = {"labels": list(numbers), "splits": {}, "files": {}}
    for split in SPLITS:
        own = [row for row in rows if row.split == split]
        if own:
            np.save(target / f"{split}-labels", np.array([numbers[row.label] for row in own]))
            np.save(target / f"{split}-groups", np.array([row.silo for row in own], np.int32))
            info["files"][split] = [row.content for row in own]
            info["splits"][split] = len(own)
    return info
