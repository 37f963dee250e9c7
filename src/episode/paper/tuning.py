"""Recipes with η and γ from studies: the paper's protocol, played first or given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from episode.engines.rendezvous import under_torchrun
from episode.errors import EpisodeError
from episode.paper.recipe import Kitchen, Recipe, Tuned
from episode.paper.tables import OfRuns, Task
from episode.runs.config import Experiment, read_experiment
from episode.runs.records import Observe
from episode.studies.search_space import parse_space
from episode.studies.study import Study
from episode.studies.tune import BEST, StudyRunner

FOLDER = "studies"
"""Where studies go that a recipe needs, in the kitchen's folder."""


def tune_first(
    kitchen: Kitchen,
    recipes: Sequence[Recipe],
    watch: Callable[[str, Experiment], Observe | None],
    stop: Callable[[], bool] | None = None,
) -> Kitchen:
    """Plays the paper's grid for each task that the paper tuned, and uses the winner everywhere.

    Tasks that have a study already keep it; those whose η and γ the paper gives are not tuned.
    """
    if under_torchrun():
        raise EpisodeError(
            "--tune is not spread by torchrun: tune first (episode tune, or reproduce --tune "
            "without torchrun), then use --tuned STUDY."
        )
    for task in _tasks(recipes):
        if task.tuned_at is None or task.name in kitchen.tuned:
            continue
        study = study_of(task, kitchen)
        StudyRunner(study, watch, stop).run()
        kitchen = with_studies(kitchen, recipes, [study.folder])
    return kitchen


def study_of(task: Task, kitchen: Kitchen) -> Study:
    """The paper's grid for the task, at the kitchen's scale and with its data."""
    assert task.tuned_at is not None
    values = task.cell(kitchen, task.tuned_at, 0).to_dict()
    return Study(kitchen.folder / FOLDER / task.name, values, parse_space([], task.name))


def with_studies(kitchen: Kitchen, recipes: Sequence[Recipe], studies: Sequence[Path]) -> Kitchen:
    """The kitchen with the η and γ of these studies, each for the recipes of its task."""
    tuned = dict(kitchen.tuned)
    names = [task.name for task in _tasks(recipes)]
    for folder in studies:
        found = {name: read_experiment(path) for name, path in _best(folder).items()}
        task = next(iter(found.values())).task_name
        if task not in names:
            raise EpisodeError(
                f"The study {folder} is of the task {task}, which none of the recipes runs: "
                f"they run {', '.join(names) or 'none'}."
            )
        _check_scale(folder, next(iter(found.values())), kitchen)
        pairs = {name: (e.schedule.eta, e.schedule.gamma) for name, e in found.items()}
        tuned[task] = Tuned(folder, pairs)
    return replace(kitchen, tuned=tuned)


def _best(folder: Path) -> dict[str, Path]:
    """The study's winner under the empty name, or one by algorithm for --per-algorithm."""
    if (folder / BEST).is_file():
        return {"": folder / BEST}
    found = {path.parent.name: path for path in sorted(folder.glob(f"*/{BEST}"))}
    if not found:
        raise EpisodeError(
            f"{folder} has no {BEST}: give the folder of a study (episode tune) that has ended, "
            "with at least one trial that came to a figure."
        )
    return found


def _check_scale(folder: Path, best: Experiment, kitchen: Kitchen) -> None:
    scale = getattr(best.task, "scale", None)
    if kitchen.scale != "smoke" and scale not in (None, kitchen.scale):
        raise EpisodeError(
            f"The study {folder} was made at scale {scale}, not {kitchen.scale}: tune at the same "
            f"scale (--set task.scale={kitchen.scale})."
        )


def _tasks(recipes: Sequence[Recipe]) -> list[Task]:
    """The tasks of recipes that have runs, each once."""
    return list({r.task.name: r.task for r in recipes if isinstance(r, OfRuns)}.values())
