"""What there is to choose from, one line each: what `episode list` prints."""

from __future__ import annotations

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.errors import EpisodeError
from episode.tasks import TASKS

ENGINES = {
    "simulation": "all clients in this process, on worker threads",
    "distributed": "clients over processes and machines: torchrun -m episode run ...",
    "flower": "clients as Flower's nodes, simulated here; at real sites: episode flower app",
}

_ALGORITHMS = {
    "fedavg": "clients on their own, averaged; drifts, and may blow up",
    "celgc": "FedAvg with each step clipped; stalls when clients disagree",
    "scaffold": "corrected by last round's gradients; may blow up",
    "scaffold_clipped": "SCAFFOLD with each step clipped",
    "naive_parallel_clip": "one clipped step per exchange; the yardstick, and slow to talk",
    "episode": "the paper's: fresh corrections, one clipping decision a round",
    "episode_unclipped": "EPISODE without its clipping; for ablation",
    "episode_guarded": "EPISODE with unclipped rounds guarded; the safe choice",
    "episode_plus_plus": "EPISODE on remembered gradients, for cohorts of some clients",
    "parallel_sgd": "one plain step per exchange",
}


def catalogue() -> dict[str, dict[str, str]]:
    """Names and lines, by kind."""
    return {
        "algorithms": {
            name: _algorithm_line(name, line) for name, line in ALGORITHMS.summaries().items()
        },
        "tasks": TASKS.summaries(),
        "engines": ENGINES,
    }


def _algorithm_line(name: str, line: str) -> str:
    """A line about an algorithm and its cell; an entry point may be a piece instead."""
    try:
        algorithm = ALGORITHMS.find(name)
    except EpisodeError:  # the line says why it cannot be imported
        return line
    if not isinstance(algorithm, Algorithm):
        return line
    cell = f"[{algorithm.correction.name} x {algorithm.clipping.name}]"
    return f"{_ALGORITHMS[name]} {cell}" if name in _ALGORITHMS else cell
