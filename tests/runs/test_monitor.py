"""The monitor: silent where all is well, else one warning of each kind, and no part of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from episode.core.algorithm import ALGORITHMS
from episode.errors import EpisodeError
from episode.runs.config import Experiment
from episode.runs.monitor import REACH, WINDOW, Monitor
from episode.runs.trainer import job_of, train


def record(round: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "round": round, "eta": 0.1, "gamma": 0.1, "threshold": 1.0, "global_norm": 0.5,
        "clipped": bool(round % 2), "drift": 0.01,
    }  # fmt: skip
    return usual | changes


def told(**changes: Any) -> dict[str, str]:
    monitor = Monitor(say=lambda text: None)
    for r in range(WINDOW + 5):
        monitor(record(r, **changes))
    return monitor.said


def test_a_run_within_the_theory_is_left_alone() -> None:
    assert told() == {}
    assert told(clipped=None, global_norm=None) == {}


def test_a_threshold_that_never_or_always_bites_is_told() -> None:
    assert list(told(clipped=False)) == ["never clipped"]
    assert "‖G_r‖ at most 0.5" in told(clipped=False)["never clipped"]
    assert list(told(clipped=True)) == ["always clipped"]


def test_unclipped_rounds_are_held_against_lemma_1() -> None:
    far = 1.01 * REACH * 0.1  # I = 1
    assert list(told(drift=far)) == ["drift beyond Lemma 1"]
    assert told(drift=0.99 * REACH * 0.1) == {}
    exploded = told(drift=5.0)["exploding local steps"]
    assert "use episode_guarded" in exploded
    noisy = Monitor(sigma=10.0, say=lambda text: None)
    noisy(record(0, drift=far))
    assert noisy.said == {}


def job(algorithm: str, **schedule: float) -> Any:
    values: dict[str, Any] = {"task": {"name": "synthetic"}, "algorithm": {"name": algorithm}}
    values["schedule"], values["budget"] = schedule, {"rounds": 40, "local_steps": 8}
    return job_of(Experiment.from_dict(values))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_watched_run_is_the_same_run(algorithm: str) -> None:
    plain = train(job(algorithm))
    monitor = Monitor(say=lambda text: None)
    watched = train(monitor.watch(job(algorithm)), observe=monitor)
    assert torch.equal(plain.x, watched.x)


def test_an_exploding_run_of_episode_is_told_and_a_guarded_one_is_not() -> None:
    for name, expected in (("episode", True), ("episode_guarded", False)):
        monitor = Monitor(say=lambda text: None)
        train(monitor.watch(job(name, eta=0.1, gamma=0.5)), observe=monitor)
        assert ("exploding local steps" in monitor.said) is expected


def test_corrections_larger_than_gradients_are_told() -> None:
    monitor = Monitor(say=lambda text: None)
    for r in range(WINDOW):
        assert monitor.said == {}
        monitor(record(r, correction_ratio=3.0))
    assert "3.0 times as large" in monitor.said["corrections larger than gradients"]


def test_a_watched_run_measures_the_correction_of_a_client_by_hand() -> None:
    """With slopes 3 and -1 at x = 0: G = 1, so client 0 is corrected by -2 and has gradient 3."""
    task = {"name": "quadratics", "slopes": [3.0, -1.0], "curvatures": [1.0, 1.0], "x_0": 0.0}
    values = {"task": task, "algorithm": {"name": "episode"}}
    values |= {"budget": {"rounds": 1, "local_steps": 2}, "schedule": {"eta": 0.1, "gamma": 10.0}}
    run = train(Monitor().watch(job_of(Experiment.from_dict(values))))
    assert run.history[0]["correction_ratio"] == pytest.approx(2 / 3)
    assert "correction_ratio" not in train(job_of(Experiment.from_dict(values))).history[0]


def test_warnings_are_python_warnings_unless_told_otherwise() -> None:
    monitor = Monitor()
    with pytest.warns(UserWarning, match="went 5 far"):
        monitor(record(0, drift=5.0))
    with pytest.raises(EpisodeError, match="sigma is -1"):
        Monitor(sigma=-1)
