"""What the demo shows, as a test: EPISODE learns where the others fail."""

from __future__ import annotations

import pytest

from episode.experiments.config import Experiment
from episode.experiments.run import execute, job_of


def accuracy(algorithm: str) -> float:
    experiment = Experiment.from_dict(
        {
            "task": "digits",
            "algorithm": algorithm,
            "record": {"evaluate_every": 0},
        }
    )
    run = execute(job_of(experiment))
    assert run.status == "finished"
    return float(run.summary["figures"]["test_accuracy"])


@pytest.mark.slow
def test_episode_beats_celgc_by_20_points_and_the_unclipped_ones_fail() -> None:
    celgc = accuracy("celgc")
    for name in ("episode", "episode_guarded"):
        assert accuracy(name) >= celgc + 0.2
    for name in ("fedavg", "scaffold", "episode_unclipped"):
        assert accuracy(name) < celgc - 0.1
