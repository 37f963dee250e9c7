"""A study: what is searched and how trials are compared, with Optuna set up for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from episode.errors import EpisodeError
from episode.randomness import derive
from episode.runs.config import Experiment
from episode.studies.search_space import Range, Space, experiment_at

DATABASE = "study.db"

Sampler = Literal["grid", "tpe"]
Pruner = Literal["none", "median", "hyperband"]


@dataclass(frozen=True)
class Study:
    """What is searched, and how; processes that are given the same study work on it together."""

    folder: Path
    values: Mapping[str, Any]
    """The config before anything is searched."""
    space: Space
    sampler: Sampler = "grid"
    pruner: Pruner = "none"
    trials: int | None = None
    """Number of trials; a grid always has one for each of its points."""
    seed: int = 0
    """Random seed of the sampler."""
    metric: str | None = None
    """The metric that trials are compared by; None for the task's usual one."""

    def base(self) -> Experiment:
        """The experiment before anything is searched."""
        return experiment_at(self.values, {}, self.split())

    def split(self) -> str | None:
        """The validation split if the task has one: the test split is kept for reporting."""
        task = experiment_at(self.values, {}, None).task
        return "validation" if "validation" in task.splits else None

    def criterion(self) -> tuple[str, bool]:
        """The metric that trials are compared by, and whether larger values are better."""
        usual = "validation_accuracy" if self.split() else "value"
        metric = usual if self.metric is None else self.metric
        return metric, "accuracy" in metric

    @property
    def total_trials(self) -> int:
        """How many trials complete the study."""
        if self.sampler == "grid":
            return math.prod(len(v) for v in self.space.values() if isinstance(v, list))
        return self.trials or 20

    def description(self) -> dict[str, Any]:
        """What identifies the study; the number of trials may still change."""
        metric, maximise = self.criterion()
        return {
            "config": self.base().to_dict(),
            "space": {k: vars(v) if isinstance(v, Range) else v for k, v in self.space.items()},
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
            "metric": metric,
            "maximise": maximise,
        }

    def check(self) -> None:
        """Refuse what cannot be searched, before any trial."""
        if not self.space:
            raise EpisodeError("A study needs something to search: --search schedule.eta=0.01..1.")
        ranges = [k for k, v in self.space.items() if isinstance(v, Range)]
        if self.sampler == "grid" and ranges:
            raise EpisodeError(
                f"A grid needs lists of values, but {ranges[0]} is a range: "
                "list the values, or use --sampler tpe."
            )
        first: dict[str, Any] = {
            k: v[0] if isinstance(v, list) else (round(v.low) if v.whole else v.low)
            for k, v in self.space.items()
        }
        experiment_at(self.values, first, self.split())  # finds mistakes in keys


def open_study(study: Study) -> Any:
    """Open Optuna's study in the folder, or create it."""
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _, maximise = study.criterion()
    (study.folder / DATABASE).touch()  # SQLite itself would not give it the mode of the umask
    try:
        return optuna.create_study(
            storage=f"sqlite:///{study.folder / DATABASE}",
            study_name="episode",
            direction="maximize" if maximise else "minimize",
            pruner=_pruner(study),
            load_if_exists=True,
        )
    except Exception as error:
        if "SQL" in type(error).__module__ or "sqlalchemy" in type(error).__module__:
            raise EpisodeError(f"The study {study.folder / DATABASE} is damaged.") from None
        raise


def sampler_of(study: Study, done: int) -> Any:
    """A sampler whose choice depends only on the study's seed and the trials so far."""
    samplers = import_optuna().samplers
    if study.sampler == "grid":
        return samplers.GridSampler(study.space, seed=study.seed)
    seed = derive(study.seed, "tune", done) % 2**31
    startup = min(10, max(3, study.total_trials // 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return samplers.TPESampler(seed=seed, n_startup_trials=startup)


def _pruner(study: Study) -> Any:
    pruners = import_optuna().pruners
    if study.pruner == "none":
        return pruners.NopPruner()
    rounds = study.base().budget.rounds
    if study.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=rounds // 5)
    return pruners.HyperbandPruner(min_resource=max(1, rounds // 9), max_resource=rounds)


def suggest(trial: Any, name: str, values: list[Any] | Range) -> None:
    """Let the sampler choose the value of one setting."""
    if isinstance(values, list):
        trial.suggest_categorical(name, values)
    elif values.whole:
        trial.suggest_int(name, round(values.low), round(values.high))
    else:
        trial.suggest_float(name, values.low, values.high, log=values.low > 0)


def import_optuna() -> Any:
    """Import Optuna, or say how to install it."""
    try:
        import optuna
    except ImportError:
        raise EpisodeError("Tuning needs optuna: pip install 'episode-fl[tune]'.") from None
    return optuna
