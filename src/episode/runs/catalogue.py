"""What `episode list` prints: algorithms, tasks and engines, one line each."""

from __future__ import annotations

from episode.core.algorithm import ALGORITHMS
from episode.engines.registry import ENGINES
from episode.tasks import TASKS

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
    """Return names and summaries, by kind."""
    return {
        "algorithms": {
            name: f"{_ALGORITHMS[name]} [{a.correction.name} x {a.clipping.name}]"
            for name, a in ALGORITHMS.items()
        },
        "tasks": {name: task.summary for name, task in TASKS.items()},
        "engines": ENGINES.summaries(),
    }
