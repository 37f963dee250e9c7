"""Compare algorithms fairly on two cores: each at its own best setting, and all at a shared one.

    python examples/fair_tables.py digits
    python examples/fair_tables.py digits --local-steps 16
    python examples/fair_tables.py digits --similarity 30
    python examples/fair_tables.py digits --target 0.9
    python examples/fair_tables.py digits-by-pixel
    python examples/fair_tables.py snli --data snli_1.0.zip --vectors glove.6B.50d.txt.gz
    python examples/fair_tables.py sentiment140 --data trainingandtestdata.zip --vectors ...
    python examples/fair_tables.py cifar10 --data cifar-10-python.tar.gz

`snli-recipe` and `snli-longer` are SNLI with more iterations and, in `snli-longer`, a wider model.

Every algorithm is tuned with the same number of trials on the validation split, each of them played
with seeds 0 to 2, or with seed 0 on SNLI and CIFAR-10, whose runs are long. Then it runs on the
test split with other seeds: at its own best setting, and at the one that is best for CELGC, which
is how the paper tunes. A trial that diverges counts as accuracy 0. With `--similarity` the clients'
data are more or less alike, and the settings are those found without it. With `--target` a second
table tells what it cost, at the own best setting, until the test accuracy was reached.

Every run that has ended is a line of a CSV file, `--record`, and is not played again: a stopped
script goes on where it was. docs/fair_runs.csv has the runs of docs/results.md, and
docs/fair_costs.csv the costs to a target: with copies of them as `--record` and `--costs`, only
what is missing is played. `fair_summary.py` prints all tables from them.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from episode import ALGORITHMS, EpisodeError, Unclipped
from episode.results.figures import as_image, new_figure
from episode.studies.demo import BEST
from fair_comparisons import (
    COMPARISONS,
    COST,
    COST_KEY,
    Comparison,
    Record,
    Row,
    Setting,
    Table,
    best,
)  # fmt: skip

WITHIN = 0.02
"""A setting is good if its accuracy is at most so far below the algorithm's best."""


