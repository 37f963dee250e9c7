"""Build the task of an experiment; one that does not fit into memory is a user's mistake."""

from __future__ import annotations

from episode.errors import EpisodeError, is_too_large
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
