"""The paper's synthetic task, at the published settings (x_0 = 1, η = 0.01, γ/η = 5)."""

from __future__ import annotations

import pytest
import torch

from episode.paper.synthetic import SyntheticGrid, synthetic_paths
from episode.runs.config import read_experiment
from episode.runs.trainer import job_of, train
from episode.tasks.synthetic import Quartics, minimum

PUBLISHED = SyntheticGrid(etas=(0.01,), thresholds=(5,))


@pytest.mark.parametrize(
    ("heterogeneity", "x", "value"),
    [(1, 2.311, -8.863), (2, 2.414, -11.657), (4, 2.598, -17.951), (8, 2.908, -33.180)],
)
def test_the_minimum_is_where_it_is_known_to_be(
    heterogeneity: float, x: float, value: float
) -> None:
    assert minimum(heterogeneity) == pytest.approx((x, value), abs=6e-4)
    best = torch.tensor([minimum(heterogeneity)[0]], dtype=torch.float64)
    f, slope = Quartics([heterogeneity]).mean(best)
    assert f.item() == pytest.approx(value, abs=6e-4)
    assert slope.item() == pytest.approx(0, abs=1e-6)


def test_episode_finds_the_minimum_for_every_heterogeneity() -> None:
    values = synthetic_paths("episode", PUBLISHED).value[-1, 0, 0]
    best = torch.tensor([minimum(H)[1] for H in PUBLISHED.heterogeneity])
    assert ((values.mean(-1) - best) < 0.01).all()


def test_celgc_arrives_later_the_larger_the_heterogeneity_and_never_leaves_for_8() -> None:
    x = synthetic_paths("celgc", PUBLISHED).x[-1, 0, 0].mean(-1)
    assert x[0].item() == pytest.approx(2.294, abs=0.02)
    assert x[1].item() == pytest.approx(2.401, abs=0.02)
    assert x[2].item() == pytest.approx(1.791, abs=0.02)
    assert x[3].item() == pytest.approx(1.0, abs=1e-6)


def test_unguarded_rounds_blow_up_at_a_large_step_and_guarded_ones_do_not() -> None:
    large = SyntheticGrid(etas=(0.1,), thresholds=(5, 10, 15), heterogeneity=(4, 8), rounds=100)
    assert not torch.isfinite(synthetic_paths("episode", large).value[-1]).all()
    assert torch.isfinite(synthetic_paths("episode_guarded", large).value[-1]).all()


@pytest.mark.parametrize("algorithm", ["episode", "celgc", "scaffold", "naive_parallel_clip"])
def test_an_entry_of_the_batched_table_is_the_run_of_its_config(algorithm: str) -> None:
    """γ = 0.01 · 5, H = 4, seed 3: alone on the simulation engine, and as one of 40 at once."""
    settings = ["task=synthetic", "task.heterogeneity=4", "seed=3", "budget.rounds=50"]
    quiet = ["record.evaluate_every=0", f"algorithm={algorithm}"]
    run = train(job_of(read_experiment(None, settings + quiet)))
    rounds = len(run.history)
    grid = SyntheticGrid(etas=(0.01,), thresholds=(5,), rounds=50)
    table = synthetic_paths(algorithm, grid).x
    assert table[rounds, 0, 0, 2, 3].item() == pytest.approx(run.x.item(), rel=1e-12)
