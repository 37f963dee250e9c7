"""`episode.fit`: train a model over clients' data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.arguments import (
    folder_path,
    names,
    number,
    optional,
    positive,
    seed_number,
    shown,
    switch,
    whole_number,
)
from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.data.forms import as_datasets
from episode.data.holdout import hold_out_data
from episode.engines import registry
from episode.errors import EpisodeError
from episode.federation.job import EngineSettings, Job, RecordSettings
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts
from episode.runs.building import check_holdout
from episode.runs.config import describe
from episode.runs.extending import extend as extend_run
from episode.runs.interrupts import asked_to_stop
from episode.runs.monitor import Monitor
from episode.runs.records import Observe, Record, Run
from episode.runs.rules import cohorts_of, schedule_of
from episode.runs.start import start_from as copy_weights
from episode.runs.trainer import owners_of, train
from episode.runs.watchers import Watchers
from episode.tasks.client_evaluation import EvaluateClient
from episode.tasks.neural import Evaluate, Loss, NeuralTask
from episode.tasks.precision import Precision
from episode.tasks.weights import checksum

log = logging.getLogger("episode")
READ_BACK = (
    "%s holds this run already (%s after %d rounds): it was read, not trained again. Settings, "
    "initial weights and a few rows of the data are the same; the code of the loss and the model "
    "cannot be compared. To train again, choose another folder."
)


def fit(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Loss,
    *,
    eta: float | None = None,
    gamma: float | None = None,
    local_steps: int,
    rounds: int,
    batch_size: int,
    algorithm: str | Algorithm = "episode",
    seed: int = 0,
    folder: str | Path | None = None,
    schedule: Schedule | str | None = None,
    cohorts: Cohorts | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    holdout: float | Sequence[Any] = 0.0,
    evaluate_client: EvaluateClient | None = None,
    per_client: bool | None = None,
    client_names: Sequence[str] = (),
    collate: Callable[[list[Any]], Any] = default_collate,
    precision: Precision = "float32",
    accumulate: int = 1,
    engine: str = "simulation",
    workers: int | None = None,
    timeout_seconds: float = 600.0,
    checkpoint_seconds: float = 30.0,
    state_memory_mb: float = 1024.0,
    observe: Observe | Sequence[Observe] | None = None,
    stop_when: Callable[[Record], bool] | None = None,
    progress: bool = False,
    monitor: bool | Monitor = False,
    extend: bool = False,
    start_from: Run | str | Path | Mapping[str, Tensor] | None = None,
) -> Run:
    """Train `model` over `clients`, in place.

    Args:
        model: Any module. Its trainable parameters and buffers are trained and averaged.
        clients: The data of each client: a tuple or list of arrays `(X, y)`, a dict of arrays or a
            DataFrame (batches are then dicts of columns), or any map-style dataset, of torch or
            Hugging Face; of a DataLoader, the dataset is taken. `LazyClients` opens the data of
            many clients when they are needed.
        loss: `loss(model, batch)` returns the mean loss of the batch, a scalar.
        eta: Step size η; needed unless a `Schedule` has it.
        gamma: Length γ of a clipped step. Rounds are clipped if the norm of the global gradient is
            above γ/η. Needed unless a `Schedule` has it, or the algorithm does not clip.
        local_steps: Number I of steps that each client takes between two exchanges.
        rounds: Number R of rounds. The budget is R·I iterations for every algorithm; one that
            communicates after each iteration plays R·I rounds.
        batch_size: Examples in a client's batch.
        algorithm: A name, such as "episode" or "scaffold", or an `Algorithm`.
        seed: Decides batches, cohorts and random draws; equal calls give equal runs.
        folder: Where the run is written. Called again with the same folder, a run that was killed
            goes on from its last checkpoint, and a run that has ended is read back. The model must
            be built as before: one with other weights, frozen ones included, is refused.
        schedule: A `Schedule`, whose own η and γ are then used, or "cosine", which lets `eta` and
            `gamma` fall to 0; by default both are constant.
        cohorts: Who takes part in each round; by default everybody.
        evaluate: `evaluate(model)` returns metrics by name, for example `{"accuracy": 0.9}`.
        evaluate_every: Rounds between evaluations; 0 evaluates only at the end.
        holdout: Share of each client's own examples that is not trained on, or one dataset per
            client to use instead. The model is evaluated on it for each client.
        evaluate_client: `evaluate_client(model, data)` returns metrics by name on what one client
            has held out; by default the mean of `loss`, as `holdout_loss`.
        per_client: Whether `run.history.clients()` and the folder keep records of each client; by
            default of at most 100 clients.
        client_names: A name for each client, for tables and reports.
        collate: Makes a batch of a list of examples.
        precision: "bfloat16" computes losses under autocast; parameters and steps keep their type.
        accumulate: Number of equal parts in which the gradient of a batch is computed, one after
            another, if a whole batch does not fit into memory. The gradient is the same to
            rounding, if the loss is a mean over examples and no layer looks at the whole batch.
        engine: Where clients run: "simulation", "distributed" (in a script that torchrun starts),
            or an engine of your own.
        workers: Number of threads; it changes the speed and nothing else.
        timeout_seconds: A process that is silent for so long counts as lost (distributed only).
        checkpoint_seconds: Seconds of work that a crash may cost; 0 saves after every round.
        state_memory_mb: If the clients' memories and momenta can take more, they are kept in a
            file, in the run's folder or a temporary one.
        observe: Called with the record of each round; if it returns "stop", the run ends there,
            and has finished. Or a list of such functions, `TensorBoard`, `MLflow` and `WandB` among
            them.
        stop_when: The run ends after a round whose record makes this true, for example
            `lambda record: record.get("metrics", {}).get("accuracy", 0) > 0.9`.
        progress: Show a progress bar on a terminal and in notebooks; elsewhere, log lines of the
            logger "episode", which `logging.basicConfig(level=logging.INFO)` shows.
        monitor: Warn when training leaves the regime that the theory covers.
        extend: Let the run in `folder` go on if `rounds` is all that has changed, and larger. The
            result is that of a run of so many rounds.
        start_from: A `Run`, its folder, a .safetensors file or a state dict: its weights are copied
            into the model, and a new run begins at round 0, with empty memories and momenta.

    Returns:
        The run: its status, its history of rounds, and the trained model.

    Raises:
        EpisodeError: An argument is wrong, or the folder holds another run.
        ClientError: A client's data, model or loss failed during training.
        KeyboardInterrupt: Ctrl-C was pressed. The round under way has been finished and, in a
            folder, saved; the model has the last x̄. Called again, the run goes on.

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
    seed = seed_number(seed)
    _check_objects(engine, monitor)
    watchers = Watchers.of(observe, stop_when, switch("progress", progress), monitor)
    if start_from is not None:
        copy_weights(model, start_from)
    chosen = Algorithm.named(algorithm)
    plan = Plan(
        chosen,
        schedule_of(schedule, eta, gamma, chosen),
        whole_number("rounds", rounds, least=1),
        whole_number("local_steps", local_steps, least=1),
        seed,
        cohorts_of(cohorts),
    )
    record = RecordSettings(
        whole_number("evaluate_every", evaluate_every, least=0),
        number("checkpoint_seconds", checkpoint_seconds),
        per_client,
    )
    settings = EngineSettings(
        engine,
        optional(whole_number, "workers", workers, least=1),
        timeout_seconds=positive("timeout_seconds", timeout_seconds),
        state_memory_mb=number("state_memory_mb", state_memory_mb),
    )
    path = optional(folder_path, "folder", folder)
    names("client_names", client_names)
    clients, held_out = _hold_out(as_datasets(clients), holdout, seed, client_names)
    task = NeuralTask(
        model, clients, loss, batch_size=batch_size, seed=seed, evaluate=evaluate, collate=collate,
        precision=precision, client_names=client_names, held_out=held_out,
        evaluate_client=evaluate_client, accumulate=accumulate,
    )  # fmt: skip
    plan.check(task.num_clients)
    check_holdout(record, task)
    settings = replace(settings, device=str(next(model.parameters()).device))
    described = _describe(task, clients, int(batch_size))
    if isinstance(holdout, (int, float)) and holdout:
        described["holdout"] = holdout
    config = describe(plan, described, {"evaluate_every": record.evaluate_every}, made_by="fit")
    if switch("extend", extend) and path is not None:
        config = extend_run(path, config, model)
    return _join_and_train(Job(plan, task, config, settings, record), path, watchers)


