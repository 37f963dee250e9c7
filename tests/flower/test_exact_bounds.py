"""The bounds on replies, by numbers computed by hand: what is just allowed, and what is not."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from episode import ALGORITHMS, Algorithm, Schedule
from episode.federation.protocols import Reply
from episode.federation.rounds import MOST, Plan
from episode.federation.state import Buffers, ClientState
from episode.flower.bounds import FAR, FAR_FOR_BUFFERS, Bounds, Measured, _change, _largest, norm_of
from episode.flower.checks import Rejected
from episode.flower.messages import Answer, Ask

UNIT = torch.tensor([1.0, 0.0], dtype=torch.float64)
NEVER = Buffers()


def bounds(algorithm: Algorithm | str, phase: Any = "local", **changes: Any) -> Bounds:
    """Return bounds at x̄ = 0 with η = 0.5, γ = 0.001 and I = 4."""
    named = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    given = {"x": 0 * UNIT, "buffers": NEVER, "G": None, "G_norm": 0.0, "eta": 0.5, "gamma": 1e-3}
    return Bounds(named, phase, **{**given, "local_steps": 4, **changes})


def answer(
    buffers: Buffers | None = None, metrics: dict[str, Any] | None = None, **vectors: Tensor
) -> Answer:
    held = {name: vectors.pop(name) for name in ("memory", "velocity") if name in vectors}
    return Answer(ClientState(**held), "", Reply(vectors, buffers, metrics or {}))


def measured(limits: Bounds, *answers: Answer) -> list[Measured]:
    return list(limits._measured(dict(enumerate(answers))))


def test_a_norm_is_computed_in_double_precision() -> None:
    assert norm_of(torch.full((3,), 1e30, dtype=torch.float32)) == pytest.approx(1.732e30, rel=1e-3)
    assert norm_of(torch.full((2,), 3 + 4j, dtype=torch.complex64)) == pytest.approx(50**0.5)


def test_a_change_is_computed_in_double_precision() -> None:
    largest = torch.finfo(torch.float32).max
    assert _change(torch.tensor([largest]), torch.tensor([-largest])) == 2 * largest
    large = torch.tensor([2**53 + 1, 7])
    assert _change(torch.tensor([2**62, 7]), torch.tensor([-(2**62), 7])) == 2.0**63
    assert _change(large, large) == 0.0
    turned = _change(torch.tensor([1 + 1j, 2j]), torch.tensor([1 - 1j, 2j]))
    assert turned == 2.0


def test_what_was_not_a_number_and_still_is_not_has_not_changed() -> None:
    nan = torch.tensor([math.nan, math.inf, 1.0])
    assert _change(nan, nan.clone()) == 0.0
    assert _change(torch.tensor([3.0, math.inf, 1.0]), nan) == 3.0
    assert math.isnan(_change(nan, torch.tensor([3.0, math.inf, 1.0])))


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (torch.float16, 65504 / 16),
        (torch.float32, 1e-3 * math.sqrt(torch.finfo(torch.float32).max)),
        (torch.float64, 1e-3 * math.sqrt(torch.finfo(torch.float64).max)),
    ],
)
def test_a_norm_may_be_as_large_as_others_can_compute_with(
    dtype: torch.dtype, largest: float
) -> None:
    assert _largest(dtype) == pytest.approx(largest, rel=1e-12)


def test_a_norm_that_equals_its_limit_is_allowed() -> None:
    limits = bounds("parallel_sgd", "probe", x=UNIT.half(), max_norm=4094.0)
    limits.check(ClientState(), answer(gradient=4094 * UNIT.half()))
    with pytest.raises(Rejected, match=r"sent a gradient of norm 4.1e\+03, which is too large"):
        limits.check(ClientState(), answer(gradient=4096 * UNIT.half()))
    limits = bounds("parallel_sgd", "probe", max_norm=2.0)
    limits.check(ClientState(), answer(gradient=2 * UNIT))
    with pytest.raises(Rejected, match=r"^sent a gradient of norm 2.5, above max_norm = 2$"):
        limits.check(ClientState(), answer(gradient=2.5 * UNIT))


def test_finite_numbers_whose_norm_is_infinite_are_too_large_and_not_called_infinite() -> None:
    huge = torch.full((4,), 1e308, dtype=torch.float64)
    assert norm_of(huge) == math.inf
    limits = bounds("parallel_sgd", "probe", x=0 * huge)
    for value, reason in ((1.0, "too large to compute with"), (math.inf, "is not finite")):
        sent = answer(gradient=value * huge)
        with pytest.raises(Rejected, match=reason) as caught:
            limits.check(ClientState(), sent)
        assert caught.value.not_finite is sent


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300])
def test_a_metric_that_cannot_be_added_up_is_rejected_with_its_answer(value: float) -> None:
    sent = answer(x=0 * UNIT, metrics={"drift": None, "loss": value})
    with pytest.raises(Rejected, match=f"^sent a loss of {value}$".replace("+", r"\+")) as caught:
        bounds("fedavg").check(ClientState(), sent)
    assert caught.value.not_finite is sent


def test_buffers_may_stay_as_infinite_as_they_were() -> None:
    mask = Buffers(torch.tensor([-math.inf, 1.0]))
    bounds("fedavg", buffers=mask).check(ClientState(), answer(mask, x=0 * UNIT))
    with pytest.raises(Rejected, match="sent buffers that are not finite"):
        bounds("fedavg", buffers=Buffers(torch.zeros(2))).check(
            ClientState(), answer(mask, x=0 * UNIT)
        )


@pytest.mark.parametrize(("steps", "allowed"), [(0, 0), (1, 1), (MOST - 1, 1), (MOST, 0)])
def test_moments_are_of_one_step_or_more(steps: int, allowed: int) -> None:
    sent = answer(x=0 * UNIT)
    sent.state = ClientState(velocity=UNIT, second=UNIT, steps=torch.tensor([steps]))
    refused = pytest.raises(Rejected, match=f"^sent moments of {steps} steps$")
    with nullcontext() if allowed else refused:
        bounds("diloco").check(ClientState(), sent)


def test_a_velocity_above_its_limit_is_named() -> None:
    momentum = Algorithm.named("fedavg", momentum=0.5)
    limits = bounds(momentum, max_norm=1.0)
    limits.check(ClientState(), answer(x=0 * UNIT, velocity=4 * UNIT))
    with pytest.raises(Rejected, match=r"^sent a velocity of norm 4.5, above what max_norm allows"):
        limits.check(ClientState(), answer(x=0 * UNIT, velocity=4.5 * UNIT))


def test_an_x_at_the_very_limit_is_allowed() -> None:
    """Four steps of 0.5 along gradients of at most 1 lead as far as 2; twice that is allowed."""
    limits = bounds("fedavg", max_norm=1.0)
    edge = limits._with_room(2.0)
    limits.check(ClientState(), answer(x=edge * UNIT))
    with pytest.raises(Rejected, match=r"sent an x that is 4 away from .* no further than 2$"):
        limits.check(ClientState(), answer(x=edge * (1 + 1e-15) * UNIT))


def test_the_correction_is_taken_from_the_memory_if_the_algorithm_has_one() -> None:
    before = ClientState(memory=-2 * UNIT, anchor=10 * UNIT)
    for name, longest in (("scaffold", 1 + 5.0), ("episode_unclipped", 1 + 7.0)):
        limits = bounds(name, G=3 * UNIT, G_norm=3.0, max_norm=1.0)
        assert limits._longest_direction(before) == longest
        assert limits._longest_direction(ClientState()) == 4.0


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 0.004),
        ({"x": 7 * UNIT}, 7.0),
        ({"gamma": 3.0}, 12.0),
        ({"G": 5 * UNIT}, 10.0),
        ({"G": 5 * UNIT, "x": 11 * UNIT, "gamma": 3.0}, 12.0),
    ],
)
def test_the_scale_of_a_round_is_the_largest_of_three_lengths(
    changes: dict[str, Any], scale: float
) -> None:
    """They are ‖x̄_r‖, γ·I and η·I·‖G_r‖."""
    assert bounds("fedavg", **changes)._scale() == pytest.approx(scale)


def test_vectors_are_measured_by_the_movement_that_they_would_cause() -> None:
    """The scale is 12, and four steps of 0.5 lead that far along vectors of norm 6."""
    two = {"gamma": 3.0}
    assert measured(bounds("parallel_sgd", "probe", **two), answer(gradient=2 * UNIT)) == [
        Measured("a gradient", {0: 2.0}, 6.0, FAR)
    ]
    scaffold = Algorithm.named("scaffold", momentum=0.75)
    sent = answer(x=3 * UNIT, memory=4 * UNIT, velocity=5 * UNIT)
    assert measured(bounds(scaffold, **two), sent, answer(x=UNIT)) == [
        Measured("an x that differs from the server's by a vector", {0: 3.0, 1: 1.0}, 12.0),
        Measured("a memory", {0: 4.0}, 6.0),
        Measured("a velocity", {0: 5.0}, 24.0),
    ]
    assert measured(bounds("fedavg", eta=0.0), answer(x=UNIT)) == []
    assert measured(bounds("fedavg")) == []
    assert measured(bounds("celgc", **two), answer(x=UNIT)) == []


@pytest.mark.parametrize(
    ("old", "steps", "scale"), [(0.0, 1, 1.0), (0.5, 0, 1.0), (0.0, 4, 4.0), (9.0, 4, 9.0)]
)
def test_buffers_are_measured_by_their_change(old: float, steps: int, scale: float) -> None:
    floats = torch.tensor([old], dtype=torch.float64)
    limits = bounds("celgc", buffers=Buffers(floats), local_steps=steps)
    found = measured(limits, answer(Buffers(floats + 2), x=UNIT), answer(x=UNIT))
    assert found == [Measured("buffers that differ by a vector", {0: 2.0}, scale, FAR_FOR_BUFFERS)]


@pytest.mark.parametrize(("size", "unusual"), [(3e3, False), (3001.0, True)])
def test_only_what_is_more_than_far_is_unusual(size: float, unusual: bool) -> None:
    sent = {c: answer(x=length * UNIT) for c, length in enumerate((1.0, 3.0, size))}
    found = bounds("fedavg").outliers(sent)
    assert list(found) == [2] * unusual
    if unusual:
        assert found[2] == (
            "sent an x that differs from the server's by a vector of norm 3e+03, more than 1000 "
            "times what is usual in this round (3)"
        )


@pytest.mark.parametrize(
    ("name", "phase", "with_plan", "steps"),
    [
        ("episode", "probe", True, (0.25, 0.125, 4)),
        ("parallel_sgd", "probe", True, (0.25, 0.125, 1)),
        ("episode", "probe", False, (0.5, 2.0, 3)),
        ("episode", "local", True, (0.5, 2.0, 3)),
    ],
)
def test_a_probe_has_the_step_sizes_of_the_plan(
    name: str, phase: Any, with_plan: bool, steps: tuple[float, float, int]
) -> None:
    algorithm = ALGORITHMS[name]
    text = json.dumps(algorithm.to_dict())
    ask = Ask(phase, "t", 0, text, round=1, eta=0.5, gamma=2.0, G_norm=7.0, local_steps=3)
    plan = Plan(algorithm, Schedule(0.25, 0.125), 2, 4) if with_plan else None
    sent = {"x": UNIT, "buffers": NEVER, "G": 2 * UNIT}
    found = Bounds.of(ask, sent, plan, 9.0)
    assert (found.eta, found.gamma, found.local_steps) == steps
    assert (found.algorithm, found.phase, found.G_norm, found.max_norm) == (
        algorithm, phase, 7.0, 9.0,
    )  # fmt: skip
    assert found.x is UNIT
    assert found.buffers is NEVER
    assert found.G is sent["G"]
    assert Bounds.of(ask, {"x": UNIT, "buffers": NEVER}, plan, None).G is None
