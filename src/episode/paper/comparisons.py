"""Claims that compare a metric between pairs of cases."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from episode.paper.published import Case
from episode.paper.run_results import ONE_PROCESS, RunClaim, RunResults


@dataclass(frozen=True)
class Relation:
    """A relation between the metrics of two cases."""

    holds: Callable[[float, float], bool]
    bound: str = ""


MORE = Relation(operator.gt)
LESS = Relation(operator.lt)
NEARLY = Relation(lambda ours, other: ours >= other - 1.5, "within 1.5 points")
"""For accuracies. The largest difference that the paper calls nearly the same is 1.3 points."""


@dataclass(frozen=True)
class Metric:
    """A metric of a case, and how evidence shows it."""

    of: Callable[[RunResults, Case], float]
    form: str
    not_finite: str = "never"
    paper_scale_only: str = ""
    """Why it cannot be compared at a smaller scale; empty if it can."""

    def text(self, results: RunResults, *cases: Case) -> str:
        """List the metric of some cases, by setting."""

        def show(case: Case) -> str:
            value = self.of(results, case)
            return self.form.format(value) if math.isfinite(value) else self.not_finite

        return results.listed(cases, show)


ACCURACY = Metric(RunResults.accuracy, "{:.1f}%")
LOSS = Metric(RunResults.loss, "{:.3f}", "diverged")
MINUTES = Metric(RunResults.minutes, "{:.1f} min", paper_scale_only=ONE_PROCESS)


def compare(
    text: str, metric: Metric, pairs: Sequence[tuple[Case, Case]], relation: Relation = MORE
) -> RunClaim:
    """The claim that a relation holds between a metric of the two cases of every pair."""
    cases = dict.fromkeys(case for pair in pairs for case in pair)
    settings = {first[1:] for first, _ in pairs}

    def failing(r: RunResults) -> set[tuple[int, float]]:
        return {a[1:] for a, b in pairs if not relation.holds(metric.of(r, a), metric.of(r, b))}

    def evidence(r: RunResults) -> str:
        count = f"in {len(settings) - len(failing(r))} of {len(settings)} settings: "
        return (count if len(settings) > 1 else "") + metric.text(r, *cases)

    return RunClaim(
        text, lambda r: not failing(r), evidence, relation.bound, metric.paper_scale_only
    )
