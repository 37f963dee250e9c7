"""Data as people have them, made into datasets: frames, dicts, lists of arrays, loaders."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from episode.data.batches import BatchDataset
from episode.errors import EpisodeError
from episode.randomness import Key

log = logging.getLogger("episode")
MOST_ARRAYS = 3
"""A list of more arrays than this is a list of examples."""


class Columns(BatchDataset):
    """Named tensors of equal length; a batch is a dict of their rows.

    Args:
        columns: The tensors by name.
    """

    is_plain = True

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def gather(self, indices: Tensor, key: Sequence[Key]) -> dict[str, Tensor]:
        return {n: t.index_select(0, indices.to(t.device)) for n, t in self.columns.items()}


def as_dataset(data: Any, client: int) -> Any:
    """Return a client's data in a form that batches can be drawn from.

    A DataFrame or a dict of arrays becomes `Columns`; a list of a few arrays of equal length
    becomes a tuple of them; of a DataLoader, the dataset is taken. All else is returned as it is.

    Args:
        data: What the user gave.
        client: Number of the client, for messages.

    Raises:
        EpisodeError: The data have no numbered examples, are of unequal length, or are not numbers.
    """
    if isinstance(data, DataLoader):
        log.info(
            "Client %d is a DataLoader: its dataset is taken, and its batch size, order and "
            "collate function are not; give fit its own batch_size and collate.",
            client,
        )
        return as_dataset(data.dataset, client)
    if isinstance(data, IterableDataset) or _is_streamed(data):
        raise EpisodeError(
            f"Client {client} has a stream ({type(data).__name__}), whose examples have no "
            "numbers, so that batches cannot be drawn again after a stop: read it into a list "
            "first, list(dataset), or write it to files and open those."
        )
    if _is_splits(data):
        raise EpisodeError(
            f"Client {client} is a dict of splits ({', '.join(map(str, data))}): give one of them, "
            f"such as dataset[{next(iter(data))!r}]."
        )
    if _is_frame(data):
        return Columns({str(name): _column(data[name], name, client) for name in data.columns})
    if isinstance(data, Mapping) and data and not isinstance(data, BatchDataset):
        return _checked({str(n): _array(values, n, client) for n, values in data.items()}, client)
    if isinstance(data, list) and _is_arrays(data):
        return tuple(torch.as_tensor(part) for part in data)
    return data


def as_datasets(clients: Any) -> Any:
    """Return the data of each client in a list or tuple; other sequences are opened later."""
    if not isinstance(clients, (list, tuple)):
        return clients
    return [as_dataset(data, client) for client, data in enumerate(clients)]


def _is_frame(data: Any) -> bool:
    """Whether this is a DataFrame of pandas, or something like it; pandas may not be installed."""
    return type(data).__name__ == "DataFrame" and hasattr(data, "columns") and len(data.columns) > 0


def _is_streamed(data: Any) -> bool:
    """Whether this is an IterableDataset of Hugging Face, which is no class of torch's."""
    return type(data).__name__ == "IterableDataset" and not hasattr(data, "__getitem__")


def _is_splits(data: Any) -> bool:
    return type(data).__name__ in ("DatasetDict", "IterableDatasetDict")


def _is_arrays(data: list[Any]) -> bool:
    """Whether a list is [X, y], and not a list of examples: a few arrays of many rows each."""
    if not 2 <= len(data) <= MOST_ARRAYS or not all(
        isinstance(part, (Tensor, np.ndarray)) and part.ndim for part in data
    ):
        return False
    lengths = {len(part) for part in data}
    return len(lengths) == 1 and lengths.pop() > len(data)


def _column(values: Any, name: Any, client: int) -> Tensor:
    """Return a column of a frame; numbers of float64 become float32, as models have them."""
    found = np.asarray(values)
    if found.dtype == object and found.size and isinstance(found[0], (Tensor, np.ndarray)):
        found = np.stack([np.asarray(row) for row in found])  # a vector in each cell
    return _array(found, name, client)


def _array(values: Any, name: Any, client: int) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        found = np.asarray(values)
        if found.dtype == np.float64:
            found = found.astype(np.float32)
        if found.dtype.kind not in "biufc" or not found.ndim:
            raise TypeError
        return torch.as_tensor(found if found.flags.writeable else found.copy())
    except (TypeError, ValueError):
        raise EpisodeError(
            f"Client {client}'s column {str(name)!r} is not of numbers: leave it out, or encode it "
            "as numbers first."
        ) from None


def _checked(columns: dict[str, Tensor], client: int) -> Columns:
    lengths = {name: len(values) if values.ndim else 0 for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise EpisodeError(
            f"Client {client}'s columns must hold the same number of examples, but they hold "
            f"{lengths}."
        )
    return Columns(columns)
