"""Loss and accuracy of a classifier, measured block by block where the examples are.

Each block of examples belongs to a client, so that a rank or a site measures only blocks of its own
clients. Sums of blocks are added up in the order of blocks. So the metrics are the same, bit for
bit, wherever a block was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from episode.data.batches import BatchDataset
from episode.randomness import permutation
from episode.tasks.losses import LOSSES, LossName
from episode.tasks.neural import SharedEvaluation
from episode.tasks.replica import to_device

EVALUATION_BATCH = 256
MOST_OWN_BLOCKS = 100
"""With more clients than this, examples of several clients share a block."""


@dataclass(frozen=True)
class Block:
    """Examples that are measured together."""

    place: tuple[int, int]
    """Where the block's sum stands in the order of sums."""
    owner: int
    """The client with whose data it is measured."""
    rows: Tensor


@dataclass(frozen=True)
class Split:
    """The blocks of one split that are measured here."""

    data: BatchDataset | None
    """None if no block is measured here."""
    blocks: Sequence[Block]


def dealt_blocks(examples: int, num_clients: int) -> list[Block]:
    """Return the blocks of examples that belong to nobody: they are dealt out to the clients."""
    blocks = enumerate(torch.split(torch.arange(examples), EVALUATION_BATCH))
    return [Block((k, 0), k % num_clients, rows) for k, rows in blocks]


def own_blocks(rows: Mapping[int, Tensor], num_clients: int) -> list[Block]:
    """Return the blocks of clients' own examples.

    Args:
        rows: The examples of each client that is here.
        num_clients: Number of all clients.
    """
    groups = {client: own for client, own in sorted(rows.items()) if len(own)}
    if num_clients > MOST_OWN_BLOCKS and groups:
        groups = {min(groups): torch.cat(list(groups.values()))}
    return [
        Block((client, k), client, block)
        for client, own in groups.items()
        for k, block in enumerate(torch.split(own, EVALUATION_BATCH))
    ]


def chosen_rows(
    parts: Mapping[int, Tensor], starts: Mapping[int, int], total: int, count: int
) -> dict[int, Tensor]:
    """Return which training examples the training loss is measured on; always the same ones.

    Args:
        parts: The examples of each client that is here.
        starts: Where each of them begins in the list of all clients' examples.
        total: Number of examples of all clients.
        count: How many of them to choose; 0 for all.
    """
    if not 0 < count < total:
        return dict(parts)
    chosen = permutation(total, 0, "evaluated")[:count].sort().values
    found: dict[int, Tensor] = {}
    for client, rows in parts.items():
        edges = torch.tensor([starts[client], starts[client] + len(rows)])
        first, last = torch.searchsorted(chosen, edges).tolist()
        found[client] = rows[chosen[first:last] - starts[client]]
    return found


def one_client(loss: LossName, split: str, data: BatchDataset) -> SplitEvaluation:
    """Return the evaluation on one client's examples alone."""
    blocks = own_blocks({0: torch.arange(len(data))}, 1)
    return SplitEvaluation(loss, {split: Split(data, blocks)})


class SplitEvaluation(SharedEvaluation):
    """Loss and accuracy on each split, as `<split>_loss` and `<split>_accuracy`.

    Args:
        loss: Name of the loss.
        splits: The blocks of each split that are measured here.
    """

    def __init__(self, loss: LossName, splits: Mapping[str, Split]) -> None:
        self._loss = LOSSES[loss]
        self._splits = splits

    def part(self, model: nn.Module) -> dict[str, Any]:
        """Return the rows of each split's blocks: place, owner, loss, right answers and size."""
        device = next(model.parameters()).device
        found: dict[str, Any] = {}
        for name, split in self._splits.items():
            losses, right = [], []
            for block in split.blocks:
                assert split.data is not None
                *inputs, labels = to_device(split.data.gather(block.rows, ()), device)
                scores = _at_least_float32(model(*inputs))
                losses.append(self._loss(scores, labels, reduction="sum"))
                right.append((scores.argmax(1) == labels).sum())
            sums = zip(_numbers(losses), _numbers(right), strict=True)
            found[name] = [
                [*block.place, block.owner, *values, len(block.rows)]
                for block, values in zip(split.blocks, sums, strict=True)
            ]
        return found

    def combine(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name in self._splits:
            rows = sorted(tuple(row) for part in parts for row in part.get(name, ()))
            examples = sum(row[5] for row in rows)
            if examples:
                metrics[f"{name}_loss"] = sum(row[3] for row in rows) / examples
                metrics[f"{name}_accuracy"] = sum(row[4] for row in rows) / examples
        return metrics

    def check(self, part: Mapping[str, Any], client: int) -> None:
        if not isinstance(part, Mapping) or not part.keys() <= self._splits.keys():
            raise ValueError("it names other splits")
        for rows in part.values():
            places = set()
            for *place, owner, loss, right, size in rows:
                whole = [*place, owner, right, size]
                if len(place) != 2 or not all(type(value) is int for value in whole):
                    raise ValueError("a block is not of whole numbers")
                if owner != client or not 0 <= right <= size <= EVALUATION_BATCH:
                    raise ValueError("a block is not one of its own")
                if type(loss) is not float or tuple(place) in places:
                    raise ValueError("a block is there twice, or has no loss")
                places.add(tuple(place))


def _at_least_float32(scores: Tensor) -> Tensor:
    return scores if scores.dtype == torch.float64 else scores.float()


def _numbers(values: Sequence[Tensor]) -> list[Any]:
    """Return scalars as numbers, with one transfer from a GPU."""
    return torch.stack(list(values)).tolist() if values else []
