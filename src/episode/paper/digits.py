"""Digits: the questions of the paper's ablation, on data that need no download."""

from __future__ import annotations

from episode.paper.published import CLIPPED, PARALLEL, UNCLIPPED, Case
from episode.paper.recipe import RecipeContext
from episode.paper.run_recipe import Figures, PaperTask, RunRecipe, ScaleSettings, loss_and_accuracy
from episode.paper.run_results import RunResults
from episode.paper.snli_ablation import ablation_claims

TASK = PaperTask(
    "digits",
    smoke=ScaleSettings(32, evaluations=4, task={"hidden": 16, "time_steps": 8}),
    laptop=ScaleSettings(480, evaluations=30),
    paper=ScaleSettings(480, evaluations=30),
    tuned=True,
)
SETTINGS = ((8, 0), (8, 10), (8, 30))
PARALLEL_CASE = Case(PARALLEL, 1, 0)


class Digits(RunRecipe):
    """The ablation of the paper, which it made on SNLI."""

    name = "digits"
    title = "Digits: the questions of the ablation, without a download"
    place = "not in the paper"
    task = TASK
    cases = (
        PARALLEL_CASE,
        *(Case(a, i, s) for i, s in SETTINGS for a in (*CLIPPED, *UNCLIPPED)),
    )
    claims = ablation_claims(SETTINGS, PARALLEL_CASE, guessing=15.0)
    smoke_obstacle = "32 iterations of a small model"

    def notes(self, context: RecipeContext) -> list[str]:
        return ["Real digits. The paper has no such table; its claims about SNLI are tested here."]

    def figures(self, results: RunResults) -> Figures:
        shown = [PARALLEL_CASE, *self.cases_at(8, 0)]
        return {"figure": [loss_and_accuracy(results, shown, "iterations", "I = 8, s = 0%")]}