def spread(values: Sequence[float]) -> str:
    """Format mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {deviation:.3f}"


def row(
    table: Table,
    algorithm: str,
    tried: dict[Setting, float],
    shared: Setting,
    seeds: Sequence[int],
    follow: bool,
) -> str:
    """Format an algorithm's row: at its own best setting, and at the shared one.

    With `follow`, runs at the own best setting are evaluated on the way, not only at the end.
    """
    own = best(tried)
    good = sum(value >= tried[own] - WITHIN for value in tried.values())
    every = table.comparison.rounds_between_evaluations if follow else 0
    at_best = [table.accuracy(algorithm, own, seed, "test", every) for seed in seeds]
    at_shared = [table.accuracy(algorithm, shared, seed, "test") for seed in seeds]
    cost = table.result(algorithm, own, seeds[0], "test")
    cells = (
        algorithm,
        f"{own[0]:g}" if isinstance(ALGORITHMS[algorithm].clipping, Unclipped)
        else f"{own[0]:g}, {own[1]:g}",
        spread(at_best), spread(at_shared), f"{good} of {len(tried)}",
        cost["rounds"], cost["exchanges"], cost["megabytes"], f"{int(cost['gradients']):,}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def cost_row(algorithm: str, costs: Sequence[Row]) -> str:
    """Format what an algorithm needs to the target: medians of the runs that reach it."""
    reached = [cost for cost in costs if cost["rounds"]]
    cells = [algorithm, f"{len(reached)} of {len(costs)}"]
    for name in COST:
        if not reached:
            cells.append("–")
            continue
        median = statistics.median(float(cost[name]) for cost in reached)
        decimals = 1 if name in ("megabytes", "seconds") or median % 1 else 0
        cells.append(f"{median:,.{decimals}f}")
    return f"| {' | '.join(cells)} |"


def cost_head(target: float) -> list[str]:
    """Format the head of the table of costs."""
    head = f"algorithm|seeds that reach {target:g}|rounds|exchanges|MB|gradients|seconds"
    return [f"| {head.replace('|', ' | ')} |", "|---" * (head.count("|") + 1) + "|"]


def draw_maps(comparison: Comparison, tried: dict[str, dict[Setting, float]], path: Path) -> None:
    """Draw validation accuracy over γ x η, a map for each algorithm; bold within 2 points.

    Those that do not clip have a line each, over η.
    """
    plain = [a for a in tried if isinstance(ALGORITHMS[a].clipping, Unclipped)]
    clipped = [a for a in tried if a not in plain]
    rows = -(-len(clipped) // 4)
    heights = [2.6] * rows + ([0.45 * len(plain) + 0.8] if plain else [])
    figure = new_figure(figsize=(12, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 4, height_ratios=heights)
    for k, algorithm in enumerate(clipped):
        axis = figure.add_subplot(grid[k // 4, k % 4])
        values = [[tried[algorithm][e, g] for e in comparison.etas] for g in comparison.gammas]
        draw_map(axis, values, [max(map(max, values))] * len(values))
        axis.set_xticks(range(len(comparison.etas)), [f"{eta:g}" for eta in comparison.etas])
        axis.set_yticks(range(len(values)), [f"{gamma:g}" for gamma in comparison.gammas])
        axis.set(title=algorithm, xlabel="η", ylabel="γ")
    if plain:
        axis = figure.add_subplot(grid[rows, :])
        values = [list(tried[algorithm].values()) for algorithm in plain]
        draw_map(axis, values, [max(line) for line in values])
        etas = comparison.etas_unclipped
        axis.set_xticks(range(len(etas)), [f"{eta:g}" for eta in etas])
        axis.set_yticks(range(len(plain)), plain)
        axis.set(title="without clipping", xlabel="η")
    path.write_bytes(as_image(figure, "png"))


def draw_map(axis: Any, values: Sequence[Sequence[float]], highest: Sequence[float]) -> None:
    """Draw one heat map with its values; bold if near the highest value for their line."""
    axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            axis.text(
                x, y, f"{value:.2f}", ha="center", va="center", fontsize=9,
                color="white" if value > 0.6 else "black",
                weight="bold" if value >= highest[y] - WITHIN else "normal",
            )  # fmt: skip


def whole_numbers(text: str) -> list[int]:
    """Read whole numbers with commas."""
    return [int(number) for number in text.split(",")]


def arguments() -> argparse.Namespace:
    """Read and check the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("--data", help="folder or archive with the official files of the dataset")
    parser.add_argument("--vectors", help="word vectors in GloVe's format")
    parser.add_argument("--algorithms", default=",".join(BEST), help="names, with commas")
    parser.add_argument(
        "--seeds", type=whole_numbers, default=[3, 4, 5, 6, 7],
        help="seeds of the test runs, with commas",
    )  # fmt: skip
    parser.add_argument("--target", type=float, help="test accuracy to which costs are counted")
    parser.add_argument("--local-steps", type=int, help="I, if not that of the comparison")
    parser.add_argument(
        "--similarity", type=float, help="s, 0 to 100, if not that of the comparison"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/fair"), help="where runs go")
    parser.add_argument(
        "--record", type=Path, default=Path("runs/fair/runs.csv"),
        help="CSV file of runs that have ended, not to be played again",
    )  # fmt: skip
    parser.add_argument(
        "--costs", type=Path, default=Path("runs/fair/costs.csv"),
        help="CSV file of what runs cost to a target",
    )  # fmt: skip
    asked = parser.parse_args()
    iterations = COMPARISONS[asked.name].iterations
    if asked.target is not None and not 0 < asked.target <= 1:
        parser.error("--target is an accuracy, above 0 and at most 1, such as 0.9")
    if asked.local_steps is not None and not 1 <= asked.local_steps <= iterations:
        parser.error(f"--local-steps must be 1 to {iterations}")
    if asked.similarity is not None and not 0 <= asked.similarity <= 100:
        parser.error("--similarity must be 0 to 100")
    asked.algorithms = asked.algorithms.split(",")
    if unknown := [name for name in asked.algorithms if name not in ALGORITHMS]:
        parser.error(f"--algorithms has {', '.join(unknown)}: `episode list algorithms` names them")
    return asked


def asked_table(asked: argparse.Namespace) -> Table:
    """Return the table that the arguments ask for."""
    given = {k: getattr(asked, k) for k in ("data", "vectors") if getattr(asked, k)}
    record, costs = Record(asked.record), Record(asked.costs, COST_KEY, COST)
    comparison, folder = COMPARISONS[asked.name], asked.folder / asked.name
    if asked.local_steps not in (None, comparison.local_steps):
        comparison = replace(comparison, local_steps=asked.local_steps)
        folder = asked.folder / f"{asked.name}-I{asked.local_steps}"
    table = Table(comparison, given, folder, record, costs)
    if asked.similarity is None:
        return table
    alike = replace(comparison, task={**comparison.task, "similarity": asked.similarity})
    folder = folder.with_name(f"{folder.name}-s{asked.similarity:g}")
    return Table(alike, given, folder, record, costs, tuned=table)


def main() -> None:
    """Tune every algorithm, test it, and write the tables and the maps."""
    asked = arguments()
    table, names, seeds = asked_table(asked), asked.algorithms, asked.seeds
    warnings.simplefilter("ignore")
    tried = {name: table.tried(name) for name in dict.fromkeys(["celgc", *names])}
    shared = best(tried["celgc"])
    head = f"algorithm|own η, γ|own best|at η = {shared[0]:g}, γ = {shared[1]:g}, best for CELGC"
    head += f"|settings within {100 * WITHIN:.0f} points|rounds|exchanges|MB|gradients"
    lines = [f"| {head.replace('|', ' | ')} |", "|---" * (head.count("|") + 1) + "|"]
    follow = asked.target is not None
    lines += [row(table, name, tried[name], shared, seeds, follow) for name in names]
    if follow:
        lines += ["", *cost_head(asked.target)]
        for name in names:
            own = best(tried[name])
            costs = [table.cost(name, own, seed, asked.target) for seed in seeds]
            lines.append(cost_row(name, costs))
    table.folder.mkdir(parents=True, exist_ok=True)
    (table.folder / "table.md").write_text("\n".join(lines) + "\n")
    if not table.tuned:
        draw_maps(table.comparison, tried, table.folder / "maps.png")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
