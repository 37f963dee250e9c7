"""Claims that compare a metric between pairs of cases."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from episode.paper.published import Case
from episode.paper.run_results import RunClaim, RunResults


@dataclass(frozen=True)
class Relation:
    """A relation between the metrics of two cases."""

    holds: Callable[[float, float], bool]
    bound: str = ""


ONE_PROCESS = "in one process an exchange costs next to nothing"
"""Why running times are judged at the paper's scale only."""
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


def ahead(text: str, pairs: Sequence[tuple[Case, Case]]) -> RunClaim:
    """The claim that the first case of every pair is ahead of the second when it ends.

    It must have a lower training loss and a higher test accuracy than the second in the same time.
    """

    def is_ahead(r: RunResults, ours: Case, other: Case) -> bool:
        (loss, accuracy), (other_loss, other_accuracy) = (
            r.best_within(case, r.minutes(ours)) for case in (ours, other)
        )
        return loss < other_loss and accuracy > other_accuracy

    def reached(r: RunResults, ours: Case, other: Case) -> str:
        limit = r.minutes(ours)
        show = "loss {:.3f} and accuracy {:.3f}".format
        listed = r.listed((ours, other), lambda case: show(*r.best_within(case, limit)))
        return f"{listed} in {limit:.1f} min"

    return RunClaim(
        text,
        lambda r: all(is_ahead(r, *pair) for pair in pairs),
        lambda r: "; ".join(reached(r, *pair) for pair in pairs),
        paper_scale_only=ONE_PROCESS,
    )
