"""Sentiment140: curves over training steps and over running time (appendix H)."""

from __future__ import annotations

from collections.abc import Sequence

from episode.paper.comparison import ACCURACY, LESS, LOSS, MINUTES, NEARLY, Relation, ahead, compare
from episode.paper.published import PARALLEL, Case, pairs
from episode.paper.run_recipe import Figures, PaperTask, RunRecipe, ScaleSettings, loss_and_accuracy
from episode.paper.run_results import RunClaim, RunResults

SMALL_MODEL = {"hidden": 8, "batch_size": 4, "train_evaluated": 60}
TASK = PaperTask(
    "sentiment140",
    smoke=ScaleSettings(16, evaluations=4, task=SMALL_MODEL),
    laptop=ScaleSettings(240, evaluations=20),
    paper=ScaleSettings(4_000, evaluations=40),
    datasets=("sentiment140", "glove"),
    tuned=True,
)
SETTINGS = ((4, 20), (4, 10), (4, 0))
CASES = tuple(Case(a, i, s) for i, s in SETTINGS for a in (PARALLEL, "celgc", "episode"))
EPISODE_TO_PARALLEL = pairs("episode", [PARALLEL], SETTINGS)


def _lead(r: RunResults, similarity: float) -> float:
    """By how many percentage points EPISODE beats CELGC."""
    return r.accuracy(Case("episode", 4, similarity)) - r.accuracy(Case("celgc", 4, similarity))


class Sentiment140Steps(RunRecipe):
    """Curves over training steps."""

    name = "sentiment140-steps"
    title = "Sentiment140: curves over training steps"
    place = "Figure 8, appendix H"
    axis = "iterations"
    task = TASK
    cases = CASES
    claims: Sequence[RunClaim] = (
        compare("EPISODE nearly matches NaiveParallelClip's test accuracy",
                ACCURACY, EPISODE_TO_PARALLEL, NEARLY),
        compare("EPISODE nearly matches NaiveParallelClip's training loss",
                LOSS, EPISODE_TO_PARALLEL,
                Relation(lambda ours, parallel: ours <= 1.05 * parallel, "within 5%")),
        compare("EPISODE outperforms CELGC", ACCURACY, pairs("episode", ["celgc"], SETTINGS)),
        RunClaim("The gap between EPISODE and CELGC grows as s falls",
                 lambda r: _lead(r, 20) < _lead(r, 10) < _lead(r, 0),
                 lambda r: ", ".join(f"s = {s}%: {_lead(r, s):+.1f} points" for _, s in SETTINGS)),
        compare("EPISODE does not degrade as s falls",
                ACCURACY, [(Case("episode", 4, 0), Case("episode", 4, 20))],
                Relation(lambda at_0, at_20: at_0 >= at_20 - 1, "within 1 point")),
    )  # fmt: skip

    def figures(self, results: RunResults) -> Figures:
        columns = [
            loss_and_accuracy(results, self.cases_at(i, s), self.axis, f"I = {i}, s = {s}%")
            for i, s in SETTINGS
        ]
        return {"figure": [list(row) for row in zip(*columns, strict=True)]}


class Sentiment140Time(Sentiment140Steps):
    """Curves over running time."""

    name = "sentiment140-time"
    title = "Sentiment140: curves over running time"
    place = "Figure 9, appendix H"
    axis = "minutes"
    claims = (
        ahead("In a fixed time EPISODE reaches a lower training loss and a higher test accuracy "
              "than CELGC and NaiveParallelClip", pairs("episode", ["celgc", PARALLEL], SETTINGS)),
        compare("EPISODE requires less running time than NaiveParallelClip",
                MINUTES, EPISODE_TO_PARALLEL, LESS),
    )  # fmt: skip
