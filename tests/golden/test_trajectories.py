"""Stored trajectories: a refactor shows them unchanged.

`python tests/golden/test_trajectories.py` writes them anew, for a change that means to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train

FILE = Path(__file__).with_name("trajectories.json")
ON_FILE = json.loads(FILE.read_text())
"""Rows that came later are held to their plain programs instead."""


def trajectory(algorithm: str) -> list[list[float]]:
    """(training loss, drift, test loss) by round, of digits in float64."""
    experiment = Experiment.from_dict(
        {
            "seed": 11,
            "task": {"name": "digits", "dtype": "float64", "similarity": 20, "num_clients": 4},
            "algorithm": {"name": algorithm, "momentum": 0.3, "weight_decay": 1e-3},
            "schedule": {"eta": 0.5, "gamma": 0.2, "kind": "cosine", "warmup": 2},
            "budget": {"rounds": 4, "local_steps": 3},
            "cohorts": {"kind": "uniform", "cohort_size": 3},
        }
    )
    history = train(job_of(experiment)).history
    return [[r["loss"], r["drift"], r["metrics"]["test_loss"]] for r in history if "metrics" in r]


@pytest.mark.parametrize("algorithm", ON_FILE)
def test_trajectories_are_those_on_file(algorithm: str) -> None:
    stored, computed = ON_FILE[algorithm], trajectory(algorithm)
    assert len(computed) == len(stored)
    for ours, theirs in zip(computed, stored, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-8)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: trajectory(name) for name in ON_FILE}, indent=1) + "\n")
