"""`episode.fit`: train a model over clients' data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.engines import registry
from episode.errors import EpisodeError
from episode.federation.job import EngineSettings, Job, RecordSettings
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts, Full
from episode.runs.config import describe
from episode.runs.monitor import Monitor
from episode.runs.observers import combined
from episode.runs.records import Observe, Run
from episode.runs.trainer import owners_of, train
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
    state_memory_mb: float = 1024.0,
    observe: Observe | None = None,
    monitor: bool | Monitor = False,
) -> Run:
    """Train `model` over `clients`, in place.

    Args:
        model: Any module. Its trainable parameters and buffers are trained and averaged.
        clients: One map-style dataset, or tuple of tensors, per client; `LazyClients` opens those
            of many clients when they are needed.
        loss: `loss(model, batch)` returns the mean loss of the batch, a scalar.
        eta: Step size η.
        gamma: Length γ of a clipped step. Rounds are clipped if the norm of the global gradient is
            above γ/η.
        local_steps: Number I of steps that each client takes between two exchanges.
        rounds: Number R of rounds. The budget is R·I iterations for every algorithm; one that
            communicates after each iteration plays R·I rounds.
        batch_size: Examples in a client's batch.
        algorithm: A name, such as "episode" or "scaffold", or an `Algorithm`.
        seed: Decides batches, cohorts and random draws; equal calls give equal runs.
        folder: Where the run is written. Called again with the same folder, a run that was killed
            goes on from its last checkpoint, and a run that has ended is read back.
        schedule: Replaces a constant `eta` and `gamma`; its own values are then used.
        cohorts: Who takes part in each round; by default everybody.
        evaluate: `evaluate(model)` returns metrics by name, for example `{"accuracy": 0.9}`.
        evaluate_every: Rounds between evaluations; 0 evaluates only at the end.
        collate: Makes a batch of a list of examples.
        precision: "bfloat16" computes losses under autocast; parameters and steps keep their type.
        engine: Where clients run: "simulation", "distributed" (in a script that torchrun starts),
            or an engine of your own.
        workers: Number of threads; it changes the speed and nothing else.
        timeout_seconds: A process that is silent for so long counts as lost (distributed only).
        checkpoint_seconds: Seconds of work that a crash may cost; 0 saves after every round.
        state_memory_mb: If the clients' memories and momenta can take more, they are kept in a
            file, in the run's folder or a temporary one.
        observe: Called with the record of each round.
        monitor: Warn when training leaves the regime that the theory covers.

    Returns:
        The run: its status, its history of rounds, and the trained model.

    Raises:
        EpisodeError: An argument is wrong, or the folder holds another run.
        ClientError: A client's data, model or loss failed during training.

    Example:
        >>> import episode, torch
        >>> silos = [(torch.randn(20, 3) + shift, torch.full((20, 1), shift)) for shift in (0., 1.)]
        >>> def loss(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> run = episode.fit(torch.nn.Linear(3, 1), silos, loss, eta=0.1, gamma=0.5,
        ...                   local_steps=4, rounds=5, batch_size=10)
        >>> run.status
        'finished'
    """
    _check_types({"eta": eta, "gamma": gamma, "checkpoint_seconds": checkpoint_seconds,
                  "timeout_seconds": timeout_seconds,
                  "state_memory_mb": state_memory_mb}, (int, float), "a number")  # fmt: skip
    _check_types({"local_steps": local_steps, "rounds": rounds, "batch_size": batch_size,
                  "seed": seed, "evaluate_every": evaluate_every,
                  "workers": 1 if workers is None else workers}, int, "a whole number")  # fmt: skip
    if cohorts is not None and not isinstance(cohorts, Cohorts):
        raise EpisodeError(f"cohorts is {cohorts!r}: give Full(), Uniform(...) or Cyclic(...).")
    plan = Plan(
        Algorithm.named(algorithm),
        schedule or Schedule(eta, gamma),
        rounds,
        local_steps,
        seed,
        cohorts or Full(),
    )
    record = RecordSettings(evaluate_every, checkpoint_seconds)
    task = NeuralTask(
        model, clients, loss, batch_size=batch_size, seed=seed, evaluate=evaluate, collate=collate,
        precision=precision,
    )  # fmt: skip
    plan.check(task.num_clients)
    device = str(next(model.parameters()).device)
    settings = EngineSettings(
        str(engine), workers, device, timeout_seconds, state_memory_mb=state_memory_mb
    )
    job = Job(plan, task, _describe(plan, task, clients, batch_size, record), settings, record)
    return _join_and_train(job, folder, observe, monitor)


def _join_and_train(
    job: Job, folder: str | Path | None, observe: Observe | None, monitor: bool | Monitor
) -> Run:
    processes = registry.join(job.engine, {"config": job.config})
    try:
        with processes.together():
            job = replace(job, processes=processes, owners=owners_of(job.task, processes))
            if monitor:
                watch = monitor if isinstance(monitor, Monitor) else Monitor()
                job = watch.watch(job)
                observe = combined(watch if processes.writes else None, observe)
            return train(job, Path(folder) if folder is not None else None, observe)
    finally:
        processes.leave()


def _check_types(values: dict[str, Any], kind: Any, wanted: str) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise EpisodeError(f"{name} is {value!r}: it must be {wanted}.")


def _describe(
    plan: Plan, task: NeuralTask, clients: Sequence[Any], batch_size: int, record: RecordSettings
) -> dict[str, Any]:
    """Return what identifies the run's folder: settings, shapes, and a few examples of the data.

    Of clients that are opened when they are needed, three are compared. The code of the model and
    the loss cannot be compared.
    """
    n = task.num_clients
    chosen = range(n) if isinstance(clients, (list, tuple)) else sorted({0, n // 2, n - 1})
    shapes = {name: list(p.shape) for name, p in task.model.named_parameters() if p.requires_grad}
    described = {
        "name": type(task.model).__name__,
        "parameters": shapes,
        "examples": [task.examples(c) for c in chosen],
        "data": [task.batches[c].fingerprint() for c in chosen],
        "batch_size": batch_size,
        "precision": task.precision,
    }
    return describe(plan, described, {"evaluate_every": record.evaluate_every}, made_by="fit")
