"""A client's batches: epochs without replacement, each batch a pure function of its name."""

from __future__ import annotations

import copy
import functools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from episode.core.vectors import bytes_of
from episode.errors import EpisodeError
from episode.randomness import Key, permutation


class BatchDataset(ABC):
    """A dataset that makes a whole batch at once, faster than example by example."""

    batches_at_once: int = 1
    """How many consecutive batches to make together and keep; more than 1 pays off if they are
    small."""

    is_plain: bool = False
    """Whether a batch is a dict of tensors that are the same each time: some identify the data."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def gather(self, indices: Tensor, key: Sequence[Key]) -> Any:
        """Return the batch of these examples.

        `key` names the batch, for datasets that augment at random: take random numbers from
        `episode.randomness` with it, and the batch stays a pure function of its name. The key is
        empty for evaluation.
        """


class LabelledDataset(BatchDataset):
    """Examples with labels, from which some can be selected without copying them."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels
        self._selected = torch.arange(len(labels))

    def __len__(self) -> int:
        return len(self._selected)

    @property
    def labels(self) -> Tensor:
        """Labels of the selected examples, as numbers from 0."""
        return self._labels[self._selected]

    def select(self, indices: Tensor) -> Self:
        """Return a view of some of these examples."""
        chosen = copy.copy(self)
        chosen._selected = self._selected[indices]
        return chosen

    @abstractmethod
    def compact(self) -> Self:
        """Return a dataset of the selected examples that keeps nothing of the others in memory."""


class PrefetchingDataset(BatchDataset):
    """A dataset that can prepare a batch while the model works on another one."""

    @abstractmethod
    def start(self, indices: Tensor, key: Sequence[Key]) -> Any:
        """Begin to make a batch."""

    @abstractmethod
    def finish(self, started: Any) -> Any:
        """Wait for a batch that `start` has begun, and return it."""

    def gather(self, indices: Tensor, key: Sequence[Key]) -> Any:
        return self.finish(self.start(indices, key))


class Batches:
    """The batches of one client's data.

    Each epoch of each stream has its own permutation, which is cut into whole batches; the rest of
    the examples wait for another epoch. A client with less than one batch always trains on all of
    its examples.

    Args:
        dataset: A `BatchDataset`, a tuple of equally long tensors or arrays, or any map-style
            dataset.
        batch_size: Examples in a batch.
        seed: Random seed of the permutations.
        client: The client's number, which the permutations depend on too.
        collate: Makes a batch from a list of examples of a map-style dataset.

    Raises:
        EpisodeError: The dataset is none of these, is empty, or has tensors of unequal length.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        seed: int,
        client: int,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._client = client
        # Any object with these two methods is a map-style dataset: torch's, Hugging Face's, a list.
        map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not map_style and not isinstance(dataset, BatchDataset):
            raise EpisodeError(
                f"Client {client} is a {type(dataset).__name__}: give a dataset with a length and "
                "numbered examples, or a tuple of tensors (not a loader or an iterator)."
            )
        try:
            self._tensors = as_tensors(dataset)
            self.examples = len(self._tensors[0]) if self._tensors else len(dataset)
        except (TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise EpisodeError(f"Client {client}'s data cannot be read: {reason}.") from error
        if self.examples == 0:
            raise EpisodeError(f"Client {client} has no examples: leave it out, or give it data.")
        self.batch_size = min(batch_size, self.examples)
        self._per_epoch = self.examples // self.batch_size
        # Kept for an epoch's other batches; no checkpoint needs what can be computed again.
        self._order = functools.lru_cache(maxsize=4)(self._permutation)
        self._ready: dict[str, dict[int, Any]] = {}
        self._started: dict[str, tuple[int, Any]] = {}

    def draw(self, stream: str, index: int) -> Any:
        """Return the `index`-th batch of a stream, counted from 0."""
        if isinstance(self._dataset, PrefetchingDataset):
            return self._draw_prefetched(self._dataset, stream, index)
        if isinstance(self._dataset, BatchDataset):
            return self._draw_made(self._dataset, stream, index)
        return self._gather(*self._request(stream, index))

    def draw_parts(self, stream: str, index: int, count: int) -> Iterator[tuple[int, Any]]:
        """Yield the `index`-th batch in so many parts, each with its number of examples.

        A part is made when it is asked for. A dataset that augments at random draws for each part
        anew. The parts are equally large, unless the client has less than one batch.
        """
        if count == 1:
            yield self.batch_size, self.draw(stream, index)
            return
        chosen, key = self._request(stream, index)
        for part, rows in enumerate(chosen.tensor_split(min(count, len(chosen)))):
            yield len(rows), self._gather(rows, (*key, part))

    def fingerprint(self) -> int | None:
        """Return a checksum of a few examples, to notice other data; None if they may be random."""
        rows = torch.tensor([0, self.examples // 2, self.examples - 1])
        if isinstance(self._dataset, BatchDataset) and self._dataset.is_plain:
            chosen = list(self._dataset.gather(rows, ()).values())
        elif self._tensors:
            chosen = [t.index_select(0, rows.to(t.device)).to_dense() for t in self._tensors]
        else:
            return None
        return zlib.crc32(b"".join(map(bytes_of, chosen)))

    def _draw_made(self, dataset: BatchDataset, stream: str, index: int) -> Any:
        """Return the batch; if it is not there yet, make it together with some that follow."""
        ready = self._ready.setdefault(stream, {})
        if index not in ready:
            ready.clear()
            for k in range(index, index + dataset.batches_at_once):
                ready[k] = dataset.gather(*self._request(stream, k))
        return ready.pop(index)

    def _draw_prefetched(self, dataset: PrefetchingDataset, stream: str, index: int) -> Any:
        """Finish the batch that was started last time, and start the one after it."""
        expected, started = self._started.pop(stream, (None, None))
        if expected != index:
            started = dataset.start(*self._request(stream, index))
        batch = dataset.finish(started)
        self._started[stream] = index + 1, dataset.start(*self._request(stream, index + 1))
        return batch

    def _gather(self, rows: Tensor, key: tuple[Key, ...]) -> Any:
        """Return a batch of these examples; `key` names it."""
        if self._tensors:
            return tuple(t.index_select(0, rows.to(t.device)) for t in self._tensors)
        if isinstance(self._dataset, BatchDataset):
            return self._dataset.gather(rows, key)
        return self._collate([self._dataset[i] for i in rows.tolist()])

    def _request(self, stream: str, index: int) -> tuple[Tensor, tuple[Key, ...]]:
        """Return the examples of a batch, and its key."""
        epoch, slot = divmod(index, self._per_epoch)
        order = self._order(stream, epoch)
        chosen = order[slot * self.batch_size : (slot + 1) * self.batch_size]
        return chosen, (self._seed, self._client, stream, index)

    def _permutation(self, stream: str, epoch: int) -> Tensor:
        return permutation(self.examples, self._seed, "batches", self._client, stream, epoch)


def as_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """Return the tensors of a tuple of tensors (or arrays); None for any other dataset."""
    if isinstance(dataset, TensorDataset):
        return tuple(dataset.tensors)
    if not isinstance(dataset, tuple) or not dataset:
        return None
    if not all(isinstance(part, (Tensor, np.ndarray)) for part in dataset):
        return None
    tensors = tuple(torch.as_tensor(part) for part in dataset)
    lengths = [len(part) for part in tensors]
    if len(set(lengths)) > 1:
        raise EpisodeError(
            f"A client's tensors must hold the same number of examples, but they hold {lengths}."
        )
    return tensors
