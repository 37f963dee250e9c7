"""Trust: how much of a correction is believed, on vectors that one can check by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from episode import (
    ALGORITHMS,
    Algorithm,
    EpisodeError,
    FullTrust,
    MeasuredTrust,
    PerStep,
    Remembered,
    Resampled,
    Synchronous,
    Trust,
    Uncorrected,
)
from episode.core.vectors import clamped_ratio, dot
from episode.federation.rounds import divergence
from episode.testing.problems import QuadraticProblem, play

FINITE = st.floats(-1e6, 1e6)


def of_step(
    gradient: list[float],
    local: list[float],
    G: list[float],
    full_from: float = 1.0,
    age: float = 0.0,
) -> float:
    """λ of a step along this gradient, given the anchor (G_r^i, G_r)."""
    shift = torch.tensor(G) - torch.tensor(local)
    trust = MeasuredTrust(full_from)
    return float(trust.of_step(torch.tensor(gradient), shift, dot(shift, shift), age))


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ([5.0, 2.0], 1.0),  # the whole deviation, (4, 0), and more
        ([4.0, 9.0], 1.0),
        ([1.0, 9.0], 0.25),
        ([0.0, 9.0], 0.0),
        ([-3.0, 9.0], 0.0),
    ],
)
def test_measured_trust_is_the_share_of_the_deviation_that_the_gradient_holds(
    gradient: list[float], expected: float
) -> None:
    assert of_step(gradient, local=[5.0, 2.0], G=[1.0, 2.0]) == expected


@pytest.mark.parametrize(("gradient", "expected"), [(2.9, 0.906), (3.2, 1.0), (1.6, 0.5), (-1, 0)])
def test_a_correction_is_believed_in_full_before_all_of_it_is_there(
    gradient: float, expected: float
) -> None:
    found = of_step([gradient, 9.0], local=[5.0, 2.0], G=[1.0, 2.0], full_from=0.8)
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("age", "expected"), [(0.0, 0.25), (2.0, 0.1875), (6.0, 0.0625), (8.0, 0.0), (15.0, 0.0)]
)
def test_a_correction_is_believed_less_the_older_it_is(age: float, expected: float) -> None:
    assert of_step([1.0, 9.0], local=[5.0, 2.0], G=[1.0, 2.0], age=age) == expected


def test_a_correction_ages_by_the_global_gradient_against_the_threshold() -> None:
    of = MeasuredTrust(lifetime=8.0).ageing
    assert [of(G, 4.0, 1.0) for G in (0.0, 1.0, 4.0, 9.0)] == [0.0, 0.25, 1.0, 1.0]
    many = of(torch.tensor([[1.0], [9.0]]), 4.0, torch.tensor([[1.0], [1.0]]))
    assert isinstance(many, torch.Tensor)
    assert many.tolist() == [[0.25], [1.0]]


def test_a_correction_loses_no_more_than_the_global_gradient_in_a_step() -> None:
    """‖D‖ = 80 and a threshold near 0: k steps take a share of k‖G_r‖/‖D‖ away."""
    trust = MeasuredTrust(lifetime=8.0)
    age = 3 * trust.ageing(2.0, 1e-9, 80.0**2)
    assert 80.0 * (1 - trust.weight(80.0**2, 80.0**2, age)) == pytest.approx(3 * 2.0)


def test_the_threshold_is_infinite_where_gamma_is_not_the_length_of_a_step() -> None:
    assert Algorithm.named("episode_trust").threshold(0.5, 2.0) == 4.0
    assert Algorithm.named("episode_trust", momentum=0.9).threshold(0.5, 2.0) == 4.0
    assert Algorithm.named("episode_unclipped").threshold(0.5, 2.0) == math.inf
    assert Algorithm.named("episode_trust", descent="adamw").threshold(0.5, 2.0) == math.inf
    assert MeasuredTrust().ageing(9.0, math.inf, 4.0) == 0.0
    assert FullTrust().ageing(9.0, 1.0, 4.0) == 0.0


@pytest.mark.parametrize("gamma", [0.003, 0.05, 0.2])
def test_near_the_minimum_corrections_do_not_age(gamma: float) -> None:
    """There G_r = 0 and D is the client's gradient: every λ is 1, and nobody leaves."""
    problem = QuadraticProblem.heterogeneous(gamma=gamma)
    played = play(problem, ALGORITHMS["episode_trust"], 600)
    assert min(played.telemetry[-1].metrics["least_trust"]) == pytest.approx(1.0, abs=1e-6)
    assert problem.gradient_norm(played.path[-1]) < 1e-5


@pytest.mark.parametrize("full_from", [0.0, -1.0, 1.01, math.nan, "0.5", None])
def test_a_share_that_is_none_is_refused(full_from: Any) -> None:
    with pytest.raises(EpisodeError, match=r"^full_from is .*\.$"):
        MeasuredTrust(full_from)


@pytest.mark.parametrize("lifetime", [0.0, -1.0, math.inf, math.nan, "4", None])
def test_a_lifetime_that_is_none_is_refused(lifetime: Any) -> None:
    with pytest.raises(EpisodeError, match=r"^lifetime is .*\.$"):
        MeasuredTrust(lifetime=lifetime)


