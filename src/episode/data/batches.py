"""A client's batches: epochs without replacement, each batch a pure function of its name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from episode.errors import EpisodeError
from episode.randomness import Key, permutation


class MapStyle(Protocol):
    """A dataset that knows its length and gives any example by its number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


@runtime_checkable
class Gathers(Protocol):
    """A dataset that makes a whole batch at once, faster than example by example.

    `key` names the draw, for whoever draws at random (augmentation): use `episode.randomness` with
    it, and the batch stays a pure function of its name. It is empty for evaluation. A dataset whose
    batches are small may have a number `batches_at_once`: so many are made together, and kept.
    """

    def __len__(self) -> int: ...
    def gather(self, indices: Tensor, key: Sequence[Key]) -> Any:
        """The batch of these examples."""


@runtime_checkable
class Prefetches(Gathers, Protocol):
    """A dataset whose batches can be under way while the model works on others."""

    def start(self, indices: Tensor, key: Sequence[Key]) -> Any:
        """Begins to make a batch."""

    def finish(self, started: Any) -> Any:
        """Waits for a batch that was started."""


class Batches:
    """The batches of one client's data: a map-style dataset, equal-length tensors, or `Gathers`.

    Each epoch of each stream has a permutation of its own, cut into whole batches; what is left
    over waits for another epoch. A client with less than one batch always trains on all it has.
    """

    def __init__(
        self,
        dataset: MapStyle | Sequence[Tensor] | Gathers,
        batch_size: int,
        seed: int,
        client: int,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._client = client
        # Asked once: a check against a protocol takes longer than drawing a small batch.
        self._gathers = dataset if isinstance(dataset, Gathers) else None
        self._prefetches = dataset if isinstance(dataset, Prefetches) else None
        numbered = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not numbered and not self._gathers:
            raise EpisodeError(
                f"Client {client} is a {type(dataset).__name__}: give a dataset with a length and "
                "numbered examples, or a tuple of tensors (not a loader or an iterator)."
            )
        self._tensors = _as_tensors(dataset)
        self.examples = len(self._tensors[0]) if self._tensors else len(dataset)
        if self.examples == 0:
            raise EpisodeError(f"Client {client} has no examples: leave it out, or give it data.")
        self.batch_size = min(batch_size, self.examples)
        self._per_epoch = self.examples // self.batch_size
        self._at_once = getattr(dataset, "batches_at_once", 1)
        self._orders: dict[str, tuple[int, Tensor]] = {}
        self._ready: dict[str, dict[int, Any]] = {}
        self._ahead: dict[str, tuple[int, Any]] = {}

    def draw(self, stream: str, index: int) -> Any:
        """The `index`-th batch of a stream, counted from 0."""
        if self._prefetches is not None:
            return self._draw_ahead(self._prefetches, stream, index)
        if self._gathers is not None:
            return self._draw_some(self._gathers, stream, index)
        chosen = self._chosen(stream, index)
        if self._tensors:
            return tuple(t.index_select(0, chosen.to(t.device)) for t in self._tensors)
        return self._collate([self._dataset[i] for i in chosen.tolist()])  # type: ignore[index]

    def _draw_some(self, dataset: Gathers, stream: str, index: int) -> Any:
        """The batch; where it is not there yet, it is made together with some that follow."""
        ready = self._ready.setdefault(stream, {})
        if index not in ready:
            ready.clear()
            for k in range(index, index + self._at_once):
                key = (self._seed, self._client, stream, k)
                ready[k] = dataset.gather(self._chosen(stream, k), key)
        return ready.pop(index)

    def _draw_ahead(self, dataset: Prefetches, stream: str, index: int) -> Any:
        """The batch, started last time; and a start on the next, which a stream asks for next."""
        at, started = self._ahead.pop(stream, (None, None))
        if at != index:
            started = self._start(dataset, stream, index)
        batch = dataset.finish(started)
        self._ahead[stream] = index + 1, self._start(dataset, stream, index + 1)
        return batch

    def _start(self, dataset: Prefetches, stream: str, index: int) -> Any:
        key = (self._seed, self._client, stream, index)
        return dataset.start(self._chosen(stream, index), key)

    def _chosen(self, stream: str, index: int) -> Tensor:
        epoch, slot = divmod(index, self._per_epoch)
        order = self._order(stream, epoch)
        return order[slot * self.batch_size : (slot + 1) * self.batch_size]

    def fingerprint(self) -> int | None:
        """A checksum of a few examples, to tell other data by; None where asking may be random."""
        if not self._tensors:
            return None
        rows = torch.tensor([0, self.examples // 2, self.examples - 1])
        values = [t[rows.to(t.device)].detach().cpu().contiguous().numpy() for t in self._tensors]
        return zlib.crc32(b"".join(v.tobytes() for v in values))

    def _order(self, stream: str, epoch: int) -> Tensor:
        # Kept for the epoch's other batches. A pure function's value, so losing it costs only time.
        cached = self._orders.get(stream)
        if cached is not None and cached[0] == epoch:
            return cached[1]
        order = permutation(self.examples, self._seed, "batches", self._client, stream, epoch)
        self._orders[stream] = epoch, order
        return order


def _as_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """The tensors of a tuple of tensors (or numpy arrays); None for any other dataset."""
    if isinstance(dataset, torch.utils.data.TensorDataset):
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
