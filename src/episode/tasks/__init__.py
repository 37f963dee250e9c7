"""A loss, its clients' data and its evaluation. `TASKS` names those that a config can ask for."""

from episode.errors import unknown
from episode.tasks.cifar10 import Cifar10
from episode.tasks.custom import custom_task, is_custom
from episode.tasks.digits import Digits
from episode.tasks.imagenet import ImageNet
from episode.tasks.quadratics import Quadratics
from episode.tasks.relaxed_smooth import RelaxedSmooth
from episode.tasks.sentiment140 import Sentiment140
from episode.tasks.settings import TaskSettings
from episode.tasks.silos import Silos
from episode.tasks.snli import Snli
from episode.tasks.synthetic import Synthetic

TASKS: dict[str, type[TaskSettings]] = {
    "digits": Digits,
    "synthetic": Synthetic,
    "quadratics": Quadratics,
    "relaxed_smooth": RelaxedSmooth,
    "snli": Snli,
    "sentiment140": Sentiment140,
    "cifar10": Cifar10,
    "imagenet": ImageNet,
    "silos": Silos,
}


def task_named(name: str) -> type[TaskSettings]:
    """The settings class of a task: one of `TASKS`, or of a file, as `my_task.py:MyTask`."""
    if is_custom(name):
        return custom_task(name)
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
