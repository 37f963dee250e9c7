"""Theorem 1 and Table 1 against numbers worked out by hand, and every mistake a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from episode.errors import EpisodeError
from episode.theory import complexity
from episode.theory.complexity import Scenario, fewest, table
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import TheoremPlan, clipping_threshold, plan
from episode.theory.plan_figure import _why_flat, draw_plan

positive = st.floats(0.01, 100)


def made(constants: Constants, **changes: object):  # type: ignore[no-untyped-def]
    return plan(constants, **({"epsilon": 0.1, "clients": 4, "local_steps": 2} | changes))


def test_a_and_b_are_those_of_the_lemmas() -> None:
    assert Smoothing(1.0).A == pytest.approx(2.0)  # 1 + e - (e - 1)
    assert Smoothing(1.0).B == pytest.approx(math.e - 1)
    assert Smoothing(2.0).B == pytest.approx((math.e**2 - 1) / 2)
    assert Smoothing(2.0).A == pytest.approx(1 + math.e**2 - (math.e**2 - 1) / 2)


def test_a_plan_worked_out_by_hand() -> None:
    # A = 2, B = e - 1; σ = 1, L0 = 1, L1 = 1/B, κ = 3, ρ = 2: BL1 = 1, AL0 = 2.
    c = Constants(L0=1, L1=1 / (math.e - 1), sigma=1, kappa=3, rho=2, delta=5)
    p = made(c, epsilon=0.5)
    assert p.threshold == pytest.approx(11 + 2 / 2)
    assert p.Gamma == pytest.approx(2 + 3 + 2 * (1 + 12))
    assert p.eta_bounds == pytest.approx(
        {"drift": 1 / (216 * 31 * 2), "noisy drift": 0.5 / (180 * 31 * 2), "noise": 4 * 0.25 / 32}
    )
    assert p.eta == pytest.approx(0.5 / 11160)
    assert p.binding == "noisy drift"
    assert p.gamma == pytest.approx(12 * p.eta)
    assert p.rounds == math.ceil(4 * 5 / (0.25 * p.eta * 2)) == 892_800
    assert p.iterations == 2 * p.rounds
    assert p.largest_local_steps == pytest.approx((0.5 / (180 * 31)) / (4 * 0.25 / 32))
    assert all(condition.holds for condition in p.conditions)
    other = made(c, epsilon=0.5, statement="appendix")
    assert other.eta_bounds["drift"] == pytest.approx(1 / (856 * 31 * 2))
    assert other.eta_bounds["noise"] == pytest.approx(4 * 0.25 / 16)


@given(positive, positive, positive, positive, st.floats(1, 5), st.floats(1, 3))
def test_the_short_form_of_gamma_is_the_papers(
    L0: float, L1: float, sigma: float, kappa: float, rho: float, C: float
) -> None:
    c, s = Constants(L0, L1, sigma, kappa, rho), Smoothing(C)
    paper = s.A * L0 + s.B * L1 * kappa + s.B * L1 * rho * (sigma + clipping_threshold(c, s))
    made = TheoremPlan(c, epsilon=1, clients=1, local_steps=1, smoothing=s, statement="main")
    assert made.Gamma == pytest.approx(paper)


@given(positive, positive, st.floats(0, 10), positive, st.floats(1, 5), st.integers(1, 64))
def test_the_theorems_choice_meets_every_condition(
    L0: float, L1: float, sigma: float, kappa: float, rho: float, local_steps: int
) -> None:
    c = Constants(L0, L1, sigma, kappa, rho)
    largest = 3 * 2 * L0 / (5 * (math.e - 1) * L1 * rho)
    for statement in ("main", "appendix"):
        p = made(c, epsilon=largest / 2, local_steps=local_steps, statement=statement)
        assert all(condition.holds for condition in p.conditions), p.conditions


def test_an_own_choice_is_told_which_conditions_fail() -> None:
    c = Constants(L0=1, L1=1, sigma=1, kappa=1, rho=1)
    p = made(c)
    failing = {x.name for x in p.check(eta=1.0, gamma=1.0) if not x.holds}
    assert failing == {
        "step size: drift", "step size: noisy drift", "step size: noise",
        "clipping threshold", "Lemma 1: smoothness", "Lemma 1: reach",
    }  # fmt: skip
    assert all(x.holds for x in p.check(eta=p.eta, gamma=p.gamma))
    assert all(x.holds for x in p.check(eta=p.eta / 2, gamma=p.gamma / 2))


def test_without_noise_only_drift_limits_the_step_and_clients_do_not_help() -> None:
    c = Constants(L0=1, L1=1, sigma=0, kappa=1, rho=2)
    p = made(c)
    assert p.binding == "drift"
    assert p.eta_bounds["noise"] == math.inf
    assert p.largest_local_steps == 0
    assert made(c, clients=64).rounds == p.rounds
    assert made(c, local_steps=16).rounds == pytest.approx(p.rounds, abs=1)


def test_a_smooth_problem_is_never_clipped() -> None:
    p = made(Constants(L0=1, L1=0, sigma=1, kappa=1), epsilon=100.0)
    assert p.threshold == p.gamma == math.inf
    near = made(Constants(L0=1, L1=1e-9, sigma=1, kappa=1))
    assert near.Gamma == pytest.approx(p.Gamma, rel=1e-6)
    assert all(c.holds for c in p.conditions)


def test_up_to_the_largest_i_iterations_stay_and_speed_up_is_linear() -> None:
    c = Constants(L0=1, L1=0.001, sigma=50, kappa=0, rho=1)
    p = made(c, epsilon=0.01, clients=1, local_steps=1)
    assert p.largest_local_steps > 64
    for n in (2, 16, 64):
        both = made(c, epsilon=0.01, clients=n, local_steps=1)
        assert both.iterations == pytest.approx(p.iterations / n, rel=1e-6)
    steps = math.floor(p.largest_local_steps)
    kept = made(c, epsilon=0.01, clients=1, local_steps=steps).iterations
    assert kept == pytest.approx(p.iterations, rel=1e-6)
    beyond = made(c, epsilon=0.01, clients=1, local_steps=4 * steps).iterations
    assert beyond == pytest.approx(4 * kept, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"L0": -1.0}, "L0 is -1.0: it must be above 0"),
        ({"L1": -0.1}, "L1 is -0.1: it must be 0 or more"),
        ({"rho": 0.5}, "rho is 0.5, but f is the mean"),
        ({"sigma": math.nan}, "sigma is nan: it must be a finite number"),
        ({"kappa": "1"}, "kappa is '1': it must be a number"),
        ({"delta": 0.0}, "delta is 0.0: it must be above 0"),
    ],
)
def test_constants_that_cannot_be_are_a_sentence(changes: dict[str, float], message: str) -> None:
    with pytest.raises(EpisodeError, match=message.replace("(", r"\(")):
        Constants(**({"L0": 1.0, "L1": 1.0, "sigma": 1.0} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 10.0}, r"admits at most 3AL0/\(5BL1ρ\)"),
        ({"epsilon": 0.0}, "epsilon is 0.0: it must be above 0"),
        ({"clients": 0}, "clients is 0: it must be a whole number"),
        ({"C": 0.5}, "C is 0.5: it must be from 1"),
        ({"statement": "mian"}, "did you mean 'main'"),
        ({"epsilon": 1e-200}, "more rounds than a float can hold"),
    ],
)
def test_settings_that_the_theorem_does_not_admit_are_a_sentence(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        made(Constants(1, 1, 1, 1, 2), **changes)


def test_the_table_worked_out_by_hand() -> None:
    c = Constants(L0=2, L1=0.5, sigma=3, kappa=4, rho=2, delta=7)
    rows = {r.method: r for r in table(Scenario(c, 0.5, 10, 5, smoothness=6))}
    assert rows["Local SGD"].rounds == pytest.approx(
        7 * 6 * 9 / (10 * 5 / 16) + 7 * 6 * 16 * 10 * 5 / (9 / 4) + 7 * 6 * 10 * 4
    )
    assert rows["Local SGD"].largest_local_steps == pytest.approx(9 / (4 * 10 * 0.5))
    assert rows["SCAFFOLD"].rounds == pytest.approx(7 * 6 * 9 / (10 * 5 / 16) + 7 * 6 * 4)
    assert rows["SCAFFOLD"].largest_local_steps == pytest.approx(9 / (10 / 4))
    assert rows["Clipped SGD"].iterations == pytest.approx((7 + 3.5 * 9 + 3 * 4 / 0.5) ** 2 * 16)
    assert rows["Clipping Framework"].iterations == pytest.approx(7 * 2 * 9 * 16)
    assert rows["CELGC"].rounds == pytest.approx(7 * 2 * 9 * 16 / 50)
    assert rows["CELGC"].largest_local_steps == pytest.approx(3 / 5)
    assert rows["EPISODE"].rounds == pytest.approx(7 * 2 * 9 * 16 / 50 + 7 * 5.5 * 4 * 7)
    assert rows["EPISODE"].largest_local_steps == pytest.approx(2 * 9 / (5.5 * 7 * 10 / 4))
    for row in rows.values():
        steps = 1 if row.largest_local_steps is None else 5
        assert row.iterations == pytest.approx(row.rounds * steps)


def test_a_method_that_the_theory_does_not_cover_cannot_win() -> None:
    heterogeneous = table(Scenario(Constants(1, 1, 1, 1, 2), 0.1, 8, 8))
    assert fewest(heterogeneous) == ["EPISODE"]
    assert {r.method for r in heterogeneous if r.obstacle} == set(complexity.METHODS) - {"EPISODE"}
    homogeneous = table(Scenario(Constants(1, 1, 1), 0.001, 8, 8))
    assert fewest(homogeneous) == ["CELGC"]
    noiseless = table(Scenario(Constants(1, 0, 0, 1, 2), 0.1, 8, 8))
    assert "divides by σ" in str(noiseless[0].obstacle)
    assert fewest(noiseless) == ["SCAFFOLD", "EPISODE"]
    assert np.isfinite(noiseless[1].rounds)


def test_the_figure_says_why_a_curve_is_flat(tmp_path: Path) -> None:
    constants = Constants(L0=1, L1=1, sigma=1, kappa=1, rho=2, delta=1)
    made = plan(constants, epsilon=0.1, clients=8, local_steps=8)
    draw_plan(made, Scenario(constants, 0.1, 8, 8), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().count("<svg") == 1
    assert "I is above I_max = 0.00473" in _why_flat(made, "clients")
    strict = [replace(made, epsilon=0.1 / k).rounds for k in (1, 2, 4)]
    assert strict[2] > 4 * strict[1] > 16 * strict[0]  # the first panel is never flat
