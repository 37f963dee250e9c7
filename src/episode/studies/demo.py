"""`episode demo`: all algorithms on one task at one budget, as a table and a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from episode.core.algorithm import ALGORITHMS
from episode.results.curves import draw_runs
from episode.results.store import StoredRun, read_run
from episode.runs.config import Experiment
from episode.runs.records import Observe
from episode.studies.sweep import play

PICTURE = "demo.png"


def experiments(seed: int, rounds: int) -> dict[str, Experiment]:
    """The demo's runs: digits, label-sorted over 8 clients, equal iterations for everyone."""
    return {
        name: Experiment.from_dict(
            {
                "seed": seed,
                "task": {"name": "digits"},
                "algorithm": {"name": name},
                "budget": {"rounds": rounds},
                "record": {"evaluate_every": 1},
            }
        )
        for name in ALGORITHMS
    }


def run_demo(
    folder: Path,
    seed: int,
    rounds: int,
    watch: Callable[[str, Experiment], Observe | None],
    stop: Callable[[], bool] | None = None,
) -> list[StoredRun]:
    """Plays (or resumes) every run below `folder` and draws the picture."""
    runs = []
    for name, experiment in experiments(seed, rounds).items():
        target = folder / name
        play(experiment, target, watch(name, experiment), stop)
        runs.append(read_run(target))
    draw_runs(
        runs,
        folder / PICTURE,
        "Digits read by an Elman network, 8 clients with labels sorted, I = 8 local steps",
    )
    return runs