def _hold_out(
    clients: Sequence[Any], holdout: float | Sequence[Any], seed: int, names: Sequence[str]
) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Return what clients train on, and what they hold out if they do."""
    if isinstance(holdout, (int, float)) and not isinstance(holdout, bool):
        if holdout == 0 or isinstance(clients, Mapping) or not isinstance(clients, Sequence):
            return clients, None  # if clients are no sequence, the task says so
        return hold_out_data(clients, holdout, seed, names)
    if isinstance(holdout, str) or not isinstance(holdout, Sequence):
        raise EpisodeError(f"holdout is {holdout!r}: give a share such as 0.2, or a list of data.")
    return clients, as_datasets(holdout)


def _join_and_train(job: Job, folder: Path | None, watchers: Watchers) -> Run:
    processes = registry.join(job.engine, {"config": job.config})
    try:
        with processes.together():
            job = replace(job, processes=processes, owners=owners_of(job.task, processes))
            job = watchers.measuring(job)
            with (
                watchers.watching(job, folder) as observe,
                asked_to_stop(log.warning, processes.size == 1) as stop,
            ):
                run = train(job, folder, observe, stop, may_end=watchers.may_end)
            if run.read_back and processes.writes:
                log.warning(READ_BACK, folder, run.status, len(run.history))
            return run
    except KeyboardInterrupt:
        log.warning(
            "Stopped; the model has the last x̄.%s",
            " Call fit again with the same arguments and a model built as before to go on."
            if folder
            else "",
        )
        raise
    finally:
        processes.leave()


def _check_objects(engine: Any, monitor: Any) -> None:
    if not isinstance(engine, str):
        raise EpisodeError(f"engine is {shown(engine)}: give its name, such as 'simulation'.")
    if not isinstance(monitor, (bool, Monitor, type(None))):
        raise EpisodeError(f"monitor is {shown(monitor)}: give True, False or a Monitor(...).")


def _describe(task: NeuralTask, clients: Sequence[Any], batch_size: int) -> dict[str, Any]:
    """Return what identifies the task: weights, shapes, and a few examples of the data.

    Of clients that are opened when they are needed, three are compared. The code of the model and
    the loss cannot be compared.
    """
    n = task.num_clients
    chosen = range(n) if isinstance(clients, (list, tuple)) else sorted({0, n // 2, n - 1})
    shapes = {name: list(p.shape) for name, p in task.model.named_parameters() if p.requires_grad}
    return {
        "name": type(task.model).__name__,
        "parameters": shapes,
        "initial_state": checksum((*task.model.named_parameters(), *task.model.named_buffers())),
        "examples": [task.examples(c) for c in chosen],
        "data": [task.batches[c].fingerprint() for c in chosen],
        "batch_size": batch_size,
        "precision": task.precision,
        **({"accumulate": task.accumulate} if task.accumulate > 1 else {}),
    }
