"""What the demo shows, as a test: EPISODE learns where the others fail."""

from __future__ import annotations

import pytest

from episode.experiments.config import Experiment
from episode.experiments.run import execute, job_of
from episode.theory.diagnose import diagnose_task
from episode.theory.trajectory import Options


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


def trained(algorithm: str, eta: float, threshold: float, local_steps: int) -> dict[str, float]:
    """Figures after the demo's 480 iterations."""
    values = {
        "task": "digits",
        "algorithm": algorithm,
        "schedule": {"eta": eta, "gamma": eta * threshold},
        "budget": {"rounds": 480 // local_steps, "local_steps": local_steps},
        "record": {"evaluate_every": 0},
    }
    figures: dict[str, float] = execute(job_of(Experiment.from_dict(values))).summary["figures"]
    return figures


@pytest.mark.long
def test_the_verdict_on_digits_agrees_with_what_the_algorithms_do() -> None:
    task = Experiment.from_dict({"task": "digits"}).task.build(0, "cpu")
    # Eigenvalues take half of the time, and no answer rests on them.
    options = Options(hessian_clients=1, hessian_batches=1)
    found = diagnose_task(task, title="digits", options=options)
    verdict, chosen = found.verdict, found.rehearsal.chosen
    at = (chosen.eta, chosen.threshold, chosen.local_steps)

    ours = trained(verdict.algorithm, *at)
    assert ours["test_accuracy"] > 0.9
    assert verdict.correction
    without = {"episode_unclipped": "fedavg", "episode_guarded": "celgc"}[verdict.algorithm]
    assert trained(without, *at)["train_loss"] > 1.2 * ours["train_loss"]

    assert verdict.clipping_from is not None
    there = (verdict.clipping_from, chosen.threshold, 8)
    plain, clipped = (trained(name, *there) for name in ("episode_unclipped", "episode_guarded"))
    assert clipped["test_accuracy"] > plain["test_accuracy"] + 0.2

    more = trained(verdict.algorithm, *at[:2], 4 * chosen.local_steps)
    assert more["train_loss"] > 2 * ours["train_loss"]
