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

Every algorithm is tuned with the same number of trials, on the validation split, with seed 0 (on
digits, also by pixel, whose validation split is small, with seeds 0 to 2). Then it runs on the test
split with other seeds: at its own best setting, and at the one that is best for CELGC, which is how
the paper tunes. A trial that diverges counts as accuracy 0. With `--similarity` the clients' data
are more or less alike, and the settings are those found without it. With `--target` a second table
tells what it cost, at the own best setting, until the test accuracy was reached.

Every run that has ended is a line of a CSV file, `--record`, and is not played again: a stopped
script goes on where it was. docs/fair_runs.csv has most of the runs of docs/results.md; with a copy
of it as the record, only the others are played.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from episode import ALGORITHMS, EpisodeError, Synchronous, Unclipped
from episode.results.figures import as_image, new_figure
from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train
from episode.studies.demo import BEST

Setting = tuple[float, float]
"""η and γ."""
WITHIN = 0.02
"""A setting is good if its accuracy is at most so far below the algorithm's best."""

KEY = ("comparison", "algorithm", "eta", "gamma", "seed", "split")
RESULT = ("status", "accuracy", "train_loss", "rounds", "exchanges", "megabytes", "gradients")
Row = dict[str, str]
"""A run in the record: KEY names it, RESULT is how it ended."""


class Record:
    """Every run that has ended, one a line of a CSV file; no run in it is played again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], Row] = {}
        if path.exists():
            head = ",".join([*KEY, *RESULT]) + "\n"
            text = path.read_text() if path.is_file() else "a folder"
            if not head.startswith(text[: len(head)]):
                raise EpisodeError(f"{path} is not a record of runs: name another file, or none.")
            whole = text[: text.rfind("\n") + 1]  # a last line that was cut off is played again
            if whole != text:
                path.write_text(whole)
            rows = csv.DictReader(io.StringIO(whole))
            self.rows = {tuple(row[name] for name in KEY): row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a run, and write it to the end of the file."""
        self.rows[tuple(row[name] for name in KEY)] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            lines = csv.DictWriter(file, [*KEY, *RESULT], lineterminator="\n")
            if not file.tell():
                lines.writeheader()
            lines.writerow(row)


def outcome(folder: Path, split: str) -> Row:
    """Return how the run in a folder ended; the accuracy of one that diverged is 0."""
    end = json.loads((folder / "summary.json").read_text())
    finished = end["status"] == "finished"
    metrics = end["metrics"] if finished else {}
    return {
        "status": end["status"],
        "accuracy": str(metrics.get(f"{split}_accuracy", 0.0)),
        "train_loss": str(metrics.get("train_loss", "")),
        "rounds": str(end["rounds"]),
        "exchanges": str(end["exchanges"]),
        "megabytes": f"{(end['bytes_up'] + end['bytes_down']) / 1e6:.1f}",
        "gradients": str(end["gradients"]),
    }