@given(
    st.lists(FINITE, min_size=2, max_size=2),
    st.lists(FINITE, min_size=2, max_size=2),
    st.floats(0.5, 1.0),
    st.floats(0.0, 10.0),
)
def test_a_corrected_gradient_is_never_longer(
    gradient: list[float], deviation: list[float], full_from: float, age: float
) -> None:
    g, D = (torch.tensor(v, dtype=torch.float64) for v in (gradient, deviation))
    trust = float(MeasuredTrust(full_from).of_step(g, -D, dot(D, D), age))
    room = 1e-9 * float(dot(g, g) + dot(D, D))
    assert float(dot(g - trust * D, g - trust * D)) <= float(dot(g, g)) + room


@given(st.lists(FINITE, min_size=2, max_size=2), st.lists(FINITE, min_size=2, max_size=2))
def test_a_correction_takes_away_no_more_of_the_deviation_than_is_there(
    gradient: list[float], deviation: list[float]
) -> None:
    g, D = (torch.tensor(v, dtype=torch.float64) for v in (gradient, deviation))
    trust = float(MeasuredTrust(full_from=1.0).of_step(g, -D, dot(D, D), 0.0))
    before, after = float(dot(g, D)), float(dot(g - trust * D, D))
    room = 1e-9 * (abs(before) + float(dot(D, D)))
    assert min(before, 0.0) - room <= after <= max(before, 0.0) + room


def test_clients_that_agree_have_nothing_to_correct() -> None:
    assert of_step([1.0, 2.0], local=[3.0, 4.0], G=[3.0, 4.0]) == 0.0


def test_what_is_not_finite_is_noticed() -> None:
    assert math.isnan(of_step([math.nan, 0.0], local=[1.0, 0.0], G=[0.0, 0.0]))
    assert math.isnan(of_step([math.inf, 0.0], local=[math.inf, 0.0], G=[0.0, 0.0]))
    assert of_step([math.inf, 0.0], local=[1.0, 0.0], G=[0.0, 0.0]) == 1.0
    assert math.isnan(of_step([1.0, 0.0], local=[1.0, 0.0], G=[0.0, 0.0], age=math.nan))
    assert of_step([1.0, 0.0], local=[1.0, 0.0], G=[0.0, 0.0], age=math.inf) == 0.0


def test_a_client_alone_that_diverges_is_noticed() -> None:
    """It agrees with itself, so D = 0, and its gradient is not a number."""
    assert math.isnan(of_step([math.nan, 0.0], local=[1.0, 2.0], G=[1.0, 2.0]))
    problem = QuadraticProblem.heterogeneous(clients=1, eta=1e200, gamma=1e300)
    played = play(problem, ALGORITHMS["episode_trust"], 1)
    assert divergence(played.server, played.telemetry[0]) is not None


def test_many_runs_at_once_give_what_each_gives_alone() -> None:
    held = [2.0, -1.0, 9.0, 1.0, 0.0, math.nan, math.nan, math.inf, 1.0]
    deviation = [4.0, 4.0, 4.0, 0.0, 0.0, 1.0, 0.0, math.inf, math.nan]
    alone = [float(clamped_ratio(h, d)) for h, d in zip(held, deviation, strict=True)]
    together = clamped_ratio(torch.tensor(held), torch.tensor(deviation))
    assert isinstance(together, torch.Tensor)
    assert str(together.tolist()) == str(alone)


def test_a_dot_product_of_blocks_is_that_of_the_flat_vectors() -> None:
    v, w = torch.randn(2, 12, dtype=torch.float64)
    blocks = [[t[:4].view(2, 2), t[4:]] for t in (v, w)]
    assert dot(*blocks) == pytest.approx(float(v @ w), rel=1e-12)
    assert dot(torch.stack([v, w]), w).shape == (2, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("correction", [Uncorrected(), Synchronous()])
def test_trust_in_a_correction_that_is_not_there_is_refused(
    correction: Uncorrected | Synchronous,
) -> None:
    with pytest.raises(EpisodeError, match=r"^MeasuredTrust weighs .* or FullTrust\.$"):
        Algorithm(correction, PerStep(), trust=MeasuredTrust())


@dataclass(frozen=True)
class Share(Trust):
    """The same share of every correction."""

    share: float = 0.5

    def weight(self, held: object, deviation: object, age: object) -> float:
        return self.share


def test_two_trusts_of_other_settings_are_two_algorithms() -> None:
    a, b = (Algorithm(Remembered(), PerStep(), trust=Share(s)) for s in (0.25, 0.5))
    assert a != b
    assert a.to_dict()["trust"]["share"] == 0.25


def test_trust_is_full_where_there_is_nothing_to_measure() -> None:
    class Unmeasured(MeasuredTrust):
        measures = False

    gradient = torch.ones(2)
    assert MeasuredTrust().of_step(gradient, None, 0.0, 0.0) == 1.0
    assert Unmeasured().of_step(gradient, gradient, 2.0, 0.0) == 1.0
    assert FullTrust().weight(0.5, 4.0, 3.0) == 1.0


def test_trust_can_be_set_by_name() -> None:
    found = Algorithm.from_dict(
        {"correction": "resampled", "clipping": "per_step", "trust": "measured"}
    )
    assert found == Algorithm(Resampled(), PerStep(), trust=MeasuredTrust())
    assert found == Algorithm.named("episode_trust")
    assert Algorithm.named("episode", trust="measured").trust == MeasuredTrust()
    stricter = Algorithm.named("episode_trust", trust={"full_from": 1})
    assert stricter.trust == MeasuredTrust(full_from=1.0)
    assert Algorithm.named("episode").trust == FullTrust()
    with pytest.raises(EpisodeError, match="'measured'"):
        Algorithm.named("episode", trust="mesured")
