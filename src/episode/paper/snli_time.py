"""SNLI: minutes of training to a test accuracy (appendix F)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from episode.paper import published, snli
from episode.paper.comparisons import LESS, Metric, Relation, compare
from episode.paper.published import SNLI_SETTINGS, Case, pairs
from episode.paper.recipe import RecipeContext, RecipeScale
from episode.paper.run_recipe import Figures, RunRecipe, case_columns, curves
from episode.paper.run_results import ONE_PROCESS, RunClaim, RunResults
from episode.paper.snli import CELGC_BY_S, EPISODE_BY_I, EPISODE_BY_S, PARALLEL_CASE
from episode.results.text_tables import Sheet


def _targets(scale: RecipeScale) -> tuple[float, ...]:
    """Test accuracies in percent; smaller models do not reach those of the paper."""
    return published.SNLI_TARGETS if scale == "paper" else (40.0, 50.0, 60.0)


def _is_ahead(r: RunResults, local_steps: int, similarity: float) -> bool:
    """Whether EPISODE, when it ends, has a better loss and accuracy than the others by then."""
    ours, celgc = (Case(a, local_steps, similarity) for a in ("episode", "celgc"))
    loss, accuracy = r.best_within(ours, r.minutes(ours))
    others = [r.best_within(other, r.minutes(ours)) for other in (celgc, PARALLEL_CASE)]
    return all(loss < other[0] and accuracy > other[1] for other in others)


def _settings_ahead(r: RunResults) -> int:
    return sum(_is_ahead(r, i, s) for i, s in SNLI_SETTINGS)


def time_claims(goal: float) -> tuple[RunClaim, ...]:
    """What the paper claims about the time to a high test accuracy: `goal`, in percent."""
    minutes = Metric(lambda r, case: r.minutes_to(case, goal), f"{{:.2f}} min to {goal:g}%",
                     paper_scale_only=ONE_PROCESS)  # fmt: skip
    up_to_8 = pairs("episode", ["celgc"], [(2, 30), (4, 30), (8, 30)])

    def constant_while_celgc_slows_down(r: RunResults) -> bool:
        ours, celgc = ([minutes.of(r, c) for c in cases] for cases in (EPISODE_BY_S, CELGC_BY_S))
        return max(ours) <= 1.2 * min(ours) and celgc[0] < celgc[1] < celgc[2]

    return (
        compare("For I ≤ 8 EPISODE needs less running time to a high test accuracy than CELGC and "
                "NaiveParallelClip", minutes,
                [*up_to_8, *((case, PARALLEL_CASE) for case in EPISODE_BY_I[:3])],
                LESS),
        compare("At I = 16 CELGC and EPISODE nearly match (the paper writes CELGC and "
                "NaiveParallelClip; its table has 27.00, 28.39 and 59.69 min)", minutes,
                pairs("episode", ["celgc"], [(16, 30)]),
                Relation(lambda ours, celgc: 0.9 * ours <= celgc <= 1.1 * ours, "within 10%")),
        RunClaim("As s falls, EPISODE's running time stays nearly constant, CELGC's grows",
                 constant_while_celgc_slows_down,
                 lambda r: minutes.text(r, *EPISODE_BY_S, *CELGC_BY_S),
                 "EPISODE within 20%", ONE_PROCESS),
        RunClaim("In the same time EPISODE reaches a lower training loss and a higher test "
                 "accuracy than CELGC and NaiveParallelClip",
                 lambda r: _settings_ahead(r) == len(SNLI_SETTINGS),
                 lambda r: f"in {_settings_ahead(r)} of {len(SNLI_SETTINGS)} settings",
                 paper_scale_only=ONE_PROCESS),
    )  # fmt: skip


class SnliTime(RunRecipe):
    """Minutes to 70, 75 and 80% test accuracy."""

    name = "snli-time"
    title = "SNLI: running time to a test accuracy"
    place = "Table 2 and Figure 6, appendix F"
    task = snli.TASK
    cases = snli.EFFECT_CASES

    def claims_at(self, scale: RecipeScale) -> Sequence[RunClaim]:
        return time_claims(_targets(scale)[1])

    def notes(self, context: RecipeContext) -> list[str]:
        machines = "Our times are minutes on this machine; the paper used eight V100 GPUs."
        return [*super().notes(context), machines]

    def figures(self, results: RunResults) -> Figures:
        by_steps, by_similarity = snli.line_styles()
        rows = [
            [
                curves(results, by_steps, metric, "minutes", "(a) effect of I"),
                curves(results, by_similarity, metric, "minutes", "(b) effect of s"),
            ]
            for metric in ("train_loss", "test_accuracy")
        ]
        return {"figure": rows}

    def table(self, context: RecipeContext, results: RunResults) -> Sheet:
        """Minutes of each case to each accuracy, ours and the paper's."""
        targets = _targets(context.scale)
        columns = ["Interval", "Similarity", "Algorithm", *(f"{t:g}%" for t in targets)]
        columns += [f"{t:g}% (paper)" for t in published.SNLI_TARGETS]
        rows = []
        for case in self.cases:
            ours = [results.minutes_to(case, t) for t in targets]
            paper = published.SNLI_MINUTES.get(case, published.SNLI_PARALLEL_MINUTES)
            shown = ["N/A" if m in (None, math.inf) else f"{m:.2f}" for m in (*ours, *paper)]
            rows.append([*case_columns(results, case, any_similarity=True), *shown])
        return Sheet("", columns, rows, left=3)
