"""SNLI: minutes of training to a test accuracy (appendix F)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from episode.paper import published, snli
from episode.paper.comparison import LESS, ONE_PROCESS, Metric, Relation, ahead, compare
from episode.paper.published import SNLI_SETTINGS, pairs
from episode.paper.recipe import RecipeContext, RecipeScale
from episode.paper.run_recipe import Figures, RunRecipe, case_columns, panels
from episode.paper.run_results import RunClaim, RunResults
from episode.paper.snli import CELGC_BY_S, EPISODE_BY_I, EPISODE_BY_S, PARALLEL_CASE
from episode.results.tables import Table


def _targets(scale: RecipeScale) -> tuple[float, ...]:
    """Test accuracies in percent; smaller models do not reach those of the paper."""
    return published.SNLI_TARGETS if scale == "paper" else (40.0, 50.0, 60.0)


def time_claims(goal: float) -> tuple[RunClaim, ...]:
    """What the paper claims about the time to a high test accuracy: `goal`, in percent."""
    form = f"{{:.2f}} min to {goal:g}%"
    minutes = Metric(lambda r, c: r.minutes_to(c, goal), form, paper_scale_only=ONE_PROCESS)
    to_celgc = pairs("episode", ["celgc"], SNLI_SETTINGS)
    to_parallel = [(ours, PARALLEL_CASE) for ours, _ in to_celgc]
    up_to_8 = [p for p in (*to_celgc, *to_parallel) if p[0] in EPISODE_BY_I[:3]]

    def constant_while_celgc_slows_down(r: RunResults) -> bool:
        ours, celgc = ([minutes.of(r, c) for c in cases] for cases in (EPISODE_BY_S, CELGC_BY_S))
        return max(ours) <= 1.2 * min(ours) and celgc[0] < celgc[1] < celgc[2]

    return (
        compare("For I ≤ 8 EPISODE needs less running time to a high test accuracy than CELGC and "
                "NaiveParallelClip", minutes, up_to_8, LESS),
        compare("At I = 16 CELGC and EPISODE nearly match (the paper writes CELGC and "
                "NaiveParallelClip; its table has 27.00, 28.39 and 59.69 min)", minutes,
                pairs("episode", ["celgc"], [(16, 30)]),
                Relation(lambda ours, celgc: 0.9 * ours <= celgc <= 1.1 * ours, "within 10%")),
        RunClaim("As s falls, EPISODE's running time stays nearly constant, CELGC's grows",
                 constant_while_celgc_slows_down,
                 lambda r: minutes.text(r, *EPISODE_BY_S, *CELGC_BY_S),
                 "EPISODE within 20%", ONE_PROCESS),
        ahead("In the same time EPISODE reaches a lower training loss and a higher test accuracy "
              "than CELGC and NaiveParallelClip", [*to_celgc, *to_parallel]),
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
        columns = ((snli.LINES_BY_I, "minutes", "(a) effect of I"),
                   (snli.LINES_BY_S, "minutes", "(b) effect of s"))  # fmt: skip
        return {"figure": panels(results, *columns)}

    def table(self, context: RecipeContext, results: RunResults) -> Table:
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
        return Table("", columns, rows, left=3)
