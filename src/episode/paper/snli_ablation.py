"""SNLI: what the corrections and the clipping contribute (appendix G)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from episode.paper.comparison import ACCURACY, ONE_PROCESS, compare
from episode.paper.published import CLIPPED, NAMES, SNLI_SETTINGS, UNCLIPPED, Case, pairs
from episode.paper.run_recipe import Figures, RunRecipe, loss_and_accuracy
from episode.paper.run_results import RunClaim, RunResults
from episode.paper.snli import PARALLEL_CASE, PUBLISHED, TASK

OTHER_CASES = tuple(PUBLISHED)[1:]


def ablation_claims(
    settings: Sequence[tuple[int, float]], parallel: Case, guessing: float
) -> tuple[RunClaim, ...]:
    """What the paper concludes from its ablation.

    Args:
        settings: The pairs of I and s.
        parallel: The case of NaiveParallelClip.
        guessing: The accuracy in percent that guessing may reach.
    """
    limit = f"at most {guessing:g}%, which guessing may reach"

    def best(r: RunResults, *algorithms: str) -> float:
        return max(r.accuracy(Case(a, i, s)) for a in algorithms for i, s in settings)

    def text(r: RunResults, *algorithms: str) -> str:
        return ", ".join(f"{NAMES[a]} {best(r, a):.1f}%" for a in algorithms)

    return (
        compare("SCAFFOLD (clipped) does better than CELGC in every setting (in the paper's own "
                "table: in 4 of 6)", ACCURACY, pairs("scaffold_clipped", ["celgc"], settings)),
        compare("SCAFFOLD (clipped) does worse than EPISODE in every setting",
                ACCURACY, pairs("episode", ["scaffold_clipped"], settings)),
        RunClaim("EPISODE (unclipped) fails to learn",
                 lambda r: best(r, "episode_unclipped") <= guessing,
                 lambda r: text(r, "episode_unclipped"), limit),
        RunClaim("FedAvg and SCAFFOLD are no better than guessing",
                 lambda r: best(r, "fedavg", "scaffold") <= guessing,
                 lambda r: text(r, "fedavg", "scaffold"), limit),
        RunClaim("NaiveParallelClip has the best test accuracy of all algorithms",
                 lambda r: r.accuracy(parallel) >= best(r, *CLIPPED, *UNCLIPPED),
                 lambda r: f"{r.accuracy(parallel):.1f}%; {text(r, *CLIPPED, *UNCLIPPED)}"),
    )  # fmt: skip


def _slowest_other(r: RunResults) -> float:
    return max(r.minutes(case) for case in OTHER_CASES)


class SnliAblation(RunRecipe):
    """All algorithms, with and without corrections and clipping."""

    name = "snli-ablation"
    title = "SNLI: ablation of corrections and clipping"
    place = "Table 3 and Figure 7, appendix G"
    task = TASK
    cases = (PARALLEL_CASE, *OTHER_CASES)
    published = PUBLISHED
    claims = (
        *ablation_claims(SNLI_SETTINGS, PARALLEL_CASE, guessing=35.0),
        RunClaim("NaiveParallelClip requires more time than any other algorithm",
                 lambda r: r.minutes(PARALLEL_CASE) > _slowest_other(r),
                 lambda r: f"{r.minutes(PARALLEL_CASE):.2f} min; the slowest of the others "
                 f"{_slowest_other(r):.2f} min", paper_scale_only=ONE_PROCESS),
    )  # fmt: skip

    def figures(self, results: RunResults) -> Figures:
        shown = [*self.cases_at(4, 30), PARALLEL_CASE]
        loss, accuracy = loss_and_accuracy(results, shown, "epochs", "I = 4, s = 30%")
        # The paper's figure, too, leaves the losses of the unclipped algorithms outside.
        drawn = [line.y for line in loss.lines if line.algorithm not in UNCLIPPED]
        values = [y for curve in drawn for y in curve if math.isfinite(y)] or [0.0, 1.0]
        margin = 0.05 * (max(values) - min(values)) or 0.1
        loss = replace(loss, y_limits=(min(values) - margin, max(values) + margin))
        return {"figure": [[loss, accuracy]]}
