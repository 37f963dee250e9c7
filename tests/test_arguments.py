"""Arguments: numpy's numbers are numbers, booleans are not, and every mistake is a sentence."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from episode import (
    Algorithm,
    Cyclic,
    EpisodeError,
    Episodic,
    LazyClients,
    Resampled,
    Schedule,
    Uniform as UniformCohorts,
)
from episode.arguments import folder_path, number, optional, seed_number, shown, whole_number
from episode.core.descent import Descent
from episode.runs.monitor import Monitor

HUGE = 10**5000
"""Python refuses to print it."""


@pytest.mark.parametrize("value", [np.float32(0.5), np.float16(0.5), Fraction(1, 2), 0.5])
def test_any_real_number_becomes_one_of_pythons(value: Any) -> None:
    assert number("eta", value) == 0.5
    assert type(number("eta", value)) is float


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.int32(3), 3])
def test_any_whole_number_becomes_one_of_pythons(value: Any) -> None:
    assert whole_number("rounds", value) == 3
    assert type(whole_number("rounds", value)) is int


@pytest.mark.parametrize(
    "value",
    [True, np.True_, "3", None, 1j, [3], np.array([3]), torch.tensor(3), torch.ones(2, 3)],
)
def test_what_is_not_a_number_is_a_sentence(value: Any) -> None:
    for check in (number, whole_number):
        with pytest.raises(EpisodeError) as caught:
            check("seed", value)
        assert str(caught.value).startswith("seed is ")
        assert "\n" not in str(caught.value)


def test_numbers_that_are_too_large_are_a_sentence() -> None:
    with pytest.raises(EpisodeError, match="eta is too large for a float"):
        number("eta", HUGE)
    with pytest.raises(EpisodeError, match=r"seed is an int: it must be .* 64 bits"):
        seed_number(HUGE)
    with pytest.raises(EpisodeError, match="rounds is an int: it must be 1 or more"):
        whole_number("rounds", -HUGE, least=1)


@given(st.integers() | st.floats() | st.text() | st.booleans() | st.binary() | st.none())
def test_a_number_is_a_number_or_a_sentence(value: Any) -> None:
    try:
        found = number("x", value)
    except EpisodeError:
        assert type(value) not in (int, float)
    else:
        assert found == value or math.isnan(found)


def test_values_are_shown_in_few_words() -> None:
    assert shown(3) == "3"
    assert shown(HUGE) == "an int"
    assert shown("x" * 100) == "a str"
    assert shown(torch.ones(2, 3)) == "a tensor of shape [2, 3]"


@pytest.mark.parametrize("value", [3, True, "", b"x", ["a"], "a\0b"])
def test_what_is_not_a_folder_is_a_sentence(value: Any) -> None:
    with pytest.raises(EpisodeError, match=r"folder is .*: give the path of a folder"):
        folder_path("folder", value)


def test_folders_may_be_left_out() -> None:
    assert optional(folder_path, "folder", None) is None
    assert optional(folder_path, "folder", "runs/a") == Path("runs/a")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule("0.1", 0.1), "eta is '0.1': it must be a number"),
        (lambda: Schedule(0.1, True), "gamma is True: it must be a number"),
        (lambda: Schedule(0.1, 0.1, warmup=None), "warmup is None"),
        (lambda: Schedule(0.1, 0.1, kind="step", milestones=3), "milestones is 3: give a list"),
        (lambda: Schedule(0.1, 0.1, kind="step", milestones=("a",)), "milestones is 'a'"),
        (lambda: Schedule(0.1, 0.1, gamma_follows_eta="no"), "it must be True or False"),
        (lambda: UniformCohorts("2"), "cohort_size is '2': it must be a whole number"),
        (lambda: UniformCohorts(2.5), "cohort_size is 2.5: it must be a whole number"),
        (lambda: UniformCohorts(True), "cohort_size is True"),
        (lambda: Cyclic(2.0), "groups is 2.0"),
        (lambda: Cyclic(2, period="a"), "period is 'a'"),
        (lambda: Descent(momentum="x"), "momentum is 'x'"),
        (lambda: Descent(weight_decay=True), "weight_decay is True"),
        (
            lambda: Descent(momentum=0.5, nesterov="no"),
            "nesterov is 'no': it must be True or False",
        ),
        (lambda: Algorithm(Resampled(), Episodic(), probe_batches=2.5), "probe_batches is 2.5"),
        (lambda: Algorithm(Resampled(), Episodic(), reuse_probe="no"), "reuse_probe is 'no'"),
        (lambda: LazyClients("3", lambda c: c), "count is '3'"),
        (lambda: LazyClients(0, lambda c: c), "count is 0: it must be 1 or more"),
        (lambda: LazyClients(3, [1, 2, 3]), "open_client is .*: give a function"),
        (lambda: Monitor(sigma="x"), "sigma is 'x'"),
    ],
)
def test_pieces_of_a_run_check_their_arguments(make: Any, message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        make()


def test_pieces_of_a_run_take_numpys_numbers() -> None:
    assert Schedule(np.float32(0.5), np.float64(0.5)) == Schedule(0.5, 0.5)
    assert type(Schedule(np.float32(0.5), 0.5).eta) is float
    assert UniformCohorts(np.int64(2)).to_dict() == {"kind": "uniform", "cohort_size": 2}
    assert type(UniformCohorts(np.int64(2)).cohort_size) is int
