"""Examples that a client holds out: not trained on, so that a model can be judged on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from episode.data.batches import BatchDataset, LabelledDataset, as_tensors
from episode.data.clients import LazyClients
from episode.data.partition import Partition, select
from episode.errors import EpisodeError
from episode.randomness import Key, permutation

Rows = tuple[Tensor, Tensor]
"""Rows to train on, and rows that are held out; both in ascending order."""


def hold_out(count: int, share: float, seed: int, client: int, name: str = "") -> Rows:
    """Return which of a client's examples to train on, and which it holds out.

    Args:
        count: Number of the client's examples.
        share: Share to hold out: rounded, but at least one example; 0 holds out none.
        seed: Random seed; the choice is a pure function of (seed, client).
        client: Number of the client.
        name: Name of the client, for the message.

    Raises:
        EpisodeError: The share is not in [0, 1), or nothing is left to train on.

    Example:
        >>> train, held_out = hold_out(10, 0.2, seed=0, client=3)
        >>> len(train), len(held_out)
        (8, 2)
    """
    taken = _held_out_count(count, share, name or f"client {client}")
    order = permutation(count, seed, "holdout", client)
    return order[taken:].sort().values, order[:taken].sort().values


def hold_out_parts(partition: Partition, share: float, seed: int) -> Partition:
    """Return the partition in which each client holds out a share of its examples."""
    if not share:
        return partition
    names = partition.clients or [""] * len(partition.parts)
    rows = [
        hold_out(len(part), share, seed, client, name)
        for client, (part, name) in enumerate(zip(partition.parts, names, strict=True))
    ]
    both = list(zip(partition.parts, rows, strict=True))
    trained = [part[own] for part, (own, _) in both]
    return replace(partition, parts=trained, held_out=[part[kept] for part, (_, kept) in both])


def hold_out_data(
    clients: Sequence[Any], share: float, seed: int, names: Sequence[str] = ()
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split each client's dataset: return those to train on, and those that are held out.

    Args:
        clients: A dataset for each client; those of `LazyClients` are split when they are opened.
        share: Share of its examples that each client holds out.
        seed: Random seed.
        names: Names of the clients, for the message.
    """

    def part(client: int, which: int) -> Any:
        data = clients[client]
        name = names[client] if client < len(names) else ""
        return chosen(data, hold_out(examples_of(data), share, seed, client, name)[which])

    if isinstance(clients, (list, tuple)):
        numbers = range(len(clients))
        return [part(c, 0) for c in numbers], [part(c, 1) for c in numbers]
    known = list(clients.examples or ()) if isinstance(clients, LazyClients) else []
    left = known and [n - _held_out_count(n, share, f"client {c}") for c, n in enumerate(known)]
    return (
        LazyClients(len(clients), lambda client: part(client, 0), left or None),
        LazyClients(len(clients), lambda client: part(client, 1)),
    )


def examples_of(dataset: Any) -> int:
    """Return the number of examples in a client's dataset."""
    tensors = as_tensors(dataset)
    return len(tensors[0]) if tensors else len(dataset)


def chosen(dataset: Any, rows: Tensor) -> Any:
    """Return these examples of a client's dataset, as a dataset that can be trained on too."""
    if isinstance(dataset, LabelledDataset):
        return dataset.select(rows)
    if isinstance(dataset, BatchDataset):
        return _ChosenBatches(dataset, rows)
    return select(as_tensors(dataset) or dataset, [rows])[0]


def in_order(
    dataset: Any, batch_size: int, collate: Callable[[list[Any]], Any]
) -> Iterator[tuple[int, Any]]:
    """Yield all examples once, in batches, each with the number of its examples."""
    tensors = as_tensors(dataset)
    for rows in torch.split(torch.arange(examples_of(dataset)), batch_size):
        if isinstance(dataset, BatchDataset):
            yield len(rows), dataset.gather(rows, ())
        elif tensors:
            yield len(rows), tuple(t[rows.to(t.device)] for t in tensors)
        else:
            yield len(rows), collate([dataset[i] for i in rows.tolist()])


def _held_out_count(count: int, share: float, name: str) -> int:
    if not 0 <= share < 1:
        raise EpisodeError(f"holdout is {share}: it must be a share from 0 to less than 1.")
    taken = max(1, round(share * count)) if share else 0
    if taken >= count:
        raise EpisodeError(
            f"A holdout of {share:g} leaves {name} nothing to train on (it has {count} "
            f"example{'s' * (count != 1)}): lower the holdout, or leave this client out."
        )
    return taken


class _ChosenBatches(BatchDataset):
    """Some examples of a dataset that makes whole batches."""

    def __init__(self, dataset: BatchDataset, rows: Tensor) -> None:
        self._dataset = dataset
        self._rows = rows
        self.batches_at_once = dataset.batches_at_once
        self.is_plain = dataset.is_plain

    def __len__(self) -> int:
        return len(self._rows)

    def gather(self, indices: Tensor, key: Sequence[Key]) -> Any:
        return self._dataset.gather(self._rows[indices], key)
