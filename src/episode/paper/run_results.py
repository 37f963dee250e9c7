"""Metrics of the runs behind a table or figure, and how evidence lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from episode.paper.published import NAMES, PARALLEL, Case
from episode.paper.recipe import Claim
from episode.results.groups import Spread
from episode.results.store import StoredRun


@dataclass(frozen=True)
class RunResults:
    """The runs of a recipe by case, one for each seed.

    Final metrics are means over seeds; curves and times are those of the first seed.
    """

    runs: Mapping[Case, list[StoredRun]]
    iterations_per_epoch: float = 1.0
    shrink: int = 1
    """What the paper's I were divided by."""

    def final(self, case: Case, metric: str) -> list[float]:
        """The final values of a metric, of all seeds that finished."""
        ended = [r.summary["metrics"] for r in self.runs[case] if r.status == "finished"]
        return [float(metrics[metric]) for metrics in ended if metric in metrics]

    def accuracy(self, case: Case) -> float:
        """Test accuracy in percent; 0 if all runs diverged."""
        values = self.final(case, "test_accuracy")
        return 100 * Spread.of(values).mean if values else 0.0

    def loss(self, case: Case) -> float:
        """Training loss; infinite if all runs diverged."""
        values = self.final(case, "train_loss")
        return Spread.of(values).mean if values else math.inf

    def texts(self, case: Case) -> tuple[str, str]:
        """Training loss and test accuracy as a table shows them."""
        runs = self.runs[case]
        if all(r.status == "diverged" for r in runs):
            return "diverged", "diverged"

        def text(values: list[float], digits: int, unit: str) -> str:
            mark = f" ({len(values)} of {len(runs)} runs)" if len(values) < len(runs) else ""
            return Spread.of(values).text(digits) + unit + mark if values else "–"

        accuracies = [100 * v for v in self.final(case, "test_accuracy")]
        return text(self.final(case, "train_loss"), 3, ""), text(accuracies, 1, "%")

    def curve(self, case: Case, metric: str, axis: str) -> tuple[list[float], list[float]]:
        """A metric over epochs, iterations, rounds or minutes."""
        run = self.runs[case][0]
        steps = 1 if case.algorithm == PARALLEL else run.config["budget"]["local_steps"]
        scale = {"epochs": steps / self.iterations_per_epoch, "iterations": float(steps),
                 "rounds": 1.0, "minutes": 1 / 60}[axis]  # fmt: skip
        rows = [r for r in run.rounds if metric in r.get("metrics", {})]
        along = [r["seconds"] if axis == "minutes" else r["round"] + 1 for r in rows]
        return [scale * x for x in along], [r["metrics"][metric] for r in rows]

    def minutes(self, case: Case) -> float:
        """Minutes of training."""
        return float(self.runs[case][0].summary.get("seconds", math.nan)) / 60

    def minutes_to(self, case: Case, accuracy: float) -> float:
        """Minutes of training until a test accuracy in percent is reached; infinite if never."""
        for record in self.runs[case][0].rounds:
            if 100 * record.get("metrics", {}).get("test_accuracy", 0) >= accuracy:
                return float(record["seconds"]) / 60
        return math.inf

    def rounds_to(self, case: Case, loss: float) -> float:
        """Rounds until a training loss is reached; infinite if never."""
        for record in self.runs[case][0].rounds:
            if record.get("metrics", {}).get("train_loss", math.inf) <= loss:
                return int(record["round"]) + 1
        return math.inf

    def best_within(self, case: Case, minutes: float) -> tuple[float, float]:
        """The lowest training loss and the highest test accuracy within so many minutes."""
        losses, accuracies = (
            [y for x, y in zip(*self.curve(case, metric, "minutes"), strict=True) if x <= minutes]
            for metric in ("train_loss", "test_accuracy")
        )
        return min(losses, default=math.inf), max(accuracies, default=0.0)

    def interval(self, local_steps: int) -> str:
        """I as tables show it: as it was used here, with the paper's value if that differs."""
        used = max(1, local_steps // self.shrink)
        return str(used) if used == local_steps else f"{used} (paper: {local_steps})"

    def listed(self, cases: Iterable[Case], show: Callable[[Case], str]) -> str:
        """List cases by setting: `I = 4, s = 30%: CELGC 77.2%, EPISODE 81.7%; I = 8, …`."""
        groups: dict[str, list[str]] = {}
        for case in cases:
            setting = f"I = {self.interval(case.local_steps)}, s = {case.similarity:g}%"
            groups.setdefault(setting, []).append(f"{NAMES[case.algorithm]} {show(case)}")
        return "; ".join(f"{setting}: {', '.join(shown)}" for setting, shown in groups.items())


RunClaim = Claim[RunResults]
