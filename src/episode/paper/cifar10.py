"""CIFAR-10: training curves (appendix E.4)."""

from __future__ import annotations

from episode.paper.comparison import ACCURACY, LOSS, Relation, compare
from episode.paper.published import IMAGE_ALGORITHMS, Case, pairs
from episode.paper.run_recipe import Figures, PaperTask, RunRecipe, ScaleSettings, loss_and_accuracy
from episode.paper.run_results import RunResults

SMALL_IMAGES = {"width": 4, "batch_size": 4, "train_evaluated": 40}
TASK = PaperTask(
    "cifar10",
    smoke=ScaleSettings(8, evaluations=2, shrink=4, task=SMALL_IMAGES),
    laptop=ScaleSettings(240, evaluations=10),
    paper=ScaleSettings(14_550, evaluations=150),
    datasets=("cifar10",),
)
SETTINGS = ((8, 50), (8, 70))
EPISODE_TO_OTHERS = pairs("episode", IMAGE_ALGORITHMS[:-1], SETTINGS)


class Cifar10(RunRecipe):
    """Curves for similarities of 50 and 70%."""

    name = "cifar10"
    title = "CIFAR-10: training curves"
    place = "Figure 4, appendix E.4"
    task = TASK
    cases = tuple(Case(a, i, s) for i, s in SETTINGS for a in IMAGE_ALGORITHMS)
    claims = (
        compare("EPISODE has the best test accuracy in both settings",
                ACCURACY, EPISODE_TO_OTHERS),
        compare("EPISODE's training loss is nearly the best in both settings",
                LOSS, EPISODE_TO_OTHERS,
                Relation(lambda ours, other: ours <= 1.05 * other, "within 5% of the smallest")),
    )  # fmt: skip

    def figures(self, results: RunResults) -> Figures:
        rows = [
            loss_and_accuracy(results, self.cases_at(i, s), "iterations", f"I = {i}, s = {s}%")
            for i, s in SETTINGS
        ]
        return {"figure": rows}
