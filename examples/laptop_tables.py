"""Reproduce the paper's tables at a size that suits two cores: seven algorithms, a few seeds.

    python examples/laptop_tables.py snli --data snli_1.0.zip --vectors glove.6B.50d.txt.gz
    python examples/laptop_tables.py snli-longer --data snli_1.0.zip --vectors glove.6B.50d.txt.gz
    python examples/laptop_tables.py sentiment140 --data trainingandtestdata.zip --vectors ...
    python examples/laptop_tables.py cifar10 --data cifar-10-python.tar.gz

As in the paper, the step size η and the clipping parameter γ are tuned for CELGC on the validation
split, in one setting and with seed 0. The best pair is used for every algorithm, setting and seed,
and the results are reported on the test split. With `--tuned-on ALGORITHM`, η and γ are tuned for
that algorithm, and the table shows it alone. `snli-longer` is not tuned.

Finished runs are read back, so a stopped script continues where it was. It uses all available
cores; `taskset -c 0` limits it to one, and gives the same table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train

ALGORITHMS = (
    "fedavg", "scaffold", "celgc", "naive_parallel_clip", "scaffold_clipped", "episode_unclipped",
    "episode",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Table of a dataset: settings (similarity s, local steps I), and pairs (η, γ) to try."""

    settings: list[tuple[float, int]]
    tuned_at: tuple[float, int]
    pairs: list[tuple[float, float]]
    iterations: int
    task: dict[str, Any] = field(default_factory=dict)
    algorithms: tuple[str, ...] = ALGORITHMS


def pairs(gammas: Iterable[float], thresholds: Iterable[float]) -> list[tuple[float, float]]:
    """Return (η, γ) for every γ and every γ/η."""
    return [(round(g / t, 6), g) for g, t in itertools.product(gammas, thresholds)]


GRID = (0.01, 0.03, 0.1, 0.3, 1.0)
TABLES = {
    "snli": Table(
        [(s, i) for s in (10, 30) for i in (4, 8)],
        tuned_at=(50, 4), pairs=pairs((0.1, 0.3, 1.0), (0.1, 1 / 3, 1.0)), iterations=400,
    ),
    "snli-longer": Table(
        [(10, 4)], tuned_at=(10, 4), pairs=[(1.0, 0.1)], iterations=1680,
        task={"batch_size": 64, "hidden": 128, "classifier": 128},
        algorithms=("episode", "celgc", "naive_parallel_clip"),
    ),
    "sentiment140": Table(
        [(s, 4) for s in (0, 10, 20)],
        tuned_at=(20, 4), pairs=[(eta, gamma) for eta in GRID for gamma in GRID], iterations=240,
    ),
    "cifar10": Table(
        [(s, 8) for s in (50, 70)], tuned_at=(70, 8), iterations=400,
        pairs=[(0.1, 0.1), (0.3, 0.1), (0.3, 0.3), (1.0, 0.5)],  # the scripts', two, the paper's
        task={"model": "resnet8", "width": 8, "norm": "batch", "batch_size": 16},
    ),
}  # fmt: skip


Cell = tuple[str, tuple[float, int]]
"""An algorithm and a setting (s, I)."""


