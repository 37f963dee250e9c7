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
from pathlib import Path

from episode import ALGORITHMS, EpisodeError, Unclipped
from episode.studies.demo import BY_PIXEL, DIGITS, WITHOUT_CLIPPING
from fair_comparisons import COMPARISONS, COST, COST_KEY, Record, Row, Setting, best
from fair_results import LOCAL_STEPS, OURS, RIVALS, TASKS, Results, has_local_steps
from fair_tables import cost_head, cost_row, draw_maps, spread

LONGER = ("snli-recipe", "snli-longer")
NEARNESS = (
    "mean of all settings: episode_trust, celgc, episode, scaffold_clipped",
    "settings near the own best",
    "near the best of the four",
)
"""How good the settings of a grid are, on validation data."""
ORDER = (
    "naive_parallel_clip", "parallel_sgd", OURS, "episode_nesterov", "episode_guarded", "episode",
    "episode_unclipped", "celgc", "fedavg", "scaffold_clipped", "scaffold", "episode_plus_plus",
)  # fmt: skip


def cell(values: Sequence[float]) -> str:
    """Format mean and deviation; a dash for nothing."""
    return spread(values) if values else "–"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown; nothing if it has no rows."""
    if not rows:
        return
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
            leads = []
            for way in (1, 0):
                for rival in RIVALS:
                    ahead[rival][way].append(difference(means[OURS][way], means[rival][way]))
                strongest = max(RIVALS, key=lambda name: statistics.mean(means[name][way]))
                leads.append(lead(means[OURS][way], means[strongest][way]))
            rows.append([f"{title}, I = {i}", *leads, *near_the_best(results)])
    head = ["task", "all at CELGC's best setting", "each at its own best", *NEARNESS]
    print_table(head, rows)
    if rows:
        averages = [
            [
                f"{rival}, mean of {len(rows)}",
                *(f"{statistics.mean(w):+.1f}" for w in (ways[1], ways[0])),
            ]
            for rival, ways in ahead.items()
        ]
        pairs = [
            (ours.means(OURS), theirs.means("celgc")) for _, ours, theirs in equal_exchanges(record)
        ]
        means = [statistics.mean(difference(a[w], b[w]) for a, b in pairs) for w in (1, 0)]
        same = f"celgc with half the local steps and as many exchanges, mean of {len(pairs)}"
        averages.append([same, *(f"{mean:+.1f}" for mean in means)])
        print_table([f"{OURS} against", *head[1:3]], averages)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return by how many points ours is ahead on average."""
    return 100 * (statistics.mean(ours) - statistics.mean(theirs))


def lead(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return by how many points ours is ahead, with the standard error if seeds form pairs."""
    points = f"{difference(ours, theirs):+.1f}"
    if len(ours) != len(theirs) or len(ours) < 2:
        return points
    error = statistics.stdev(a - b for a, b in zip(ours, theirs, strict=True)) / len(ours) ** 0.5
    return f"{points} ± {100 * error:.1f}"


def near_the_best(results: Results) -> tuple[str, str, str]:
    """Say of ours and each rival how good its settings are, in the columns of `NEARNESS`."""
    tried = {name: results.tried(name) for name in (OURS, *RIVALS)}
    top = max(max(values.values()) for values in tried.values())
    mean = ", ".join(f"{statistics.mean(v.values()):.2f}" for v in tried.values())
    own = ", ".join(str(results.near(name, max(v.values()))) for name, v in tried.items())
    of_all = ", ".join(str(results.near(name, top)) for name in tried)
    return mean, f"{own} of {len(tried[OURS])}", of_all


def equal_exchanges(record: Record) -> list[tuple[str, Results, Results]]:
    """Return what can be compared at equal exchanges: ours with I local steps, CELGC with I/2."""
    found = []
    for task, title in TASKS.items():
        for i in LOCAL_STEPS[1:]:
            ours, theirs = Results.of(record, task, i), Results.of(record, task, i // 2)
            if all((*ours.means(OURS), *theirs.means("celgc"))):
                found.append((f"{title}, {i} and {i // 2}", ours, theirs))
    return found


def at_equal_exchanges(record: Record) -> None:
    """Print ours beside CELGC with half the local steps, which exchanges as often."""
    rows = []
    for title, ours, theirs in equal_exchanges(record):
        own = ours.means(OURS)[0], theirs.means("celgc")[0]
        tried = ours.tried(OURS), theirs.tried("celgc")
        means = [f"{statistics.mean(values.values()):.2f}" for values in tried]
        rows.append([title, *map(cell, own), lead(*own), *means])
    head = ["task, local steps", f"{OURS}, own best", "celgc, own best", "ahead by"]
    print_table([*head, *(f"{name}, mean of all settings" for name in (OURS, "celgc"))], rows)


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
    at_equal_exchanges(record)
    if asked.maps is not None:
        all_maps(record, asked.maps)


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