@dataclass(frozen=True)
class Comparison:
    """A task, its budget, and the settings to try; all algorithms get equally many."""

    task: dict[str, Any]
    iterations: int
    local_steps: int
    etas: tuple[float, ...]
    gammas: tuple[float, ...]
    etas_unclipped: tuple[float, ...]
    tuned_with: tuple[int, ...] = (0,)
    """Seeds of the trials; a setting is as good as its mean over them."""
    evaluate_every: int = 8
    """Iterations from one evaluation to the next, where costs to a target are counted."""

    def rounds_between_evaluations(self, algorithm: str) -> int:
        """Return `evaluate_every` as rounds of an algorithm."""
        synchronous = isinstance(ALGORITHMS[algorithm].correction, Synchronous)
        return max(1, self.evaluate_every // (1 if synchronous else self.local_steps))

    def settings(self, algorithm: str) -> list[Setting]:
        """Return what is tried for an algorithm."""
        if isinstance(ALGORITHMS[algorithm].clipping, Unclipped):
            return [(eta, 1.0) for eta in self.etas_unclipped]
        return list(itertools.product(self.etas, self.gammas))


DIGITS = Comparison(
    {"name": "digits"}, 480, 8,
    etas=(0.12, 0.5, 2.0), gammas=(0.03, 0.1, 0.3, 1.0),
    etas_unclipped=(0.008, 0.015, 0.03, 0.06, 0.09, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0),
    tuned_with=(0, 1, 2),
)  # fmt: skip
COMPARISONS = {
    "digits": DIGITS,
    "digits-by-pixel": Comparison(
        {"name": "digits", "time_steps": 64}, 480, 8,
        etas=(0.12, 0.5, 2.0), gammas=(0.03, 0.1, 0.3, 1.0), etas_unclipped=DIGITS.etas_unclipped,
        tuned_with=(0, 1, 2),
    ),
    "snli": Comparison(
        {"name": "snli", "similarity": 10}, 400, 4,
        etas=(0.3, 1.0, 3.0), gammas=(0.1, 0.3, 1.0),
        etas_unclipped=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), evaluate_every=20,
    ),
    "snli-recipe": Comparison(
        {"name": "snli", "similarity": 30}, 2400, 4,
        etas=(1.0,), gammas=(0.1, 0.3, 1.0), etas_unclipped=(0.1, 0.3, 1.0), evaluate_every=120,
    ),
    "snli-longer": Comparison(
        {"name": "snli", "similarity": 10, "batch_size": 64, "hidden": 128, "classifier": 128},
        1680, 4,
        etas=(1.0,), gammas=(0.1, 0.3, 1.0), etas_unclipped=(0.1, 0.3, 1.0), evaluate_every=120,
    ),
    "sentiment140": Comparison(
        {"name": "sentiment140", "similarity": 0}, 240, 4,
        etas=(0.3, 1.0, 3.0), gammas=(0.1, 0.3, 1.0),
        etas_unclipped=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), evaluate_every=8,
    ),
    "cifar10": Comparison(
        {"name": "cifar10", "similarity": 50, "model": "resnet8", "width": 8, "norm": "batch",
         "batch_size": 16}, 200, 8,
        etas=(0.1, 0.3, 1.0), gammas=(0.1, 0.5, 2.0),
        etas_unclipped=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0), evaluate_every=16,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A comparison that is being made, and where its runs go."""

    comparison: Comparison
    given: dict[str, Any]
    folder: Path
    record: Record
    tuned: Table | None = None
    """The table whose settings are used; None to find them here."""

    def played(
        self, algorithm: str, setting: Setting, seed: int, split: str, every: int = 0
    ) -> Path:
        """Return the folder of a run, which is played unless it has ended before."""
        c = self.comparison
        eta, gamma = setting
        experiment = Experiment.from_dict(
            {
                "seed": seed,
                "task": {**c.task, **self.given, "evaluate_on": split},
                "algorithm": algorithm,
                "schedule": {"eta": eta, "gamma": gamma},
                "budget": {"rounds": c.iterations // c.local_steps, "local_steps": c.local_steps},
                "record": {"evaluate_every": every},
            }
        )
        name = f"{algorithm}-eta{eta:g}-gamma{gamma:g}-seed{seed}-{split}"
        folder = self.folder / (f"{name}-every{every}" if every else name)
        if not (folder / "summary.json").exists():
            train(job_of(experiment), folder)
        return folder

    def result(
        self, algorithm: str, setting: Setting, seed: int, split: str, every: int = 0
    ) -> Row:
        """Return how a run ended; it is played unless it is in the record."""
        eta, gamma = (f"{value:g}" for value in setting)
        key = (self.folder.name, algorithm, eta, gamma, str(seed), split)
        if key not in self.record.rows:
            ended = outcome(self.played(algorithm, setting, seed, split, every), split)
            self.record.add(dict(zip(KEY, key, strict=True)) | ended)
        return self.record.rows[key]

    def first_at(
        self, algorithm: str, setting: Setting, seed: int, target: float
    ) -> dict[str, Any] | None:
        """Return the first record whose test accuracy is the target or more; None if none is."""
        every = self.comparison.rounds_between_evaluations(algorithm)
        folder = self.played(algorithm, setting, seed, "test", every)
        for record in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines()):
            if (record.get("metrics") or {}).get("test_accuracy", 0.0) >= target:
                return dict(record)
        return None

    def accuracy(
        self, algorithm: str, setting: Setting, seed: int, split: str, every: int = 0
    ) -> float:
        """Return the accuracy of a run; 0 if it diverged."""
        accuracy = float(self.result(algorithm, setting, seed, split, every)["accuracy"])
        print(f"{algorithm} eta {setting[0]:g} gamma {setting[1]:g} seed {seed} {split}: "
              f"{accuracy:.3f}", flush=True)  # fmt: skip
        return accuracy

    def tried(self, algorithm: str) -> dict[Setting, float]:
        """Return the validation accuracy of every setting, the mean over the seeds of trials."""
        if self.tuned:
            return self.tuned.tried(algorithm)
        c = self.comparison
        return {
            s: statistics.mean(self.accuracy(algorithm, s, k, "validation") for k in c.tuned_with)
            for s in c.settings(algorithm)
        }


def best(tried: dict[Setting, float]) -> Setting:
    """Return the setting of the highest accuracy; of equal ones, the first."""
    return max(tried, key=lambda setting: tried[setting])


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
    every = table.comparison.rounds_between_evaluations(algorithm) if follow else 0
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


def cost_row(
    table: Table, algorithm: str, own: Setting, seeds: Sequence[int], target: float
) -> str:
    """Format what an algorithm needs to the target: medians of the seeds that reach it."""
    firsts = [table.first_at(algorithm, own, seed, target) for seed in seeds]
    reached = [first for first in firsts if first]
    cells = [algorithm, f"{len(reached)} of {len(seeds)}"]
    if reached:
        rounds = statistics.median(first["round"] + 1 for first in reached)
        sent = statistics.median(first["bytes_up"] + first["bytes_down"] for first in reached)
        exchanges, gradients, seconds = (
            statistics.median(first[name] for first in reached)
            for name in ("exchanges", "gradients", "seconds")
        )
        cells += [f"{rounds:g}", f"{exchanges:g}", f"{sent / 1e6:.1f}", f"{gradients:,.0f}"]
        cells += [f"{seconds:.1f}"]
    cells += ["–"] * (7 - len(cells))
    return f"| {' | '.join(cells)} |"


def draw_maps(table: Table, tried: dict[str, dict[Setting, float]], path: Path) -> None:
    """Draw validation accuracy over γ x η, a heat map for each algorithm that clips."""
    c = table.comparison
    clipped = [a for a in tried if not isinstance(ALGORITHMS[a].clipping, Unclipped)]
    columns = min(4, len(clipped))
    rows = -(-len(clipped) // columns)
    figure = new_figure(figsize=(3 * columns, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(clipped) :]:
        axis.axis("off")
    for axis, algorithm in zip(axes, clipped, strict=False):
        values = [[tried[algorithm][eta, gamma] for eta in c.etas] for gamma in c.gammas]
        highest = max(map(max, values))
        axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
        axis.set_xticks(range(len(c.etas)), [f"{eta:g}" for eta in c.etas])
        axis.set_yticks(range(len(c.gammas)), [f"{gamma:g}" for gamma in c.gammas])
        axis.set(title=algorithm, xlabel="η", ylabel="γ")
        for (y, line), x in itertools.product(enumerate(values), range(len(c.etas))):
            good = line[x] >= highest - WITHIN
            axis.text(
                x, y, f"{line[x]:.2f}", ha="center", va="center", fontsize=9,
                color="white" if line[x] > 0.6 else "black", weight="bold" if good else "normal",
            )  # fmt: skip
    path.write_bytes(as_image(figure, "png"))


def whole_numbers(text: str) -> list[int]:
    """Read whole numbers with commas."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Read the arguments, tune every algorithm, and write the table and the maps."""
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
        "--record",
        type=Path,
        default=Path("runs/fair/runs.csv"),
        help="CSV file of runs that have ended, not to be played again",
    )
    asked = parser.parse_args()
    given = {k: getattr(asked, k) for k in ("data", "vectors") if getattr(asked, k)}
    if asked.target is not None and not 0 < asked.target <= 1:
        parser.error("--target is an accuracy, above 0 and at most 1, such as 0.9")
    warnings.simplefilter("ignore")
    comparison, folder = COMPARISONS[asked.name], asked.folder / asked.name
    if asked.local_steps is not None:
        if not 1 <= asked.local_steps <= comparison.iterations:
            parser.error(f"--local-steps must be 1 to {comparison.iterations}")
        comparison = replace(comparison, local_steps=asked.local_steps)
        folder = asked.folder / f"{asked.name}-I{asked.local_steps}"
    record = Record(asked.record)
    table = Table(comparison, given, folder, record)
    if asked.similarity is not None:
        if not 0 <= asked.similarity <= 100:
            parser.error("--similarity must be 0 to 100")
        alike = replace(comparison, task={**comparison.task, "similarity": asked.similarity})
        folder = folder.with_name(f"{folder.name}-s{asked.similarity:g}")
        table = Table(alike, given, folder, record, tuned=table)
    names, seeds = asked.algorithms.split(","), asked.seeds
    if unknown := [name for name in names if name not in ALGORITHMS]:
        parser.error(f"--algorithms has {', '.join(unknown)}: `episode list algorithms` names them")
    tried = {name: table.tried(name) for name in dict.fromkeys(["celgc", *names])}
    shared = best(tried["celgc"])
    head = f"algorithm|own η, γ|own best|at η = {shared[0]:g}, γ = {shared[1]:g}, best for CELGC"
    head += f"|settings within {100 * WITHIN:.0f} points|rounds|exchanges|MB|gradients"
    lines = [f"| {head.replace('|', ' | ')} |", "|---" * (head.count("|") + 1) + "|"]
    follow = asked.target is not None
    lines += [row(table, name, tried[name], shared, seeds, follow) for name in names]
    if asked.target is not None:
        head = f"algorithm|seeds that reach {asked.target:g}|rounds|exchanges|MB|gradients|seconds"
        lines += ["", f"| {head.replace('|', ' | ')} |", "|---" * (head.count("|") + 1) + "|"]
        lines += [cost_row(table, n, best(tried[n]), seeds, asked.target) for n in names]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    if not table.tuned:
        draw_maps(table, tried, folder / "maps.png")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
