"""Print the tables of README.md, docs/results.md, more_results.md and costs.md; no training.

    python examples/fair_summary.py                                  # the published runs
    python examples/fair_summary.py runs/fair/runs.csv --costs runs/fair/costs.csv
    python examples/fair_summary.py --maps docs                      # draws the maps, too

They are made from the records. First come the tables of README.md, those of `episode demo` with
five seeds. Then, for every task, there is a table of all algorithms at I = 4, 8 and 16 local steps,
each at its own best setting and at the one that is best for CELGC, and one of what a target costs.
Then follow clients that are more alike, and `episode_trust` against the rest. A dash stands for
what was not played.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from episode import ALGORITHMS, EpisodeError, Synchronous, Unclipped
from episode.studies.demo import BY_PIXEL, DIGITS, WITHOUT_CLIPPING
from fair_comparisons import COMPARISONS, COST, COST_KEY, Record, Row, Setting, Table, best
from fair_tables import WITHIN, cost_head, cost_row, draw_maps, spread

LOCAL_STEPS = (4, 8, 16)
TASKS = {
    "digits": "digits", "digits-by-pixel": "digits by pixel", "snli": "SNLI",
    "sentiment140": "Sentiment140", "cifar10": "CIFAR-10",
}  # fmt: skip
"""Comparisons and what they are called in the tables."""
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
            again = not has_local_steps(name) and set(row[1:]) - {"–"}
            text = f"{cell(own)} ({setting_text(name, best(tried))})" if own else "–"
            row.append("the same" if own and again else text)
            if results.shared:
                row.append(cell(shared))
            near.append(str(results.near(name, max(tried.values()))) if tried else "–")
        if set(row[1:]) != {"–"}:
            rows.append([*row, ", ".join(near) + f" of {len(COMPARISONS[task].settings(name))}"])
    print_table(head, rows)


def costs_to_target(costs: Record, task: str) -> None:
    """Print what the target of a task costs each algorithm at its own best setting."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in costs.rows.values():
        if row["comparison"] == task:
            found.setdefault(row["target"], {}).setdefault(row["algorithm"], []).append(row)
    for target, runs in found.items():
        lines = [cost_row(name, runs[name]) for name in ORDER if name in runs]
        print(*cost_head(float(target)), *lines, "", sep="\n")


def all_maps(record: Record, folder: Path) -> None:
    """Draw the maps of every task that has been tuned."""
    for task in TASKS:
        results = Results.of(record, task, COMPARISONS[task].local_steps)
        tried = {name: results.tried(name) for name in ORDER}
        tried = {name: values for name, values in tried.items() if values}
        if tried:
            path = folder / f"{task.replace('-', '_')}_maps.png"
            draw_maps(results.table.comparison, tried, path)


def setting_text(algorithm: str, setting: Setting) -> str:
    """Return η and γ; η alone for an algorithm that does not clip."""
    eta, gamma = setting
    unclipped = isinstance(ALGORITHMS[algorithm].clipping, Unclipped)
    return f"{eta:g}" if unclipped else f"{eta:g}, {gamma:g}"


def readme(record: Record) -> None:
    """Print the demo's tables with all seeds, the best algorithm first."""
    digits = Results.of(record, "digits", DIGITS.local_steps)
    if digits.shared:
        rows = []
        for name in best_first(digits, DIGITS.best):
            setting, accuracy = own_best(digits, name)
            shared = cell(digits.means(name)[1])
            rows.append([name, setting, accuracy, shared, *digits.cost(name)])
        shared = "all at η = {:g}, γ = {:g}".format(*digits.shared)
        head = ["algorithm", "own η, γ", "accuracy", shared, "exchanges", "MB", "gradients"]
        print_table(head, rows)
    by_pixel = Results.of(record, "digits-by-pixel", BY_PIXEL.local_steps)
    rows = []
    for name in best_first(by_pixel, set(BY_PIXEL.best) - set(WITHOUT_CLIPPING.values())):
        plain = WITHOUT_CLIPPING.get(name)
        without = [plain, *own_best(by_pixel, plain)] if plain else ["–"] * 3
        rows.append([name, by_pixel.cost(name)[0], *own_best(by_pixel, name), *without])
    head = ["with clipping", "exchanges", "own η, γ", "accuracy", "without clipping", "own η"]
    print_table([*head, "accuracy"], rows)


def best_first(results: Results, names: Iterable[str]) -> list[str]:
    """Sort algorithms by mean test accuracy at their own best; leave out what was not played."""
    means = {name: statistics.mean(own) for name in names if (own := results.means(name)[0])}
    return sorted(means, key=lambda name: -means[name])


