"""Print the tables of docs/results.md from a record of runs; nothing is trained.

    python examples/fair_summary.py                     # docs/fair_runs.csv
    python examples/fair_summary.py runs/fair/runs.csv

`fair_tables.py` plays the runs and writes the record. For every task there is a table of all
algorithms at I = 4, 8 and 16 local steps, each at its own best setting and at the one that is best
for CELGC; then one with clients that are more alike, and one that compares `episode_trust` with the
rest. A dash stands for what was not played.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from episode import ALGORITHMS, EpisodeError, Synchronous, Unclipped
from fair_tables import COMPARISONS, WITHIN, Record, Setting, Table, best, spread

LOCAL_STEPS = (4, 8, 16)
TASKS = ("digits", "digits-by-pixel", "snli", "sentiment140", "cifar10")
LONGER = ("snli-recipe", "snli-longer")
OURS, RIVALS = "episode_trust", ("celgc", "episode", "scaffold_clipped")
ORDER = (
    "naive_parallel_clip", "parallel_sgd", OURS, "episode_nesterov", "episode_guarded", "episode",
    "episode_unclipped", "celgc", "fedavg", "scaffold_clipped", "scaffold", "episode_plus_plus",
)  # fmt: skip


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
        if isinstance(ALGORITHMS[algorithm].correction, Synchronous):  # the same at every I
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
        if isinstance(ALGORITHMS[algorithm].correction, Synchronous) and not table.tuned:
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

    def near(self, algorithm: str, accuracy: float) -> int:
        """Count the settings that come within 2 points of an accuracy on validation data."""
        return sum(value >= accuracy - WITHIN for value in self.tried(algorithm).values())


def accuracy(table: Table, algorithm: str, setting: Setting, seed: int, split: str) -> float | None:
    """Return the accuracy of a run in the record; None if it is not there."""
    key = (table.folder.name, algorithm, f"{setting[0]:g}", f"{setting[1]:g}", str(seed), split)
    found = table.record.rows.get(key)
    return float(found["accuracy"]) if found else None


def cell(values: Sequence[float]) -> str:
    """Format mean and deviation; a dash for nothing."""
    return spread(values) if values else "–"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", sep="\n")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def by_local_steps(record: Record, task: str, counts: Sequence[int]) -> None:
    """Print all algorithms of a task at several I."""
    found = {i: Results.of(record, task, i) for i in counts}
    head = ["algorithm"]
    for i, results in found.items():
        head.append(f"I = {i}: own best (η, γ)")
        if results.shared:
            head.append("at {:g}, {:g}, best for CELGC".format(*results.shared))
    head.append(f"settings within 2 points at I = {', '.join(map(str, counts))}")
    rows = []
    for name in ORDER:
        row, near = [name], []
        for results in found.values():
            tried = results.tried(name)
            own, shared = results.means(name)
            row.append(f"{cell(own)} ({setting_text(name, best(tried))})" if own else "–")
            if results.shared:
                row.append(cell(shared))
            near.append(str(results.near(name, max(tried.values()))) if tried else "–")
        if set(row[1:]) != {"–"}:
            rows.append([*row, ", ".join(near) + f" of {len(COMPARISONS[task].settings(name))}"])
    print_table(head, rows)


def setting_text(algorithm: str, setting: Setting) -> str:
    """Return η and γ; η alone for an algorithm that does not clip."""
    eta, gamma = setting
    unclipped = isinstance(ALGORITHMS[algorithm].clipping, Unclipped)
    return f"{eta:g}" if unclipped else f"{eta:g}, {gamma:g}"


def more_alike(record: Record) -> None:
    """Print what clients that are more alike change, at the settings found without that."""
    names = sorted({key[0] for key in record.rows if "-s" in key[0]})
    rows = []
    for name in names:
        task, _, similarity = name.rpartition("-s")
        results = Results.of(record, task, COMPARISONS[task].local_steps, name)
        for algorithm in ORDER:
            own, shared = results.means(algorithm)
            if own or shared:
                rows.append([task, similarity, algorithm, cell(own), cell(shared)])
    print_table(["task", "s", "algorithm", "own best", "at CELGC's"], rows)


def ours_against_the_rest(record: Record) -> None:
    """Print by how many points ours is ahead of the best rival, and averages over all tables."""
    rows, ahead = [], {way: {rival: [] for rival in RIVALS} for way in (0, 1)}
    for task in TASKS:
        for i in LOCAL_STEPS:
            results = Results.of(record, task, i)
            means = {name: results.means(name) for name in (OURS, *RIVALS)}
            if not all(means[OURS]):
                continue
            points: list[str] = []
            for way in (1, 0):
                mine = statistics.mean(means[OURS][way])
                for rival in RIVALS:
                    if means[rival][way]:
                        ahead[way][rival].append(100 * (mine - statistics.mean(means[rival][way])))
                points.append(f"{min(ahead[way][r][-1] for r in RIVALS if means[r][way]):+.1f}")
            tried = {name: results.tried(name) for name in (OURS, *RIVALS)}
            top = max(max(values.values()) for values in tried.values() if values)
            own = [results.near(n, max(v.values())) if v else "–" for n, v in tried.items()]
            of_all = [results.near(n, top) if v else "–" for n, v in tried.items()]
            row = [f"{task}, I = {i}", *points, ", ".join(map(str, own))]
            rows.append([*row, ", ".join(map(str, of_all)), str(len(tried[OURS]))])
    names = ", ".join((OURS, *RIVALS))
    head = ["task", "all at CELGC's best", "each at its own best"]
    head += [f"settings near the own best: {names}", f"settings near the best of all: {names}"]
    print_table([*head, "of"], rows)
    for way, said in ((1, "all at CELGC's best setting"), (0, "each at its own best")):
        parts = [
            f"{rival} by {statistics.mean(v):.1f} (of {len(v)})" for rival, v in ahead[way].items()
        ]
        print(f"On average, {said}, {OURS} is ahead of", ", ".join(parts))


def main() -> None:
    """Read the record and print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    published = Path(__file__).parents[1] / "docs" / "fair_runs.csv"
    parser.add_argument(
        "record", type=Path, nargs="?", default=published,
        help="CSV file that fair_tables.py has written (default: docs/fair_runs.csv)",
    )  # fmt: skip
    path = parser.parse_args().record
    if not path.is_file():
        raise EpisodeError(f"There is no record {path}: name the CSV file of fair_tables.py.")
    record = Record(path)
    for task in TASKS:
        print(f"## {task}\n")
        by_local_steps(record, task, LOCAL_STEPS)
    for task in LONGER:
        print(f"## {task}\n")
        by_local_steps(record, task, (4,))
    print("## Clients that are more alike\n")
    more_alike(record)
    print("## Ours against the rest\n")
    ours_against_the_rest(record)


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
