"""A task is a loss, its clients' data and its evaluation. `TASKS` holds the built-in ones."""

from episode.registry import Registry
from episode.tasks.custom import checked_task
from episode.tasks.settings import TaskSettings

TASKS: Registry[type[TaskSettings]] = Registry(
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
)


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
        >>> task_named("digits").summary
        'digits read as a sequence by an Elman network, split by similarity s'
    """
    found = TASKS.find(name)
    return found if name in TASKS else checked_task(name, found)
