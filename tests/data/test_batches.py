"""Batches, partitions, cohorts and the randomness below them are pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from episode import Cyclic, EpisodeError, Full, Uniform
from episode.data.batches import BatchDataset, Batches
from episode.data.partition import by_similarity
from episode.randomness import Key, derive, permutation, uniform


def numbers(size: int) -> tuple[torch.Tensor]:
    return (torch.arange(size),)


def test_an_epoch_shows_every_example_once_and_the_next_in_another_order() -> None:
    batches = Batches(numbers(12), 4, seed=0, client=0)
    epochs = [torch.cat([batches.draw("local", 3 * e + k)[0] for k in range(3)]) for e in (0, 1)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(12))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_a_batch_depends_on_its_name_alone() -> None:
    one, two = (Batches(numbers(50), 7, seed=3, client=1) for _ in range(2))
    names = [("local", 9), ("probe", 0), ("local", 2), ("local", 9)]
    for stream, index in names:
        one.draw(stream, index)
    for stream, index in reversed(names):
        assert torch.equal(one.draw(stream, index)[0], two.draw(stream, index)[0])


@pytest.mark.parametrize("other", [{"seed": 1}, {"client": 1}])
def test_seeds_clients_and_streams_draw_differently(other: dict[str, int]) -> None:
    here = Batches(numbers(100), 50, seed=0, client=0)
    there = Batches(numbers(100), 50, **{"seed": 0, "client": 0, **other})
    assert not torch.equal(here.draw("local", 0)[0], there.draw("local", 0)[0])
    assert not torch.equal(here.draw("local", 0)[0], here.draw("probe", 0)[0])


class Echo(BatchDataset):
    """Batches that tell what they were asked for; made several at once, or one by one."""

    def __init__(self, batches_at_once: int) -> None:
        self.batches_at_once = batches_at_once
        self.made = 0

    def __len__(self) -> int:
        return 23

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[list[int], list[Key]]:
        self.made += 1
        return indices.tolist(), list(key)


def test_batches_made_at_once_are_those_made_one_by_one() -> None:
    single, several = Echo(1), Echo(4)
    one_by_one, at_once = Batches(single, 5, 0, 3), Batches(several, 5, 0, 3)
    asked = [("local", k) for k in range(9)] + [("probe", 0), ("local", 9), ("probe", 1)]
    for stream, index in [*asked, ("local", 2), ("local", 30), ("local", 0)]:
        assert at_once.draw(stream, index) == one_by_one.draw(stream, index)
    assert single.made == 15
    assert several.made == 4 * (3 + 1 + 3)  # twelve steps, two probes, and three jumps


def test_a_small_client_always_gives_all_it_has() -> None:
    batches = Batches(numbers(3), 8, seed=0, client=0)
    assert batches.batch_size == 3
    assert all(sorted(batches.draw("local", k)[0].tolist()) == [0, 1, 2] for k in range(4))


def test_what_is_left_over_waits_for_another_epoch() -> None:
    batches = Batches(numbers(10), 4, seed=0, client=0)
    seen = torch.cat([batches.draw("local", k)[0] for k in range(40)])
    counts = torch.bincount(seen, minlength=10)
    assert counts.sum() == 160
    assert counts.min() >= 8


def test_map_style_datasets_and_their_tensors_give_the_same_batches() -> None:
    x, y = torch.randn(9, 2), torch.arange(9)

    class Rows:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            return {"x": x[i], "y": y[i]}

    fast = Batches((x, y), 4, 0, 0).draw("local", 1)
    slow = Batches(Rows(), 4, 0, 0).draw("local", 1)
    wrapped = Batches(TensorDataset(x, y), 4, 0, 0).draw("local", 1)
    assert torch.equal(fast[0], slow["x"])
    assert torch.equal(fast[1], slow["y"])
    assert torch.equal(fast[0], wrapped[0])


def test_a_tuple_of_arrays_is_columns_and_a_list_of_tensors_is_examples() -> None:
    columns = Batches((np.arange(6.0), np.arange(6)), 3, 0, 0).draw("local", 0)
    assert torch.equal(columns[0].long(), columns[1])
    examples = Batches([torch.full((2,), float(i)) for i in range(6)], 3, 0, 0)
    assert examples.examples == 6
    assert examples.draw("local", 0).shape == (3, 2)


def test_a_fingerprint_tells_other_data() -> None:
    x = torch.arange(10.0)
    here, there = (Batches((v,), 2, 0, 0).fingerprint() for v in (x, x + 1))
    assert here != there
    assert here == Batches((x.clone(),), 2, 1, 1).fingerprint()


def test_empty_and_ragged_clients_are_refused() -> None:
    with pytest.raises(EpisodeError, match="Client 4 has no examples"):
        Batches(numbers(0), 8, seed=0, client=4)
    with pytest.raises(EpisodeError, match=r"they hold \[3, 4\]"):
        Batches((torch.zeros(3), torch.zeros(4)), 2, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.floats(0, 100), st.integers(9, 200), st.integers(0, 5))
def test_a_partition_has_equal_parts_and_nothing_twice(
    clients: int, similarity: float, size: int, seed: int
) -> None:
    labels = torch.arange(size) % 7
    parts = by_similarity(labels, clients, similarity, seed)
    distributed = torch.cat(parts)
    assert len(parts) == clients
    assert len({len(p) for p in parts}) == 1
    assert len(distributed.unique()) == len(distributed) > size - 2 * clients
    again = by_similarity(labels, clients, similarity, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_similarity_0_sorts_by_label_and_100_mixes() -> None:
    labels = torch.arange(1000) % 10
    sorted_parts = by_similarity(labels, 5, 0, seed=0)
    mixed_parts = by_similarity(labels, 5, 100, seed=0)
    assert [labels[p].unique().tolist() for p in sorted_parts] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9],
    ]  # fmt: skip
    assert all(len(labels[p].unique()) == 10 for p in mixed_parts)


def test_similarity_30_gives_each_client_30_percent_at_random() -> None:
    labels = torch.arange(1000) % 10
    for part, own in zip(by_similarity(labels, 5, 30, seed=0), range(5), strict=True):
        foreign = (labels[part] // 2 != own).double().mean().item()
        assert 0.16 < foreign < 0.32  # 24% expected: 30% at random, of which a fifth are its own


@pytest.mark.parametrize("similarity", [-1, 101, float("nan")])
def test_a_similarity_outside_0_to_100_is_refused(similarity: float) -> None:
    with pytest.raises(EpisodeError, match="percentage, from 0 to 100"):
        by_similarity(torch.zeros(10), 2, similarity, 0)


def test_more_clients_than_examples_are_refused() -> None:
    with pytest.raises(EpisodeError, match="5 clients cannot share 3 examples"):
        by_similarity(torch.zeros(3), 5, 0, 0)


def test_cohorts_are_a_function_of_seed_and_round() -> None:
    cohorts = [Uniform(3).at(r, 10, seed=1) for r in range(50)]
    assert cohorts == [Uniform(3).at(r, 10, seed=1) for r in range(50)]
    assert all(len(set(c)) == 3 and c == sorted(c) for c in cohorts)
    assert {i for c in cohorts for i in c} == set(range(10))
    assert cohorts != [Uniform(3).at(r, 10, seed=2) for r in range(50)]
    assert Full().at(7, 3, seed=0) == [0, 1, 2]


def test_cyclic_availability_takes_groups_in_turn() -> None:
    cyclic = Cyclic(groups=2, period=3)
    assert [cyclic.at(r, 5, 0) for r in (0, 2, 3, 5, 6)] == [
        [0, 2, 4], [0, 2, 4], [1, 3], [1, 3], [0, 2, 4],
    ]  # fmt: skip
    drawn = Cyclic(groups=2, cohort_size=2).at(0, 5, 0)
    assert len(drawn) == 2
    assert set(drawn) <= {0, 2, 4}


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        (Uniform(9), "there are 8 clients: it must be from 1 to 8"),
        (Uniform(0), "cohort_size is 0"),
        (Cyclic(9), "groups is 9"),
        (Cyclic(2, period=0), "period is 0"),
        (Cyclic(2, cohort_size=5), "smallest of 2 groups has 4 clients"),
    ],
)
def test_cohorts_that_cannot_be_drawn_are_refused(cohorts: Uniform, message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        cohorts.check(8)


def test_derived_seeds_do_not_collide_over_neighbouring_keys() -> None:
    keys = {derive(s, "a", c, r) for s in range(5) for c in range(20) for r in range(20)}
    assert len(keys) == 2000
    assert derive(1, "a", 23) != derive(1, "a", 2, 3)
    assert torch.equal(permutation(9, 1, "x"), permutation(9, 1, "x"))


def test_uniform_numbers_are_uniform_uncorrelated_and_named_by_their_keys() -> None:
    values = uniform(7, np.arange(200)[:, None], np.arange(500))
    assert values.min() >= 0
    assert values.max() < 1
    assert values.mean() == pytest.approx(0.5, abs=0.005)
    assert values.var() == pytest.approx(1 / 12, abs=0.002)
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.01
    assert values[11, 13] == uniform(7, 11, 13)
    assert len(np.unique(values)) == values.size
