"""Recipes that tune first, or take a study's η and γ; and on other engines."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from episode.engines.simulation import Simulation
from episode.errors import EpisodeError
from episode.flower.simulation import FlowerSimulation
from episode.paper import RECIPES, RecipeContext, tuning
from episode.paper.cifar10 import TASK as CIFAR10
from episode.paper.digits import TASK as DIGITS
from episode.paper.published import Case
from episode.paper.snli import TASK as SNLI
from episode.paper.tuning import study_of, tune_first, with_studies
from episode.runs.config import identity_of, read_experiment, to_toml
from episode.studies.search_space import PAPER, THRESHOLD
from episode.studies.sweep import SweepOptions, sweep


def leave_study(folder: Path, *settings: str) -> Path:
    """What a study that has ended leaves behind."""
    folder.mkdir(parents=True)
    experiment = read_experiment(None, list(settings))
    (folder / "best.toml").write_text(to_toml(experiment.to_dict()) + "\n")
    return folder


def test_a_recipe_tunes_as_the_paper_did(tmp_path: Path) -> None:
    study = study_of(SNLI, RecipeContext("paper", tmp_path))
    base = study.base()
    assert study.space == PAPER
    assert (base.algorithm.name, base.budget.local_steps) == ("celgc", 4)
    assert base.task.similarity == 50  # type: ignore[attr-defined]
    assert base.task.evaluate_on == "validation"  # type: ignore[attr-defined]
    assert base.budget.rounds * 4 >= 26_825
    assert not CIFAR10.tuned, "the paper gives its η and γ"


def test_tuned_first_every_run_has_the_winners_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: dict[str, Any] = {"schedule.gamma": [0.01, 0.1], THRESHOLD: [0.1]}
    monkeypatch.setattr(tuning, "parse_space", lambda given, task: few)
    context = RecipeContext("smoke", tmp_path, overrides=["record.evaluate_every=0"])
    trials: list[str] = []
    recipes = [RECIPES["digits"], RECIPES["synthetic"]]
    tuned = tune_first(context, recipes, lambda name, e: trials.append(name))
    assert len(trials) == 2
    best = read_experiment(tmp_path / "studies" / "digits" / "best.toml").schedule
    for e in RECIPES["digits"].experiments(tuned):
        assert (e.schedule.eta, e.schedule.gamma) == (best.eta, best.gamma)
    tune_first(context, recipes, lambda name, e: trials.append(name))
    assert len(trials) == 2, "a study that has ended is not played again"
    given = replace(tuned, overrides=["schedule.eta=0.7"])
    assert {e.schedule.eta for e in RECIPES["digits"].experiments(given)} == {0.7}


def test_a_study_per_algorithm_gives_each_its_own(tmp_path: Path) -> None:
    for name, eta in (("celgc", 0.3), ("episode", 0.5)):
        leave_study(tmp_path / "study" / name, f"schedule.eta={eta}", f"algorithm={name}")
    context = with_studies(
        RecipeContext("laptop", tmp_path), [RECIPES["digits"]], [tmp_path / "study"]
    )
    assert DIGITS.experiment(context, Case("celgc", 8, 0), 0).schedule.eta == 0.3
    assert DIGITS.experiment(context, Case("episode", 8, 0), 0).schedule.eta == 0.5
    with pytest.raises(EpisodeError, match="tuned celgc, episode, but not naive_parallel_clip"):
        RECIPES["digits"].experiments(context)


def test_studies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    context, digits = RecipeContext("laptop", tmp_path), [RECIPES["digits"]]
    with pytest.raises(EpisodeError, match=r"has no best\.toml: give the folder of a study"):
        with_studies(context, digits, [tmp_path])
    synthetic = leave_study(tmp_path / "a", "task=synthetic")
    with pytest.raises(EpisodeError, match="of the task synthetic, which none of the recipes"):
        with_studies(context, digits, [synthetic])
    paper = leave_study(tmp_path / "b", "task=snli", "task.scale=paper")
    with pytest.raises(EpisodeError, match="made at scale paper, not laptop"):
        with_studies(context, [RECIPES["snli"]], [paper])


@pytest.mark.slow
def test_a_sweep_on_flower_runs_there_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []

    @contextmanager
    def opened(job: Any) -> Any:
        played.append(identity_of(job.config))
        with Simulation.open(job) as engine:
            yield engine

    monkeypatch.setattr(FlowerSimulation, "open", opened)
    experiments = [
        read_experiment(None, ["task=synthetic", "engine.name=flower", f"seed={s}"]) for s in (0, 1)
    ]
    outcomes = sweep(experiments, SweepOptions(tmp_path))
    assert played == [e.id for e in experiments]
    assert [o.status for o in outcomes] == ["finished", "finished"]
