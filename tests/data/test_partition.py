"""Every partition rule is a pure function that gives no example to two clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from episode import EpisodeError
from episode.data.partition import (
    by_dirichlet,
    by_id,
    by_label_count,
    by_similarity,
    by_user_similarity,
    count_labels,
    select,
)

LABELS = torch.arange(600) % 6
USERS = torch.arange(600) // 10
RULES: dict[str, Callable[[int], list[torch.Tensor]]] = {
    "similarity": lambda seed: by_similarity(LABELS, 5, 30, seed),
    "users": lambda seed: by_user_similarity(USERS, LABELS % 2, 5, 20, seed),
    "dirichlet": lambda seed: by_dirichlet(LABELS, 5, 0.3, seed),
    "labels": lambda seed: by_label_count(LABELS, 5, 2, seed),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_pure_functions_of_the_seed_and_give_nothing_twice(name: str) -> None:
    first, again, other = RULES[name](0), RULES[name](0), RULES[name](1)
    assert len(first) == 5
    distributed = torch.cat(first)
    assert len(distributed.unique()) == len(distributed)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert [p.tolist() for p in first] != [p.tolist() for p in other]


def test_users_keep_their_examples_together_and_are_sorted_by_their_share() -> None:
    users = np.repeat([f"u{k}" for k in range(40)], 5)
    positive = np.concatenate([np.arange(5) < k % 6 for k in range(40)]).astype(int)
    parts = by_user_similarity(users, positive, 4, 0, seed=0)
    owners = [set(users[p.numpy()]) for p in parts]
    assert [len(o) for o in owners] == [10] * 4
    assert not set.intersection(*owners)
    assert all(len(p) == 50 for p in parts)
    shares = [positive[p.numpy()].mean() for p in parts]
    assert shares == sorted(shares)
    assert shares[-1] - shares[0] > 0.6


def test_dirichlet_distributes_everything_and_a_small_alpha_is_more_skewed() -> None:
    def skew(alpha: float) -> float:
        parts = by_dirichlet(LABELS, 6, alpha, seed=0)
        assert sorted(torch.cat(parts).tolist()) == list(range(600))
        _, counts = count_labels(LABELS, parts)
        return float((counts.max(1).values / counts.sum(1)).mean())

    assert skew(0.1) > skew(1.0) > skew(100.0)
    assert skew(100.0) < 0.25


@pytest.mark.parametrize(("clients", "k"), [(3, 2), (5, 1), (8, 2), (7, 3), (4, 6)])
def test_a_pathological_client_has_exactly_k_labels(clients: int, k: int) -> None:
    uneven = torch.repeat_interleave(torch.arange(6), torch.tensor([300, 120, 90, 40, 33, 17]))
    for labels in (LABELS, uneven):
        parts = by_label_count(labels, clients, k, seed=4)
        _, counts = count_labels(labels, parts)
        assert [(row > 0).sum().item() for row in counts] == [k] * clients
        holders = (counts > 0).sum(0)
        assert holders.max() - holders.min() <= 1
        for label in torch.nonzero(holders).flatten():
            assert counts[:, label].sum() == (labels == label).sum()
            held = counts[:, label][counts[:, label] > 0]
            assert held.max() - held.min() <= 1


def test_natural_ids_are_clients_in_sorted_order() -> None:
    parts = by_id(["b", "a", "b", "c"])
    assert [p.tolist() for p in parts] == [[1], [0, 2], [3]]


def test_hugging_face_datasets_are_taken_and_given() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": list("abcdefgh"), "label": [0, 1] * 4})
    parts = by_similarity(table["label"], 2, 0, seed=0)
    clients = select(table, parts)
    assert all(isinstance(c, datasets.Dataset) for c in clients)
    assert [set(c["label"]) for c in clients] == [{0}, {1}]
    tensors = select((torch.arange(8), torch.tensor(list(table["label"]))), parts)
    assert [t[0].tolist() for t in tensors] == [p.tolist() for p in parts]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: by_dirichlet(LABELS, 3, 0.0, 0), "alpha is 0.0"),
        (lambda: by_dirichlet(LABELS, 700, 1.0, 0), "700 clients cannot share 600"),
        (lambda: by_label_count(LABELS, 3, 0, 0), "labels_per_client is 0"),
        (
            lambda: by_label_count(LABELS, 3, 7, 0),
            "labels_per_client is 7: it must be from 1 to 6, the number of labels",
        ),
        (
            lambda: by_label_count(["a"] * 9 + ["b"] * 2, 3, 2, 0),
            "3 clients cannot share the 2 examples of the label b",
        ),
        (lambda: by_user_similarity(USERS, LABELS, 99, 0, 0), "99 clients cannot share 60 users"),
        (lambda: by_user_similarity(USERS, LABELS[:5], 2, 0, 0), "600 users for 5 labels"),
    ],
)
def test_what_cannot_be_distributed_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        call()
