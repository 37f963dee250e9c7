"""`episode.sweep` and `episode.tune`: the commands from Python, and functions of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import episode
from episode import EpisodeError, Run

CONFIG = {"task": "quadratics", "budget": {"rounds": 4}}


def train(eta: float, seed: int = 0, *, folder: Path) -> Run:
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 8)[:, None]
    return episode.fit(
        nn.Linear(1, 1), [(x, 2 * x), (x, 3 * x)],
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        evaluate=lambda model: {"error": abs(float(model.weight) - 2.5)},
        eta=eta, seed=seed, algorithm="fedavg", local_steps=2, rounds=8, batch_size=4,
        folder=folder,
    )  # fmt: skip


def test_a_sweep_of_configs_is_that_of_the_command(tmp_path: Path) -> None:
    over = {"algorithm": ["celgc", "episode"], "seed": [0, 1]}
    runs = episode.sweep(CONFIG, over, folder=tmp_path)
    assert [r.status for r in runs] == ["finished"] * 4
    assert (tmp_path / "sweep.json").exists()
    again = episode.sweep(CONFIG, over, folder=tmp_path)
    assert [r.folder for r in again] == [r.folder for r in runs]
    (tmp_path / "c.toml").write_text('task = "quadratics"\n[budget]\nrounds = 4\n')
    file = episode.sweep(tmp_path / "c.toml", {"seed": range(2)}, folder=tmp_path / "file")
    assert len(file) == 2


def test_a_sweep_of_a_function_goes_on_where_it_stopped(tmp_path: Path) -> None:
    over = {"eta": [0.1, 0.3], "seed": [0, 1]}
    runs = episode.sweep(train, over, folder=tmp_path)
    assert [r.folder.name for r in runs if r.folder][:2] == ["eta=0.1,seed=0", "eta=0.1,seed=1"]
    assert all(r.read_back for r in episode.sweep(train, over, folder=tmp_path))


def test_the_best_of_a_grid_and_of_a_range_is_found(tmp_path: Path) -> None:
    grid = episode.tune(train, {"eta": [1e-4, 0.3, 1e30]}, metric="error", folder=tmp_path / "a")
    assert grid.settings == {"eta": 0.3}
    assert [point["eta"] for point, _ in grid.trials] == [0.3, 1e-4, 1e30]
    assert grid.trials[-1][1] is None  # it diverged
    assert grid.run is not None
    assert grid.run.summary["metrics"]["error"] == grid.value
    pytest.importorskip("optuna")
    first, second = (
        episode.tune(train, {"eta": (1e-4, 1.0)}, metric="error", folder=tmp_path / "b", trials=4)
        for _ in range(2)
    )
    assert first.trials == second.trials
    assert len(list((tmp_path / "b").iterdir())) == 4  # the second time they were read


def test_a_config_is_tuned_as_by_the_command(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"schedule.eta": [1e-6, 0.01], "threshold": [1.0]}
    found = episode.tune({**CONFIG, "algorithm": "episode"}, space, folder=tmp_path)
    assert found.settings["schedule.eta"] == 0.01
    assert (tmp_path / "best.toml").exists()
    assert found.run is not None
    assert found.run.status == "finished"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: episode.sweep(3, {"seed": [0]}, folder=f), "what is 3: give a function that"),
        (lambda f: episode.sweep(CONFIG, {}, folder=f), "over is {}: give the values of each"),
        (lambda f: episode.sweep(CONFIG, {"seed": 3}, folder=f), "over.'seed'. is 3: give a list"),
        (lambda f: episode.sweep(CONFIG, {"seed": []}, folder=f), "over.'seed'. is empty"),
        (lambda f: episode.sweep(CONFIG, {"sed": [1]}, folder=f), "did you mean 'seed'"),
        (lambda f: episode.sweep({"x": torch}, {"seed": [1]}, folder=f), "no config file can hold"),
        (
            lambda f: episode.sweep(lambda **_: 3, {"seed": [1]}, folder=f),
            "function returned 3",
        ),
        (lambda f: episode.tune(train, {"eta": [1]}, folder=f), "metric is missing"),
        (
            lambda f: episode.tune(train, {"eta": [0.1]}, metric="eror", folder=f),
            "There is no metric 'eror': did you mean 'error'",
        ),
        (
            lambda f: episode.tune(train, {"eta": [0.1]}, metric="error", trials=3, folder=f),
            "trials is for ranges",
        ),
        (
            lambda f: episode.tune(train, {"eta": (1, 2, 3)}, metric="error", folder=f),
            "a tuple is a range",
        ),
        (
            lambda f: episode.tune(train, {"eta": [1e30]}, metric="error", folder=f),
            "No run finished with a finite error",
        ),
    ],
)
def test_mistakes_are_one_sentence(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=message) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)
