"""Cohorts among many clients: drawn without touching them all, and unchanged among few."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from episode import Cyclic, EpisodeError, Uniform
from episode.federation.sampling import PERMUTED_UP_TO
from episode.randomness import permutation, sample

MANY = 100_000_000


@pytest.mark.parametrize("clients", [10, PERMUTED_UP_TO])
def test_cohorts_among_few_clients_are_the_beginning_of_a_permutation(clients: int) -> None:
    for r in range(3):
        expected = sorted(permutation(clients, 7, "cohort", r)[:5].tolist())
        assert Uniform(5).at(r, clients, seed=7) == expected
        expected = sorted(3 * i + r for i in permutation(clients, 7, "cohort", r)[:5])
        assert Cyclic(3, cohort_size=5).at(r, 3 * clients, seed=7) == expected


def test_cohorts_among_many_clients_are_as_stored() -> None:
    """A run with many clients resumes with the cohorts that it began with."""
    assert Uniform(5).at(0, 100_000, seed=0) == [11656, 33283, 48707, 59464, 94355]
    assert Uniform(5).at(1, 100_000, seed=0) == [6297, 42599, 43852, 68983, 82750]


@pytest.mark.parametrize("rule", [Uniform(100), Cyclic(7, cohort_size=100)])
def test_a_cohort_is_drawn_without_touching_all_clients(rule: Uniform | Cyclic) -> None:
    tracemalloc.start()
    cohort = rule.at(3, MANY, seed=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6  # a list of them all would take 800 MB
    assert len(set(cohort)) == 100
    assert cohort == sorted(cohort) == rule.at(3, MANY, seed=1)
    assert 0 <= cohort[0]
    assert cohort[-1] < MANY
    assert cohort != rule.at(4, MANY, seed=1)
    assert cohort != rule.at(3, MANY, seed=2)


def test_a_group_of_many_clients_is_drawn_from_alone() -> None:
    for r in range(4):
        cohort = Cyclic(4, cohort_size=50).at(r, MANY, seed=0)
        assert {client % 4 for client in cohort} == {r}


def test_samples_are_uniform_over_all_subsets() -> None:
    counts = {(a, b): 0 for a in range(5) for b in range(a + 1, 5)}
    for k in range(20_000):
        counts[tuple(sample(5, 2, 0, "test", k))] += 1  # type: ignore[index]
    # χ² with 9 degrees of freedom: above 27.9 in one of a thousand; the draws are always the same.
    assert sum((n - 2000) ** 2 / 2000 for n in counts.values()) < 27.9


def test_a_sample_of_all_is_all() -> None:
    assert sample(12, 12, 3, "test") == list(range(12))
    assert np.unique(sample(10**15, 1000, 3, "test")).size == 1000


def test_all_clients_that_are_available_take_part_unless_some_are_drawn() -> None:
    rule = Cyclic(2, period=2)
    groups = [[0, 2, 4], [0, 2, 4], [1, 3], [1, 3], [0, 2, 4]]
    assert [rule.at(r, 5, seed=0) for r in range(5)] == groups


def test_a_cohort_is_no_larger_than_the_smallest_group() -> None:
    Cyclic(2, cohort_size=1).check(5)
    Cyclic(2, cohort_size=2).check(5)
    for size in (0, 3):
        with pytest.raises(EpisodeError, match="smallest of 2 groups has 2 clients"):
            Cyclic(2, cohort_size=size).check(5)
    for rule, reason in ((Cyclic(6), "groups is 6"), (Cyclic(2, period=0), "period is 0")):
        with pytest.raises(EpisodeError, match=reason):
            rule.check(5)


def test_groups_and_cohorts_may_be_as_many_as_there_are_clients() -> None:
    Cyclic(5).check(5)
    Cyclic(1, period=1, cohort_size=5).check(5)
    Uniform(1).check(5)
    Uniform(5).check(5)
    for size in (0, 6):
        with pytest.raises(EpisodeError, match=f"cohort_size is {size}, but there are 5 clients"):
            Uniform(size).check(5)
    with pytest.raises(EpisodeError, match="groups is 0, but there are 5 clients"):
        Cyclic(0).check(5)


@pytest.mark.parametrize("name", ["groups", "period", "cohort_size"])
def test_numbers_of_clients_and_rounds_are_whole(name: str) -> None:
    given = {"groups": 1, "period": 1, "cohort_size": 1, name: np.int64(2)}
    assert type(getattr(Cyclic(**given), name)) is int
    with pytest.raises(EpisodeError, match=f"{name} is 1.5: it must be a whole number"):
        Cyclic(**(given | {name: 1.5}))
    with pytest.raises(EpisodeError, match="cohort_size is True: it must be a whole number"):
        Uniform(True)
    if name != "cohort_size":
        with pytest.raises(EpisodeError, match=f"{name} is None: it must be a whole number"):
            Cyclic(**(given | {name: None}))