def experiment(
    name: str, given: dict[str, Any], setting: tuple[float, int], algorithm: str,
    eta: float, gamma: float, seed: int, split: str,
) -> Experiment:  # fmt: skip
    """Return the config of one run."""
    table, (similarity, local_steps) = TABLES[name], setting
    dataset = name.partition("-")[0]
    task = {"name": dataset, **table.task, **given, "similarity": similarity, "evaluate_on": split}
    values = {
        "seed": seed,
        "task": task,
        "algorithm": algorithm,
        "schedule": {"eta": eta, "gamma": gamma},
        "budget": {"rounds": table.iterations // local_steps, "local_steps": local_steps},
        "record": {"evaluate_every": 0},
    }
    return Experiment.from_dict(values)


def play(chosen: Experiment, folder: Path) -> dict[str, Any]:
    """Return the summary of a run, which is executed unless it has finished before."""
    target = folder / chosen.name
    summary = target / "summary.json"
    if not summary.exists():
        train(job_of(chosen), target)
    result: dict[str, Any] = json.loads(summary.read_text())
    metrics = {k: round(v, 4) for k, v in result["metrics"].items()}
    print(f"{target.name}: {result['status']} {metrics} {result['seconds']:.0f} s", flush=True)
    return result


def tune(name: str, given: dict[str, Any], folder: Path, algorithm: str) -> tuple[float, float]:
    """Return (η, γ) with the best validation accuracy; a single pair is not tried."""
    table = TABLES[name]
    tried: list[tuple[float, float, float]] = []
    for eta, gamma in table.pairs if len(table.pairs) > 1 else ():
        chosen = experiment(name, given, table.tuned_at, algorithm, eta, gamma, 0, "validation")
        accuracy = play(chosen, folder)["metrics"].get("validation_accuracy", 0.0)
        print(f"  eta {eta:g} gamma {gamma:g}: {accuracy:.3f}", flush=True)
        tried.append((accuracy, eta, gamma))
    return max(tried)[1:] if tried else table.pairs[0]


def report(
    name: str, given: dict[str, Any], folder: Path, seeds: Iterable[int], tuned_on: str | None
) -> None:
    """Tune, run the table seed by seed, and write it as Markdown after each seed."""
    table = TABLES[name] if tuned_on is None else replace(TABLES[name], algorithms=(tuned_on,))
    file = folder / (f"{name}-tuned-on-{tuned_on}.md" if tuned_on else f"{name}.md")
    eta, gamma = tune(name, given, folder, tuned_on or "celgc")
    runs: dict[Cell, list[dict[str, Any]]] = {
        cell: [] for cell in itertools.product(table.algorithms, table.settings)
    }
    for seed in seeds:
        for (algorithm, setting), played in runs.items():
            chosen = experiment(name, given, setting, algorithm, eta, gamma, seed, "test")
            played.append(play(chosen, folder))
        text = f"η = {eta:g}, γ = {gamma:g}, seeds 0 to {seed}\n\n{markdown(table, runs)}\n"
        file.write_text(text)
        print(text, flush=True)


def markdown(table: Table, runs: dict[Cell, list[dict[str, Any]]]) -> str:
    """Format a table of algorithms by settings."""
    lines = ["| algorithm | " + " | ".join(f"s = {s:g}, I = {i}" for s, i in table.settings) + " |"]
    lines.append("|---" * (1 + len(table.settings)) + "|")
    for algorithm in table.algorithms:
        row = " | ".join(summary(runs[algorithm, setting]) for setting in table.settings)
        lines.append(f"| {algorithm} | {row} |")
    return "\n".join(lines)


def summary(runs: list[dict[str, Any]]) -> str:
    """Format training loss and test accuracy (mean, standard deviation), or how many diverged."""
    ended = [r["metrics"] for r in runs if r["status"] == "finished"]
    if len(ended) < len(runs):
        return f"{len(runs) - len(ended)} of {len(runs)} diverged"
    loss, accuracy = ([f[k] for f in ended] for k in ("train_loss", "test_accuracy"))
    spread = statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
    return f"{statistics.mean(loss):.3f} / {statistics.mean(accuracy):.3f} ± {spread:.3f}"


def main() -> None:
    """Read the arguments, and make the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=TABLES)
    parser.add_argument("--data", help="folder or archive with the official files of the dataset")
    parser.add_argument("--vectors", help="word vectors in GloVe's format")
    parser.add_argument(
        "--tuned-on", choices=ALGORITHMS, help="tune for this algorithm, and show it alone"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/laptop"))
    asked = parser.parse_args()
    given = {k: getattr(asked, k) for k in ("data", "vectors") if getattr(asked, k)}
    warnings.simplefilter("ignore")
    report(asked.name, given, asked.folder, range(asked.seeds), asked.tuned_on)


if __name__ == "__main__":
    main()