def own_best(results: Results, algorithm: str) -> tuple[str, str]:
    """Return the best setting of an algorithm, and its test accuracy there."""
    own = results.means(algorithm)[0]
    return (
        (setting_text(algorithm, best(results.tried(algorithm))), cell(own)) if own else ("–", "–")
    )


def more_alike(record: Record) -> None:
    """Print what clients that are more alike change, at the settings found without that."""
    names = {key[0].rpartition("-s")[::2] for key in record.rows if "-s" in key[0]}
    rows = []
    for task, similarity in sorted(names, key=lambda n: (list(TASKS).index(n[0]), float(n[1]))):
        steps = COMPARISONS[task].local_steps
        results = Results.of(record, task, steps, f"{task}-s{similarity}")
        cells = []
        for algorithm in (*RIVALS, OURS):
            own, shared = results.means(algorithm)
            tried = results.tried(algorithm)
            same = tried and best(tried) == results.shared
            cells.append(f"{cell(own)} both ways" if same else f"{cell(own)} / {cell(shared)}")
        rows.append([f"{TASKS[task]}, I = {steps}, s = {similarity}", *cells])
    print_table(["own best / at CELGC's", *RIVALS, OURS], rows)


def ours_against_the_rest(record: Record) -> None:
    """Print by how many points ours is ahead of the best rival, and averages over all tables."""
    rows: list[list[str]] = []
    ahead: dict[str, list[list[float]]] = {rival: [[], []] for rival in RIVALS}
    for task, title in TASKS.items():
        for i in LOCAL_STEPS:
            results = Results.of(record, task, i)
            means = {name: results.means(name) for name in (OURS, *RIVALS)}
            if not all(map(all, means.values())):
                continue
            for way in (0, 1):
                for rival in RIVALS:
                    mine, theirs = (statistics.mean(means[name][way]) for name in (OURS, rival))
                    ahead[rival][way].append(100 * (mine - theirs))
            points = [f"{min(ahead[rival][way][-1] for rival in RIVALS):+.1f}" for way in (1, 0)]
            rows.append([f"{title}, I = {i}", *points, *near_the_best(results)])
    names = ", ".join((OURS, *RIVALS))
    head = ["task", "all at CELGC's best setting", "each at its own best"]
    head += [f"settings near the own best: {names}", "near the best of the four"]
    print_table(head, rows)
    if rows:
        averages = [
            [rival, *(f"{statistics.mean(ways[way]):+.1f}" for way in (1, 0))]
            for rival, ways in ahead.items()
        ]
        print_table([f"{OURS} against, mean of {len(rows)}", *head[1:3]], averages)


def near_the_best(results: Results) -> tuple[str, str]:
    """Count settings near the best of ours and each rival: its own, and that of all of them."""
    tried = {name: results.tried(name) for name in (OURS, *RIVALS)}
    top = max(max(values.values()) for values in tried.values())
    own = ", ".join(str(results.near(name, max(v.values()))) for name, v in tried.items())
    of_all = ", ".join(str(results.near(name, top)) for name in tried)
    return f"{own} of {len(tried[OURS])}", of_all


def main() -> None:
    """Read the record and print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    published = Path(__file__).parents[1] / "docs" / "fair_runs.csv"
    parser.add_argument(
        "record", type=Path, nargs="?", default=published,
        help="CSV file that fair_tables.py has written (default: docs/fair_runs.csv)",
    )  # fmt: skip
    parser.add_argument(
        "--costs", type=Path, default=published.with_name("fair_costs.csv"),
        help="CSV file of costs that fair_tables.py has written (default: docs/fair_costs.csv)",
    )  # fmt: skip
    parser.add_argument("--maps", type=Path, help="existing folder, to draw the maps into")
    asked = parser.parse_args()
    for path in (asked.record, asked.costs):
        if not path.is_file():
            raise EpisodeError(f"There is no record {path}: name a CSV file of fair_tables.py.")
    if asked.maps is not None and not asked.maps.is_dir():
        raise EpisodeError(f"There is no folder {asked.maps}: make it, or name another.")
    record, costs = Record(asked.record), Record(asked.costs, COST_KEY, COST)
    print("## README\n")
    readme(record)
    for task, title in TASKS.items():
        print(f"## {title}\n")
        by_local_steps(record, task, LOCAL_STEPS)
        costs_to_target(costs, task)
    for task in LONGER:
        print(f"## {task}\n")
        by_local_steps(record, task, (4,))
        costs_to_target(costs, task)
    print("## Clients that are more alike\n")
    more_alike(record)
    print("## Ours against the rest\n")
    ours_against_the_rest(record)
    if asked.maps is not None:
        all_maps(record, asked.maps)


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
