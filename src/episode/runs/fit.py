"""`episode.fit`: a model, its clients and a loss in; a trained model out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.engines.cluster import Cluster
from episode.errors import EpisodeError, unknown
from episode.runs.catalogue import ENGINES
from episode.runs.config import identity_of
from episode.runs.monitor import Monitor, also
from episode.runs.records import Observe, Run
from episode.runs.trainer import Job, execute
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts, Full
from episode.tasks.neural import Evaluate, Loss, NeuralTask
from episode.tasks.precision import Precision


def fit(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Loss,
    *,
    eta: float,
    gamma: float,
    local_steps: int,
    rounds: int,
    batch_size: int,
    algorithm: str | Algorithm = "episode",
    seed: int = 0,
    folder: str | Path | None = None,
    schedule: Schedule | None = None,
    cohorts: Cohorts | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    collate: Callable[[list[Any]], Any] = default_collate,
    precision: Precision = "float32",
    engine: str = "simulation",
    workers: int | None = None,
    timeout_seconds: float = 600.0,
    checkpoint_seconds: float = 30.0,
    observe: Observe | None = None,
    monitor: bool | Monitor = False,
) -> Run:
    """Trains `model` over `clients`, in place, and returns the run.

    `clients` holds one map-style dataset (or tuple of tensors) per client; `loss(model, batch)`
    returns the batch's mean loss, a scalar. The budget is `rounds` x `local_steps` iterations for
    every algorithm; one that communicates after each iteration plays that many rounds. With a
    `folder` the run is written there; called again with the same folder, a run that was killed goes
    on from its last checkpoint (at most `checkpoint_seconds` of work is lost), and one that has
    ended is read back. `evaluate(model)` returns named metrics, every `evaluate_every` rounds (0:
    at the end). `schedule` replaces a constant `eta` and `gamma` (its own are then used), `cohorts`
    full participation. `workers` threads (one per core) change the speed and nothing else. With
    `engine="distributed"`, in a script that torchrun starts, clients are spread over its processes;
    the first writes the folder, and one that says nothing for `timeout_seconds` counts as lost.
    `observe` is called with each round's record; `collate` makes a batch of a list of examples.
    `precision="bfloat16"` computes losses under autocast; parameters and steps stay as they are.
    `monitor=True` warns when the run leaves the regime of the theory (see `runs.monitor`).
    """
    numbers = {"eta": eta, "gamma": gamma, "checkpoint_seconds": checkpoint_seconds}
    numbers["timeout_seconds"] = timeout_seconds
    counts = {"local_steps": local_steps, "rounds": rounds, "batch_size": batch_size, "seed": seed}
    counts |= {"evaluate_every": evaluate_every, "workers": 1 if workers is None else workers}
    _check_types(numbers, (int, float), "a number")
    _check_types(counts, int, "a whole number")
    if isinstance(algorithm, str):
        algorithm = Algorithm.named(algorithm)
    if not isinstance(algorithm, Algorithm):
        raise EpisodeError(
            f"algorithm is a {type(algorithm).__name__}: give a name, such as 'episode', or "
            "an Algorithm(correction, clipping)."
        )
    if cohorts is not None and not hasattr(cohorts, "at"):
        raise EpisodeError(f"cohorts is {cohorts!r}: give Full(), Uniform(...) or Cyclic(...).")
    plan = Plan(
        algorithm, schedule or Schedule(eta, gamma), rounds, local_steps, seed, cohorts or Full()
    )
    if timeout_seconds <= 0:
        raise EpisodeError(f"timeout_seconds is {timeout_seconds}: it must be more than 0.")
    for name in ("evaluate_every", "checkpoint_seconds"):
        if (value := {**numbers, **counts}[name]) < 0:
            raise EpisodeError(f"{name} is {value}: it must be 0 or more.")
    task = NeuralTask(
        model, clients, loss, batch_size=batch_size, seed=seed, evaluate=evaluate, collate=collate,
        precision=precision,
    )  # fmt: skip
    plan.check(task.num_clients)
    config = _describe(plan, task, batch_size, evaluate_every)
    device = str(next(model.parameters()).device)
    if str(engine) == "flower":
        raise EpisodeError("fit has the data here: for sites that keep theirs, use episode.flower.")
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    cluster = None
    if engine == "distributed":
        cluster = Cluster.join({"config": config}, timeout_seconds, device)
    job = Job(
        plan,
        task,
        config,
        identity_of(config),
        workers,
        device,
        evaluate_every,
        checkpoint_seconds,
        cluster,
    )
    if monitor and (cluster is None or cluster.writes):
        watch = monitor if isinstance(monitor, Monitor) else Monitor()
        job, observe = watch.watch(job), also(watch, observe)
    try:
        return execute(job, Path(folder) if folder is not None else None, observe)
    finally:
        if cluster is not None:
            cluster.leave()


def _check_types(values: dict[str, Any], kind: Any, wanted: str) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise EpisodeError(f"{name} is {value!r}: it must be {wanted}.")


def _describe(plan: Plan, task: NeuralTask, batch_size: int, evaluate_every: int) -> dict[str, Any]:
    """What a folder is known by: all but the code itself, and the data but for a few examples."""
    shapes = {name: list(p.shape) for name, p in task.model.named_parameters() if p.requires_grad}
    return {
        "made_by": "fit",
        "seed": plan.seed,
        "task": {
            "name": type(task.model).__name__,
            "parameters": shapes,
            "examples": [task.examples(c) for c in range(task.num_clients)],
            "data": [batches.fingerprint() for batches in task.batches],
            "batch_size": batch_size,
            "precision": task.precision,
        },
        "algorithm": plan.algorithm.to_dict(),
        "schedule": vars(plan.schedule) | {"milestones": list(plan.schedule.milestones)},
        "budget": {"rounds": plan.rounds, "local_steps": plan.local_steps},
        "cohorts": {"kind": type(plan.cohorts).__name__.lower(), **vars(plan.cohorts)},
        "record": {"evaluate_every": evaluate_every},
    }
