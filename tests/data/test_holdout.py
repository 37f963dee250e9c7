"""Held-out examples: a pure function of (seed, client), for every kind of dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from episode import EpisodeError, LazyClients
from episode.data.batches import BatchDataset, Batches
from episode.data.holdout import hold_out, hold_out_data, hold_out_parts, in_order
from episode.data.partition import Partition


def test_the_choice_depends_on_seed_and_client_alone() -> None:
    train, kept = hold_out(50, 0.2, seed=3, client=4)
    again = hold_out(50, 0.2, seed=3, client=4, name="north")
    assert (train.tolist(), kept.tolist()) == (again[0].tolist(), again[1].tolist())
    assert sorted([*train.tolist(), *kept.tolist()]) == list(range(50))
    assert len(kept) == 10
    assert kept.tolist() != hold_out(50, 0.2, seed=4, client=4)[1].tolist()
    assert kept.tolist() != hold_out(50, 0.2, seed=3, client=5)[1].tolist()
    assert train.tolist() == sorted(train.tolist())


def test_the_smallest_share_is_one_example_and_none_is_none() -> None:
    assert len(hold_out(5, 0.01, seed=0, client=0)[1]) == 1
    assert len(hold_out(5, 0.0, seed=0, client=0)[1]) == 0


@pytest.mark.parametrize(
    ("count", "share", "message"),
    [
        (1, 0.2, r"leaves north nothing to train on \(it has 1 example\): lower the holdout"),
        (4, 0.9, r"A holdout of 0.9 leaves north nothing to train on \(it has 4 examples\)"),
        (10, 1.0, "holdout is 1.0: it must be a share from 0 to less than 1"),
        (10, -0.1, "holdout is -0.1"),
        (10, float("nan"), "holdout is nan"),
    ],
)
def test_a_holdout_that_leaves_nothing_or_is_no_share_is_one_sentence(
    count: int, share: float, message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        hold_out(count, share, seed=0, client=2, name="north")


def test_a_partition_is_split_client_by_client() -> None:
    parts = [torch.arange(10), torch.arange(10, 40)]
    whole = Partition(torch.zeros(40), ["a"], parts, ["north", "south"])
    assert hold_out_parts(whole, 0.0, seed=0) is whole
    found = hold_out_parts(whole, 0.1, seed=0)
    assert found.held_out is not None
    for part, train, kept in zip(parts, found.parts, found.held_out, strict=True):
        assert sorted([*train.tolist(), *kept.tolist()]) == part.tolist()
    assert [len(kept) for kept in found.held_out] == [1, 3]
    small = Partition(torch.zeros(40), ["a"], [parts[0], parts[1][:1]], ["north", "south"])
    with pytest.raises(EpisodeError, match="leaves south nothing to train on"):
        hold_out_parts(small, 0.1, seed=0)


class Rows(BatchDataset):
    """A dataset that makes whole batches."""

    def __len__(self) -> int:
        return 10

    def gather(self, indices: Tensor, key: Sequence[Any]) -> Any:
        return (10 * indices,)


X = torch.arange(10.0)
KINDS: dict[str, Any] = {
    "tensors": (X, X.long()),
    "arrays": (X.numpy(), np.arange(10)),
    "tensor dataset": TensorDataset(X, X.long()),
    "batches": Rows(),
    "list": [(float(k), k) for k in range(10)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dataset_is_split_and_read_in_order(kind: str) -> None:
    (train,), (kept,) = hold_out_data([KINDS[kind]], 0.3, seed=1)
    rows, held = hold_out(10, 0.3, seed=1, client=0)
    scale = 10 if kind == "batches" else 1
    for data, expected in ((train, rows), (kept, held)):
        found = list(in_order(data, 4, default_collate))
        assert [count for count, _ in found] == [min(4, len(expected) - k) for k in
                                                 range(0, len(expected), 4)]  # fmt: skip
        values = torch.cat([batch[0].double() for _, batch in found])
        assert values.tolist() == (scale * expected).tolist()
    assert Batches(train, 2, seed=0, client=0).examples == 7


def test_clients_that_are_opened_when_needed_are_split_when_opened() -> None:
    opened: list[int] = []

    def open_client(client: int) -> tuple[Tensor]:
        opened.append(client)
        return (torch.arange(10.0) + client,)

    clients = LazyClients(1000, open_client, examples=[10] * 1000)
    train, kept = hold_out_data(clients, 0.2, seed=0)
    assert opened == []
    assert isinstance(train, LazyClients)
    assert train.examples is not None
    assert set(train.examples) == {8}
    both = torch.cat([train[7][0], kept[7][0]])
    assert sorted(both.tolist()) == [7.0 + k for k in range(10)]
    assert opened == [7, 7]
