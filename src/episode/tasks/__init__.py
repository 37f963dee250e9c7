"""A task is a loss, its clients' data and its evaluation. `TASKS` holds the built-in ones."""

from episode.catalogue import TASKS
from episode.tasks.custom import checked_task
from episode.tasks.settings import TaskSettings

__all__ = ["TASKS", "task_named"]


def task_named(name: str) -> type[TaskSettings]:
    """Return the settings class of a task.

    Args:
        name: A built-in task, an entry point in the group `episode.tasks`, `my_task.py:MyTask`
            or `my_package.module:MyTask`.

    Returns:
        A subclass of `TaskSettings`; its instances hold the settings and build the task.

    Raises:
        EpisodeError: There is no such task, it cannot be imported, or it is not a task.

    Example:
        >>> task_named("digits")().num_clients
        8
    """
    found = TASKS.find(name)
    return found if name in TASKS else checked_task(name, found)
