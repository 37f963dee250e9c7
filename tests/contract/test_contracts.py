"""One table, one suite: every algorithm, task and engine passes the public checks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from episode import ALGORITHMS, Algorithm, EpisodeError
from episode.core import CLIPPINGS, CORRECTIONS
from episode.engines.simulation import Simulation
from episode.tasks import TASKS
from episode.tasks.neural import NeuralTask
from episode.testing import check_algorithm, check_engine, check_task, verify

pytestmark = pytest.mark.slow

CELLS = sorted(itertools.product(CORRECTIONS, CLIPPINGS))
REFUSED = {("uncorrected", "episodic"), ("uncorrected", "guarded")}


@pytest.mark.parametrize(("correction", "clipping"), CELLS)
def test_every_cell_of_the_grid_is_sound_or_refused(correction: str, clipping: str) -> None:
    cell = {"correction": correction, "clipping": clipping}
    if (correction, clipping) in REFUSED:
        with pytest.raises(EpisodeError, match="needs a global gradient"):
            Algorithm.from_dict(cell)
    else:
        check_algorithm(Algorithm.from_dict(cell))


@pytest.mark.parametrize("correction", ["remembered", "resampled"])
@pytest.mark.parametrize("clipping", ["unclipped", "episodic", "guarded"])
def test_measured_trust_is_sound_in_every_cell_with_a_correction(
    correction: str, clipping: str
) -> None:
    cell = {"correction": correction, "clipping": clipping, "trust": "measured"}
    check_algorithm(Algorithm.from_dict(cell))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.5},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.5, "momentum_of": "raw", "weighting": "examples"},
    ],
    ids=str,
)
def test_every_algorithm_is_sound_with_its_options(name: str, options: dict[str, object]) -> None:
    if ALGORITHMS[name].descent.adapts:
        with pytest.raises(EpisodeError, match="AdamW has beta1 in place of momentum"):
            Algorithm.named(name, **options)
    else:
        check_algorithm(Algorithm.named(name, **options))


@pytest.mark.parametrize("options", [{"reuse_probe": True}, {"probe_batches": 3}], ids=str)
def test_episode_is_sound_with_its_probe_options(options: dict[str, object]) -> None:
    check_algorithm(Algorithm.named("episode", **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {"probe_first": True}),
        ("scaffold", {"probe_first": True, "probe_batches": "local_steps"}),
        ("episode_plus_plus", {"probe_batches": "local_steps"}),
        ("episode", {"probe_batches": "local_steps", "proximal": 0.3}),
        ("scaffold_clipped", {"proximal": 0.3}),
        ("episode_guarded", {"server": "adam"}),
        ("celgc", {"server": "adamw"}),
        ("celgc", {"descent": "adamw"}),
        ("episode", {"descent": {"name": "adamw", "moments": "reset", "proximal": 0.1}}),
        ("scaffold_clipped", {"descent": "adamw", "server": "sgd"}),
        ("diloco", {"descent": {"moments": "reset"}}),
        ("diloco", {"weight_decay": 0.3, "weighting": "examples"}),
    ],
    ids=str,
)
def test_options_of_other_papers_are_sound_in_every_row(
    name: str, options: dict[str, object]
) -> None:
    check_algorithm(Algorithm.named(name, **options))


@pytest.mark.parametrize("name", ["digits", "synthetic", "quadratics"])
def test_every_task_without_files_is_sound(name: str) -> None:
    """Those with files: tests/unit/test_real_tasks.py."""
    check_task(TASKS[name]().build(3, "cpu"))


def test_digits_in_float64_are_sound() -> None:
    check_task(TASKS["digits"](dtype="float64", similarity=30).build(0, "cpu"))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_simulation_engine_is_sound(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 3)
    check_engine(lambda task, algorithm: Simulation(task, algorithm, workers))


def test_the_verifier_is_content() -> None:
    checks = list(verify())
    assert len(checks) >= 40
    assert [str(c) for c in checks if not c.passed] == []


def test_a_task_with_a_wrong_gradient_is_caught() -> None:
    class Detached(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 3 * super().forward(x).detach()

    data = (torch.randn(20, 3), torch.randn(20))
    task = NeuralTask(
        Detached(3, 1), [data], lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1]), batch_size=20
    )
    with pytest.raises(AssertionError, match="rises along its gradient"):
        check_task(task)
