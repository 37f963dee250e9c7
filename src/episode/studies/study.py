"""A study: what is searched and how it is judged, and Optuna set up for it."""

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
from episode.studies.search_space import Range, Space, describe, experiment_at

DATABASE = "study.db"

Sampler = Literal["grid", "tpe"]
Pruner = Literal["none", "median", "hyperband"]


@dataclass(frozen=True)
class Study:
    """What is searched, and how; two processes with the same study work on the same one."""

    folder: Path
    values: Mapping[str, Any]
    """The config, but for what is searched."""
    space: Space
    sampler: Sampler = "grid"
    pruner: Pruner = "none"
    trials: int | None = None
    """How many are wanted in all; a grid has as many as it has points."""
    seed: int = 0
    metric: str | None = None
    maximise: bool | None = None

    def base(self) -> Experiment:
        """The experiment before anything is searched."""
        return experiment_at(self.values, {}, self.split())

    def split(self) -> str | None:
        """The validation split, where a task has one: the test split is for reporting."""
        plain = experiment_at(self.values, {}, None)
        return "validation" if hasattr(plain.task, "evaluate_on") else None

    def judged_by(self) -> tuple[str, bool]:
        """The figure that is compared, and whether more of it is better."""
        if self.metric is not None:
            better = "accuracy" in self.metric if self.maximise is None else self.maximise
            return self.metric, better
        return ("validation_accuracy", True) if self.split() else ("value", False)

    @property
    def wanted(self) -> int:
        """How many trials there are to be."""
        if self.sampler == "grid":
            return math.prod(len(v) for v in self.space.values() if isinstance(v, list))
        return self.trials or 20

    def description(self) -> dict[str, Any]:
        """What makes it this study; how many trials are wanted may change."""
        metric, maximise = self.judged_by()
        return {
            "config": self.base().to_dict(),
            "space": describe(self.space),
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
            "metric": metric,
            "maximise": maximise,
        }


def check_study(study: Study) -> None:
    """Refuses what cannot be searched, before any trial."""
    if not study.space:
        raise EpisodeError("A study needs something to search: --search schedule.eta=0.01..1.")
    ranges = [k for k, v in study.space.items() if isinstance(v, Range)]
    if study.sampler == "grid" and ranges:
        raise EpisodeError(
            f"A grid needs lists of values, but {ranges[0]} is a range: "
            "list them, or use --sampler tpe."
        )
    first: dict[str, Any] = {
        k: v[0] if isinstance(v, list) else (round(v.low) if v.whole else v.low)
        for k, v in study.space.items()
    }
    experiment_at(study.values, first, study.split())  # a mistake in a key is found at once


def open_study(study: Study) -> Any:
    """Optuna's study in the folder; made, if it is not there."""
    optuna = optuna_package()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _, maximise = study.judged_by()
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
    """A sampler whose choice depends on the seed and the trials so far, and on nothing else."""
    samplers = optuna_package().samplers
    seed = derive(study.seed, "tune", done) % 2**31
    if study.sampler == "grid":
        return samplers.GridSampler(study.space, seed=study.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(3, study.wanted // 3)))


def _pruner(study: Study) -> Any:
    pruners = optuna_package().pruners
    if study.pruner == "none":
        return pruners.NopPruner()
    rounds = study.base().budget.rounds
    if study.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=rounds // 5)
    return pruners.HyperbandPruner(min_resource=max(1, rounds // 9), max_resource=rounds)


def suggest(trial: Any, name: str, values: list[Any] | Range) -> None:
    """Lets the sampler choose one value."""
    if isinstance(values, list):
        trial.suggest_categorical(name, values)
    elif values.whole:
        trial.suggest_int(name, round(values.low), round(values.high))
    else:
        trial.suggest_float(name, values.low, values.high, log=values.low > 0)


def optuna_package() -> Any:
    """Optuna, or an error that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise EpisodeError(
            "Tuning needs optuna: pip install 'episode-fl[tune]' -c constraints.txt."
        ) from None
    return optuna
