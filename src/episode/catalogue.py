"""What there is to choose from, by name. Listing it imports none of it, so that it is quick."""

from __future__ import annotations

from typing import Any

from episode.registry import Registry

TASKS: Registry[Any] = Registry(
    "task",
    "episode.tasks",
    {
        "digits": "episode.tasks.digits:Digits",
        "synthetic": "episode.tasks.synthetic:Synthetic",
        "quadratics": "episode.tasks.quadratics:Quadratics",
        "relaxed_smooth": "episode.tasks.relaxed_smooth:RelaxedSmooth",
        "snli": "episode.tasks.snli:Snli",
        "sentiment140": "episode.tasks.sentiment140:Sentiment140",
        "cifar10": "episode.tasks.cifar10:Cifar10",
        "imagenet": "episode.tasks.imagenet:ImageNet",
        "silos": "episode.tasks.silos:Silos",
    },
    {
        "digits": "digits read as a sequence by an Elman network; s% of the data are shared evenly",
        "synthetic": "the paper's two quartics, with a heterogeneity H to choose",
        "quadratics": "two parabolas on which CELGC never moves (section 4.1 of the paper)",
        "relaxed_smooth": "a problem in d dimensions with constants L0, L1, κ, ρ and σ to choose",
        "snli": "sentence pairs (SNLI 1.0) by a BiRNN, the paper's main experiment",
        "sentiment140": "tweets (Sentiment140) by an LSTM, with users in eight silos",
        "cifar10": "small images (CIFAR-10) by a ResNet",
        "imagenet": "photographs (ImageNet, or folders like it) by a ResNet",
        "silos": "your own silos: one folder each, of csv, jsonl, parquet or images",
    },
)
"""Settings classes of tasks by name."""

ENGINES: Registry[Any] = Registry(
    "engine",
    "episode.engines",
    {
        "simulation": "episode.engines.simulation:Simulation",
        "distributed": "episode.engines.distributed:Distributed",
        "flower": "episode.flower.simulation:FlowerSimulation",
    },
    {
        "simulation": "all clients in this process, on worker threads",
        "distributed": "clients on several processes and machines: torchrun -m episode run ...",
        "flower": "clients as Flower's nodes, simulated here; at real sites: episode flower app",
    },
)
"""Engine classes by name."""

ALGORITHM_SUMMARIES = {
    "fedavg": "local steps, then an average; drifts, and may blow up",
    "celgc": "FedAvg with each step clipped; stalls when clients disagree",
    "scaffold": "corrected by last round's gradients; may blow up",
    "scaffold_clipped": "SCAFFOLD with each step clipped",
    "naive_parallel_clip": "one clipped step per exchange; the yardstick, with many exchanges",
    "episode": "the paper's: fresh corrections, one clipping decision per round",
    "episode_unclipped": "EPISODE without clipping, for ablation",
    "episode_guarded": "EPISODE that also guards the steps of unclipped rounds",
    "episode_plus_plus": "EPISODE with remembered gradients, for rounds with few clients",
    "episode_trust": "EPISODE that weighs its corrections by what is measured of them",
    "parallel_sgd": "one plain step per exchange",
}

CELLS: dict[tuple[str, ...], str] = {
    ("uncorrected", "unclipped"): "fedavg",
    ("uncorrected", "per_step"): "celgc",
    ("remembered", "unclipped"): "scaffold",
    ("remembered", "per_step"): "scaffold_clipped",
    ("synchronous", "per_step"): "naive_parallel_clip",
    ("resampled", "episodic"): "episode",
    ("resampled", "unclipped"): "episode_unclipped",
    ("resampled", "guarded"): "episode_guarded",
    ("remembered", "episodic"): "episode_plus_plus",
    ("resampled", "per_step", "measured"): "episode_trust",
    ("synchronous", "unclipped"): "parallel_sgd",
}
"""Names of algorithms by their pieces, for readers of folders; full trust is left out."""


def cell_name(correction: str, clipping: str, trust: str = "full") -> str:
    """Return the name of a cell of the grid, or those of its pieces, without their files."""
    pieces = (correction, clipping) if trust == "full" else (correction, clipping, trust)
    if name := CELLS.get(pieces):
        return name
    return "-".join(piece.rpartition(":")[2] for piece in pieces)


def catalogue() -> dict[str, dict[str, str]]:
    """Return names and summaries of algorithms, tasks and engines, also of installed ones."""
    installed = Registry[Any]("algorithm", "episode.algorithms", {}).summaries()
    return {
        "algorithms": {**ALGORITHM_SUMMARIES, **installed},
        "tasks": TASKS.summaries(),
        "engines": ENGINES.summaries(),
    }
