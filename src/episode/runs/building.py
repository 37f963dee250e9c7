"""Build the task of an experiment, and check what it says about its clients."""

from __future__ import annotations

import torch

from episode.errors import EpisodeError, is_too_large
from episode.federation.job import MOST_CLIENTS, RecordSettings
from episode.federation.protocols import Task
from episode.runs.config import Experiment
from episode.tasks.settings import Share


def build_task(experiment: Experiment, device: str, share: Share | None = None) -> Task:
    """Build the task that an experiment names.

    Args:
        experiment: The experiment.
        device: Where the model computes.
        share: The clients whose data are needed here; all of them by default.

    Raises:
        EpisodeError: The task cannot be built, or its sizes are larger than the memory.
    """
    try:
        return experiment.task.build_share(share or Share(), experiment.seed, device)
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if not is_too_large(error):
            raise
        sizes = experiment.task.model_dump(exclude_defaults=True)
        given = ", ".join(f"task.{k} = {v}" for k, v in sizes.items() if isinstance(v, int))
        raise EpisodeError(
            f"The task {experiment.task_name} does not fit into the memory of this machine"
            f"{f' with {given}' if given else ''}: choose smaller sizes."
        ) from error


def check_device(device: str) -> None:
    """Raise an error for a device that torch does not have here."""
    try:
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(":")[0].rstrip(".")[:80]
        raise EpisodeError(
            f"engine.device is {device!r}, which cannot be used here ({reason}): try 'cpu'."
        ) from None


def check_holdout(record: RecordSettings, task: Task) -> None:
    """Refuse to hold out data that nobody would look at."""
    count = task.num_clients
    if task.evaluates_clients and record.per_client is None and not record.keeps_clients(count):
        raise EpisodeError(
            f"The {count:,} clients hold out data, but records of each client are off for more "
            f"than {MOST_CLIENTS}: set record.per_client (in Python per_client) to true or false."
        )


def client_names(task: Task) -> list[str]:
    """Return the names of a task's clients; `client 0`, `client 1` … if they have none.

    Raises:
        EpisodeError: There is not one name for each client, or two clients share one.
    """
    given = len(task.client_names)
    if given not in (0, task.num_clients):
        raise EpisodeError(
            f"There are {given} client_names for {task.num_clients} clients: give one for each."
        )
    names = [task.client_name(client) for client in range(task.num_clients)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise EpisodeError(f"Two clients are called {twice!r}: give each its own name.")
    return names
