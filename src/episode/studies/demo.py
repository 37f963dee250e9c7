"""`episode demo`: all algorithms on one task with the same budget, as a table and a figure."""

from __future__ import annotations

from pathlib import Path

from episode.core.algorithm import ALGORITHMS
from episode.results.curves import draw_runs
from episode.results.store import StoredRun, read_run
from episode.runs.config import Experiment
from episode.studies.sweep import Stop, Watch, play

PICTURE = "demo.png"


def experiments(seed: int, rounds: int) -> dict[str, Experiment]:
    """The demo's runs by algorithm: digits, sorted by label over 8 clients."""
    common = {
        "seed": seed,
        "task": {"name": "digits"},
        "budget": {"rounds": rounds},
        "record": {"evaluate_every": 1},
    }
    return {
        name: Experiment.from_dict({**common, "algorithm": {"name": name}}) for name in ALGORITHMS
    }


def run_demo(
    folder: Path,
    seed: int,
    rounds: int,
    watch: Watch,
    stop: Stop | None = None,
) -> list[StoredRun]:
    """Play or resume every run of the demo, and draw their curves.

    Args:
        folder: Where the runs and the figure go.
        seed: Decides the split of the data and the initial weights.
        rounds: Rounds of 8 local steps.
        watch: Called with an algorithm's name and experiment; returns an observer of its rounds.
        stop: Asked after every round; once it is true, the run is saved.

    Returns:
        The runs, in the order of the table of algorithms.

    Raises:
        KeyboardInterrupt: `stop()` became true.
    """
    runs = []
    for name, experiment in experiments(seed, rounds).items():
        play(experiment, folder / name, watch(name, experiment), stop)
        runs.append(read_run(folder / name))
    title = "Digits read by an Elman network, 8 clients with labels sorted, I = 8 local steps"
    draw_runs(runs, folder / PICTURE, title)
    return runs
