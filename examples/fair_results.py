"""The runs of the fair tables that are in a record: what was tried, and the tests at a setting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from episode import ALGORITHMS, Synchronous
from fair_comparisons import COMPARISONS, Record, Setting, Table, best
from fair_tables import WITHIN

LOCAL_STEPS = (4, 8, 16)
TASKS = {
    "digits": "digits", "digits-by-pixel": "digits by pixel", "snli": "SNLI",
    "sentiment140": "Sentiment140", "cifar10": "CIFAR-10",
}  # fmt: skip
"""Comparisons and what they are called in the tables."""
OURS, RIVALS = "episode_trust", ("celgc", "episode", "scaffold_clipped")


@dataclass(frozen=True)
class Results:
    """The runs of one comparison that are in a record."""

    table: Table
    shared: Setting | None
    """The setting that is best for CELGC; None if it was not tuned."""

    @classmethod
    def of(cls, record: Record, task: str, local_steps: int, name: str = "") -> Results:
        """Find a comparison by task and I, or by the name of its folder."""
        c = COMPARISONS[task]
        tuned = task if local_steps == c.local_steps else f"{task}-I{local_steps}"
        table = Table(replace(c, local_steps=local_steps), {}, Path(tuned), record)
        if name:
            table = replace(table, folder=Path(name), tuned=table)
        found = cls(table, None)
        tried = found.tried("celgc")
        return replace(found, shared=best(tried) if tried else None)

    def tried(self, algorithm: str) -> dict[Setting, float]:
        """Return the validation accuracy of every setting; empty if one is missing."""
        table = self.table.tuned or self.table
        if not has_local_steps(algorithm):  # the same at every I
            table = Results._at_default(table)
        found = {}
        for setting in table.comparison.settings(algorithm):
            seeds = table.comparison.tuned_with
            values = [accuracy(table, algorithm, setting, s, "validation") for s in seeds]
            if None in values:
                return {}
            found[setting] = statistics.mean(v for v in values if v is not None)
        return found

    def tested(self, algorithm: str, setting: Setting) -> list[float]:
        """Return the test accuracies at a setting, over all seeds in the record."""
        table = self.table
        if not has_local_steps(algorithm) and not table.tuned:
            table = Results._at_default(table)
        values = [accuracy(table, algorithm, setting, s, "test") for s in range(3, 8)]
        return [v for v in values if v is not None]

    @staticmethod
    def _at_default(table: Table) -> Table:
        task = table.folder.name.partition("-I")[0]
        return replace(table, comparison=COMPARISONS[task], folder=Path(task))

    def means(self, algorithm: str) -> tuple[list[float], list[float]]:
        """Return the test accuracies at the own best setting and at CELGC's."""
        tried = self.tried(algorithm)
        own = self.tested(algorithm, best(tried)) if tried else []
        return own, self.tested(algorithm, self.shared) if self.shared else []

    def cost(self, algorithm: str) -> tuple[str, str, str]:
        """Return exchanges, megabytes and gradients of a test run at the own best setting."""
        table = self.table if has_local_steps(algorithm) else Results._at_default(self.table)
        row = table.record.rows[key_of(table, algorithm, best(self.tried(algorithm)), 3, "test")]
        exchanges, gradients = (f"{int(row[name]):,}" for name in ("exchanges", "gradients"))
        return exchanges, row["megabytes"], gradients

    def near(self, algorithm: str, accuracy: float) -> int:
        """Count the settings that come within 2 points of an accuracy on validation data."""
        return sum(value >= accuracy - WITHIN for value in self.tried(algorithm).values())


def accuracy(table: Table, algorithm: str, setting: Setting, seed: int, split: str) -> float | None:
    """Return the accuracy of a run in the record; None if it is not there."""
    found = table.record.rows.get(key_of(table, algorithm, setting, seed, split))
    return float(found["accuracy"]) if found else None


def key_of(
    table: Table, algorithm: str, setting: Setting, seed: int, split: str
) -> tuple[str, ...]:
    """Return the key of a run in the record."""
    return table.folder.name, algorithm, f"{setting[0]:g}", f"{setting[1]:g}", str(seed), split


def has_local_steps(algorithm: str) -> bool:
    """Return whether clients step on their own between exchanges."""
    return not isinstance(ALGORITHMS[algorithm].correction, Synchronous)
