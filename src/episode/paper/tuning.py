"""Use η and γ from studies in recipes: given studies, or the paper's own, played first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from episode.engines.rendezvous import under_torchrun
from episode.errors import EpisodeError
from episode.paper.published import Case
from episode.paper.recipe import Recipe, RecipeContext, TunedSchedules
from episode.paper.run_recipe import PaperTask, RunRecipe
from episode.runs.config import read_experiment
from episode.studies.search_space import PAPER_LOCAL_STEPS, PAPER_SIMILARITY, parse_space
from episode.studies.study import Study
from episode.studies.sweep import Stop, Watch
from episode.studies.tune import BEST, StudyRunner

TUNED_CASE = Case("celgc", PAPER_LOCAL_STEPS, PAPER_SIMILARITY)
FOLDER = "studies"
"""Where studies go that recipes need, in the folder of the context."""


def tune_first(
    context: RecipeContext,
    recipes: Sequence[Recipe],
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> RecipeContext:
    """Play the paper's grid for each task that the paper tuned, and use the winner in all runs.

    Tasks that have a study already keep it; those whose η and γ the paper gives are not tuned.
    """
    if under_torchrun():
        raise EpisodeError(
            "torchrun cannot spread --tune: tune first (episode tune, or reproduce --tune without "
            "torchrun), then use --tuned STUDY."
        )
    for task in _tasks(recipes):
        if not task.tuned or task.name in context.tuned:
            continue
        study = study_of(task, context)
        StudyRunner(study, watch, stop).run()
        context = with_studies(context, recipes, [study.folder])
    return context


def study_of(task: PaperTask, context: RecipeContext) -> Study:
    """The paper's grid for the task, at the scale and with the data of the context."""
    values = task.experiment(context, TUNED_CASE, 0).to_dict()
    return Study(context.folder / FOLDER / task.name, values, parse_space([], task.name))


def with_studies(
    context: RecipeContext, recipes: Sequence[Recipe], studies: Sequence[Path]
) -> RecipeContext:
    """The context with the η and γ of these studies, each for the recipes of its task."""
    tuned = dict(context.tuned)
    names = [task.name for task in _tasks(recipes)]
    for folder in studies:
        found = {name: read_experiment(path, found=True) for name, path in _best(folder).items()}
        first = next(iter(found.values()))
        if first.task_name not in names:
            raise EpisodeError(
                f"The study {folder} is of the task {first.task_name}, which none of the recipes "
                f"runs: they run {', '.join(names) or 'none'}."
            )
        scale = first.task.chosen_scale() or context.scale
        if context.scale not in ("smoke", scale):
            raise EpisodeError(
                f"The study {folder} was made at scale {scale}, not {context.scale}: tune at the "
                f"same scale (--set task.scale={context.scale})."
            )
        schedules = {name: e.schedule for name, e in found.items()}
        pairs = {name: (float(s.eta), float(s.gamma)) for name, s in schedules.items()}
        tuned[first.task_name] = TunedSchedules(folder, pairs)
    return replace(context, tuned=tuned)


def _best(folder: Path) -> dict[str, Path]:
    """The best config under the empty name, or one for each separately tuned algorithm."""
    if (folder / BEST).is_file():
        return {"": folder / BEST}
    found = {path.parent.name: path for path in sorted(folder.glob(f"*/{BEST}"))}
    if not found:
        raise EpisodeError(
            f"{folder} has no {BEST}: give the folder of a study (episode tune) that has ended, "
            "with at least one trial that finished."
        )
    return found


def _tasks(recipes: Sequence[Recipe]) -> list[PaperTask]:
    """The tasks of recipes that have runs, each once."""
    return list({r.task.name: r.task for r in recipes if isinstance(r, RunRecipe)}.values())
