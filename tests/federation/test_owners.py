"""Clients are shared out among processes by their numbers of examples."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from episode.federation.owners import Owners


def loads(owners: Owners) -> list[int]:
    return [
        sum(owners.sizes[client] for client in owners.clients(rank)) for rank in range(owners.ranks)
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_silos_of_sizes_1_to_100_are_shared_out_evenly(ranks: int) -> None:
    sizes = list(range(1, 101))
    random.Random(0).shuffle(sizes)
    held = loads(Owners(sizes, ranks))
    assert sum(held) == 5050
    assert max(held) <= 1.1 * min(held)


def test_clients_of_equal_size_are_dealt_out_in_turn() -> None:
    owners = Owners([7] * 10, 3)
    assert [owners.rank_of(c) for c in range(10)] == [c % 3 for c in range(10)]


def test_the_largest_comes_first_and_ties_go_by_number() -> None:
    owners = Owners([5, 9, 5, 9, 1], 2)
    assert owners.clients(0) == [0, 1, 4]  # 9, then 5, then 1 of an equal load
    assert owners.clients(1) == [2, 3]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 9))
def test_every_client_has_one_owner_and_none_is_far_from_even(sizes: list[int], ranks: int) -> None:
    owners = Owners(sizes, ranks)
    shared = [client for rank in range(ranks) for client in owners.clients(rank)]
    assert sorted(shared) == list(range(len(sizes)))
    assert all(owners.rank_of(c) == r for r in range(ranks) for c in owners.clients(r))
    # Whoever got a client last had no more than anybody else before it.
    assert max(loads(owners)) - max(sizes) <= min(loads(owners))


def test_the_distribution_is_a_pure_function_with_a_checksum() -> None:
    sizes = np.random.default_rng(0).integers(1, 500, 100_000).tolist()
    one, other = Owners(sizes, 4), Owners(list(sizes), 4)
    assert one.checksum == other.checksum
    assert one.clients(3) == other.clients(3)
    assert one.checksum != Owners(sizes, 5).checksum
    assert one.checksum != Owners([*sizes[1:], sizes[0]], 4).checksum
