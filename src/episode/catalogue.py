"""What there is to choose from, by name. Listing it imports none of it, so that it is quick."""

from __future__ import annotations

from collections.abc import Mapping
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
    "fedavgm": "FedAvg with momentum on the server",
    "fedadam": "FedAvg with Adam on the server, which scales each parameter by its own changes",
    "fedyogi": "FedAvg with Yogi on the server: Adam whose scale falls more slowly",
    "fedadagrad": "FedAvg with Adagrad on the server, whose steps become shorter and shorter",
    "fedprox": "FedAvg whose clients are pulled back to the model that they were given",
    "minibatch_clip": "one clipped step per round, along I batches of every client",
    "diloco": "AdamW on the clients, Nesterov's momentum on the server; for transformers",
    "episode_nesterov": "EPISODE-guarded with Nesterov's momentum on the server, as DiLoCo has it",
}

_PIECES = {"correction": "", "clipping": "", "trust": "full"}
"""Pieces that a name is made of, and those that it leaves out."""
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
    ("uncorrected", "unclipped", "momentum"): "fedavgm",
    ("uncorrected", "unclipped", "adam"): "fedadam",
    ("uncorrected", "unclipped", "yogi"): "fedyogi",
    ("uncorrected", "unclipped", "adagrad"): "fedadagrad",
    ("uncorrected", "unclipped", "proximal"): "fedprox",
    ("synchronous", "per_step", "minibatch"): "minibatch_clip",
    ("uncorrected", "unclipped", "adamw", "nesterov"): "diloco",
    ("resampled", "guarded", "nesterov"): "episode_nesterov",
}
"""Names of algorithms by their pieces, for readers of folders; the usual ones are left out."""


def cell_name(algorithm: Mapping[str, Any]) -> str:
    """Return the name of an algorithm, given as JSON values, or those of its pieces.

    Pieces are named without their files. Those that are usual are left out.
    """
    names = [_name_of(algorithm.get(kind, usual)) for kind, usual in _PIECES.items()]
    pieces = tuple(n for n, usual in zip(names, _PIECES.values(), strict=True) if n != usual)
    own = algorithm.get("descent", {})
    whole = names[0] == "synchronous" and algorithm.get("probe_batches") == "local_steps"
    pulled = algorithm.get("proximal") or (isinstance(own, Mapping) and own.get("proximal"))
    extras = (
        *([_name_of(own)] if own else []),
        *(["proximal"] if pulled else []),
        *(["minibatch"] if whole else []),
        *([_server_name(algorithm["server"])] if "server" in algorithm else []),
    )
    if (*pieces, *extras) in CELLS:
        return CELLS[*pieces, *extras]
    base = [CELLS[pieces]] if pieces in CELLS else pieces
    return "-".join(piece.rpartition(":")[2] for piece in (*base, *extras))


def _name_of(piece: Any) -> str:
    return str(piece["name"] if isinstance(piece, Mapping) else piece)


def _server_name(server: Any) -> str:
    """Return a name that also tells apart what SGD on the server can be."""
    if not isinstance(server, Mapping) or server["name"] != "sgd":
        return _name_of(server)
    if not server.get("momentum"):
        return "rate"
    return "nesterov" if server.get("nesterov") else "momentum"


def catalogue() -> dict[str, dict[str, str]]:
    """Return names and summaries of algorithms, tasks and engines, also of installed ones."""
    installed = Registry[Any]("algorithm", "episode.algorithms", {}).summaries()
    return {
        "algorithms": {**ALGORITHM_SUMMARIES, **installed},
        "tasks": TASKS.summaries(),
        "engines": ENGINES.summaries(),
    }
