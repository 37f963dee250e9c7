"""A loss, its clients' data and its evaluation. `TASKS` names those that a config can ask for."""

from episode.tasks.digits import Digits
from episode.tasks.quadratics import Quadratics
from episode.tasks.relaxed import RelaxedSmooth
from episode.tasks.settings import TaskSettings
from episode.tasks.synthetic import Synthetic

TASKS: dict[str, type[TaskSettings]] = {
    "digits": Digits,
    "synthetic": Synthetic,
    "quadratics": Quadratics,
    "relaxed_smooth": RelaxedSmooth,
}
