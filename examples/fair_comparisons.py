"""The comparisons of `fair_tables.py`: tasks, settings to try, and the record of every run.

A run that has ended is a line of a CSV file and is not played again.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode import ALGORITHMS, EpisodeError, Unclipped
from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train

Setting = tuple[float, float]
"""η and γ; an algorithm that does not clip has no use for γ."""

KEY = ("comparison", "algorithm", "eta", "gamma", "seed", "split")
RESULT = ("status", "accuracy", "train_loss", "rounds", "exchanges", "megabytes", "gradients")
COST_KEY = ("comparison", "algorithm", "eta", "gamma", "seed", "target")
COST = ("rounds", "exchanges", "megabytes", "gradients", "seconds")
Row = dict[str, str]
"""A line of a record."""


class Record:
    """Lines of a CSV file that is only ever added to.

    Args:
        path: The file; it need not exist yet.
        key: Names of the columns that tell lines apart.
        result: Names of the other columns.

    Raises:
        EpisodeError: The file is something else.
    """

    def __init__(
        self, path: Path, key: tuple[str, ...] = KEY, result: tuple[str, ...] = RESULT
    ) -> None:
        self.path, self.key, self.result = path, key, result
        self.rows: dict[tuple[str, ...], Row] = {}
        if path.exists():
            head = ",".join([*key, *result]) + "\n"
            text = path.read_text() if path.is_file() else "a folder"
            if not head.startswith(text[: len(head)]):
                raise EpisodeError(f"{path} is not a record of runs: name another file, or none.")
            whole = text[: text.rfind("\n") + 1]  # a last line that was cut off is played again
            if whole != text:
                path.write_text(whole)
            rows = csv.DictReader(io.StringIO(whole))
            self.rows = {tuple(row[name] for name in key): row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a line, and write it to the end of the file."""
        self.rows[tuple(row[name] for name in self.key)] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            lines = csv.DictWriter(file, [*self.key, *self.result], lineterminator="\n")
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

    @property
    def rounds_between_evaluations(self) -> int:
        """`evaluate_every` as rounds of I local steps, in which the config counts for everybody."""
        return max(1, self.evaluate_every // self.local_steps)

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
        etas_unclipped=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), tuned_with=(0, 1, 2),
        evaluate_every=8,
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
    """Settings of the task on this machine: where its data are."""
    folder: Path
    record: Record
    costs: Record | None = None
    """What runs cost until they reached a target; None if nobody asks."""
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

    def cost(self, algorithm: str, setting: Setting, seed: int, target: float) -> Row:
        """Return what a run had cost when its test accuracy reached the target.

        It is played unless it is in the record of costs. The values of a run that never reached
        the target are empty.
        """
        assert self.costs is not None
        eta, gamma = (f"{value:g}" for value in setting)
        key = (self.folder.name, algorithm, eta, gamma, str(seed), f"{target:g}")
        if key not in self.costs.rows:
            every = self.comparison.rounds_between_evaluations
            folder = self.played(algorithm, setting, seed, "test", every)
            named = dict(zip(COST_KEY, key, strict=True))
            self.costs.add(named | cost_to(target, folder / "rounds.jsonl"))
        return self.costs.rows[key]


def cost_to(target: float, rounds: Path) -> Row:
    """Return the costs up to the first round whose test accuracy is the target or more."""
    for record in map(json.loads, rounds.read_text().splitlines()):
        if (record.get("metrics") or {}).get("test_accuracy", 0.0) >= target:
            return {
                "rounds": str(record["round"] + 1),
                "exchanges": str(record["exchanges"]),
                "megabytes": f"{(record['bytes_up'] + record['bytes_down']) / 1e6:.1f}",
                "gradients": str(record["gradients"]),
                "seconds": f"{record['seconds']:.1f}",
            }
    return dict.fromkeys(COST, "")


def best(tried: dict[Setting, float]) -> Setting:
    """Return the setting of the highest accuracy; of equal ones, the first."""
    return max(tried, key=lambda setting: tried[setting])
