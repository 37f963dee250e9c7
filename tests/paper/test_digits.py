"""Digits at the task's default η = 1 and γ = 0.1, which all algorithms share here.

The unclipped ones learn at a smaller η (docs/results.md), so this is no ranking of algorithms.
"""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import episode
from episode.data.partition import by_similarity
from episode.diagnosis.diagnose import diagnose_task
from episode.diagnosis.options import DiagnosisOptions
from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train


def accuracy(algorithm: str) -> float:
    experiment = Experiment.from_dict(
        {
            "task": "digits",
            "algorithm": algorithm,
            "record": {"evaluate_every": 0},
        }
    )
    run = train(job_of(experiment))
    assert run.status == "finished"
    return float(run.summary["metrics"]["test_accuracy"])


@pytest.mark.long
def test_at_the_default_setting_episode_beats_celgc_and_the_unclipped_ones_fail() -> None:
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
    figures: dict[str, float] = train(job_of(Experiment.from_dict(values))).summary["metrics"]
    return figures


@pytest.mark.long
def test_the_verdict_on_digits_agrees_with_what_the_algorithms_do() -> None:
    task = Experiment.from_dict({"task": "digits"}).task.build(0, "cpu")
    # Eigenvalues take half of the time, and no answer rests on them.
    options = DiagnosisOptions(hessian_clients=1, hessian_batches=1)
    found = diagnose_task(task, title="digits", options=options)
    verdict, chosen = found.verdict, found.short_runs.chosen
    at = (chosen.eta, chosen.threshold, chosen.local_steps)

    best, trusted = found.short_runs.recommended, found.short_runs.trusted
    recommended = trained(best.algorithm, best.eta, best.threshold, best.local_steps)
    assert recommended["test_accuracy"] > 0.9

    ours = trained(chosen.algorithm, *at)
    assert ours["test_accuracy"] > 0.9
    weighed = trained(trusted.algorithm, trusted.eta, trusted.threshold, trusted.local_steps)
    assert not verdict.trust or weighed["train_loss"] < ours["train_loss"]
    assert verdict.correction
    without = {"episode_unclipped": "fedavg", "episode_guarded": "celgc"}[chosen.algorithm]
    assert trained(without, *at)["train_loss"] > 1.2 * ours["train_loss"]

    assert verdict.clipping_from is not None
    there = (verdict.clipping_from, chosen.threshold, 8)
    plain, clipped = (trained(name, *there) for name in ("episode_unclipped", "episode_guarded"))
    assert clipped["test_accuracy"] > plain["test_accuracy"] + 0.2

    more = trained(chosen.algorithm, *at[:2], 4 * chosen.local_steps)
    assert more["train_loss"] > 2 * ours["train_loss"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 3])
def test_a_smooth_network_does_not_need_clipping(seed: int) -> None:
    images, classes = load_digits(return_X_y=True)
    inputs = torch.tensor(images / images.std(), dtype=torch.float32)
    labels = torch.tensor(classes)
    parts = by_similarity(labels, 8, 0, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(module(batch[0]), batch[1])

    clients = [(inputs[part], labels[part]) for part in parts]
    found = episode.diagnose(model, clients, loss, batch_size=32, seed=seed)
    assert not found.verdict.clipping
    assert "Is clipping needed? not at η = " in str(found)
