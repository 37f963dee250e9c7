"""`episode.sweep` and `episode.tune`: many runs from Python, of configs or of your own function."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.arguments import folder_path, optional, shown, whole_number
from episode.errors import EpisodeError, unknown
from episode.results.per_client import higher_is_better
from episode.runs.config_values import read_values
from episode.runs.loading import load_run
from episode.runs.records import Run
from episode.studies.grid import grid_of
from episode.studies.search_space import Range, Space, check_space
from episode.studies.study import Study, import_optuna
from episode.studies.sweep import SweepOptions, sweep as play_sweep
from episode.studies.tune import RUNS, StudyRunner

log = logging.getLogger("episode")
Trains = Callable[..., Run]
"""A function that trains: it is given settings and a folder, and returns what `fit` did."""
Config = Mapping[str, Any] | str | Path
Points = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Tuned:
    """Result of `tune`.

    Args:
        settings: The best settings.
        value: The metric with them.
        run: The run with them.
        trials: All settings that were tried, with the metric of each, the best first; None for a
            run that did not finish.

    Example:
        >>> Tuned({"eta": 0.1}, 0.9, None, [({"eta": 0.1}, 0.9)]).settings
        {'eta': 0.1}
    """

    settings: dict[str, Any]
    value: float
    run: Run | None
    trials: list[tuple[dict[str, Any], float | None]]


def sweep(
    what: Trains | Config,
    over: Mapping[str, Sequence[Any]],
    *,
    folder: str | Path = "runs/sweep",
    jobs: int = 1,
) -> list[Run]:
    """Train with every combination of some settings.

    Runs that have ended are read and stopped ones go on, so the same call can be made again at any
    time. A run that diverges is a result like any other. `episode report FOLDER` compares them.

    Args:
        what: A function that takes the settings and a `folder` and calls `fit` with them; or a
            config, as a mapping of its sections or the path of a TOML file.
        over: The values of each setting: names of the function's arguments, or keys of a config
            such as `schedule.eta`.
        folder: Where the runs are written, each in a folder of its own.
        jobs: Runs at the same time, each in a process of its own; for configs only.

    Returns:
        The runs; the last setting changes fastest.

    Raises:
        EpisodeError: A setting is wrong, or nothing varies.

    Example:
        >>> import tempfile
        >>> import episode, torch
        >>> def train(eta, seed, folder):
        ...     torch.manual_seed(seed)
        ...     x = torch.linspace(-1, 1, 8)[:, None]
        ...     return episode.fit(
        ...         torch.nn.Linear(1, 1), [(x, 2 * x), (x, 3 * x)], eta=eta, gamma=1.0, seed=seed,
        ...         loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        ...         local_steps=2, rounds=2, batch_size=4, folder=folder,
        ...     )
        >>> runs = episode.sweep(train, {"eta": [0.1, 0.3], "seed": [0, 1]},
        ...                      folder=tempfile.mkdtemp())
        >>> [run.folder.name for run in runs]
        ['eta=0.1,seed=0', 'eta=0.1,seed=1', 'eta=0.3,seed=0', 'eta=0.3,seed=1']
    """
    axes, place = _axes(over, "over"), folder_path("folder", folder)
    if callable(what):
        return [_train(what, point, place) for point in _grid(axes)]
    experiments = grid_of(_values(what), axes)
    options = SweepOptions(place, whole_number("jobs", jobs, least=1), axes=axes)
    for outcome in play_sweep(experiments, options):
        if outcome.status == "failed":
            log.warning("%s failed: %s", outcome.name, outcome.reason)
    return [load_run(place / experiment.name) for experiment in experiments]


def tune(
    what: Trains | Config,
    search: Mapping[str, Sequence[Any]],
    *,
    metric: str | None = None,
    folder: str | Path = "runs/tune",
    trials: int | None = None,
    seed: int = 0,
) -> Tuned:
    """Find the best of some settings.

    A list of values is tried as a whole; a pair `(low, high)` is a range, in which Optuna's TPE
    chooses. Let the metric be one of validation data, and keep test data for the result.

    Args:
        what: A function that takes the settings and a `folder` and calls `fit` with them; or a
            config, as for `sweep`.
        search: A list of values or a pair `(low, high)` for each setting: arguments of the
            function, or keys of a config (`threshold` is γ/η).
        metric: The metric to compare, larger if it is an accuracy or a score, else smaller; for a
            config, by default its task's.
        folder: Where the study is kept; the same call goes on with it.
        trials: Number of trials, if there are ranges; 20 by default.
        seed: Random seed of the search.

    Returns:
        The best settings, their run, and all trials.

    Raises:
        EpisodeError: A setting or the metric is wrong, or no run finished.

    Example:
        >>> import tempfile
        >>> import episode
        >>> config = {"task": "quadratics", "algorithm": "episode", "budget": {"rounds": 5}}
        >>> found = episode.tune(config, {"schedule.eta": [0.01, 0.1]}, folder=tempfile.mkdtemp())
        >>> found.settings
        {'schedule.eta': 0.1}
    """
    place, axes = folder_path("folder", folder), _space(search)
    trials = optional(whole_number, "trials", trials, least=1)
    ranges = [key for key, values in axes.items() if isinstance(values, Range)]
    if trials is not None and not ranges:
        raise EpisodeError("trials is for ranges (low, high): a list is always tried as a whole.")
    if callable(what):
        if metric is None:
            raise EpisodeError("metric is missing: name the metric of your runs to compare.")
        return _tune_function(what, axes, metric, place, trials or 20, seed)
    values = as_sections(_values(what))
    check_space(axes)
    sampler = "tpe" if ranges else "grid"
    study = Study(place, values, axes, sampler, "none", trials, seed, metric)  # type: ignore[arg-type]
    found = [(t.point, t.value, place / RUNS / t.experiment.name) for t in StudyRunner(study).run()]
    done = [(point, value) for point, value, _ in found]
    return _best(done, study.criterion()[0], lambda n: load_run(found[n][2]))


def _tune_function(
    what: Trains, axes: Space, metric: str, folder: Path, trials: int, seed: int
) -> Tuned:
    """Train at each point; a point that was tried before is read from its folder."""
    sign = -1 if higher_is_better(metric) else 1
    runs: list[Run] = []
    tried: list[tuple[dict[str, Any], float | None]] = []
    if any(isinstance(values, Range) for values in axes.values()):
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        for _ in range(trials):
            trial = study.ask()
            point = {key: _suggest(trial, key, values) for key, values in axes.items()}
            runs.append(_train(what, point, folder))
            tried.append((point, _value(runs[-1], metric)))
            value = tried[-1][1]
            study.tell(trial, math.inf if value is None else sign * value)
    else:
        for point in _grid(axes):
            runs.append(_train(what, point, folder))
            tried.append((point, _value(runs[-1], metric)))
    order = sorted(range(len(tried)), key=lambda n: _rank(tried[n][1], sign))
    return _best([tried[n] for n in order], metric, lambda n: runs[order[n]])


def _best(
    trials: list[tuple[dict[str, Any], float | None]], metric: str, run: Callable[[int], Run]
) -> Tuned:
    settings, value = trials[0]
    if value is None:
        raise EpisodeError(f"No run finished with a finite {metric}: widen the search.")
    return Tuned(settings, value, run(0), trials)


def _rank(value: float | None, sign: int) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value


def _value(run: Run, metric: str) -> float | None:
    """Return the metric of a run that finished; the loss is that of the local steps."""
    if run.status != "finished":
        return None
    metrics = {"loss": run.summary["loss"], **run.summary["metrics"]}
    if metric not in metrics:
        raise unknown("metric", metric, metrics)
    value = float(metrics[metric])
    return value if math.isfinite(value) else None


def _train(what: Trains, point: Mapping[str, Any], folder: Path) -> Run:
    name = ",".join(f"{key}={_word(value)}" for key, value in point.items())
    run = what(**point, folder=folder / name)
    if not isinstance(run, Run):
        raise EpisodeError(
            f"The function returned {shown(run)}: let it return what fit has returned."
        )
    return run


def _word(value: Any) -> str:
    """Return a value as part of a folder's name."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)[:40]


def _suggest(trial: Any, key: str, values: list[Any] | Range) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(key, values)
    if values.whole:
        return trial.suggest_int(key, int(values.low), int(values.high))
    return trial.suggest_float(key, values.low, values.high, log=values.low > 0)


def _grid(axes: Mapping[str, Any]) -> Points:
    for point in itertools.product(*axes.values()):
        yield dict(zip(axes, point, strict=True))


def _axes(given: Any, name: str) -> dict[str, list[Any]]:
    """Check the values of each setting."""
    if not isinstance(given, Mapping) or not given:
        raise EpisodeError(
            f"{name} is {shown(given)}: give the values of each setting, such as "
            '{"seed": [0, 1, 2]}.'
        )
    for key, values in given.items():
        if isinstance(values, (str, Mapping)) or not isinstance(values, (Sequence, range)):
            raise EpisodeError(f"{name}[{key!r}] is {shown(values)}: give a list of values.")
        if not values:
            raise EpisodeError(f"{name}[{key!r}] is empty: give a list of values.")
    return {str(key): list(values) for key, values in given.items()}


def _space(given: Any) -> Space:
    """Check what is searched: lists, and pairs that are ranges."""
    space: Space = dict(_axes(given, "search"))
    for key, values in given.items():
        if not isinstance(values, tuple):
            continue
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(values) != 2 or len(numbers) != 2 or not values[0] < values[1]:
            raise EpisodeError(
                f"search[{key!r}] is {shown(values)}: a tuple is a range (low, high); give a list "
                "of values to try them all."
            )
        whole = all(isinstance(v, int) for v in values)
        space[key] = Range(float(values[0]), float(values[1]), whole)
    return space


def _values(config: Any) -> dict[str, Any]:
    """Return the nested values of a config."""
    if isinstance(config, Mapping):
        try:
            return dict(json.loads(json.dumps(config)))
        except (TypeError, ValueError):
            raise EpisodeError("The config has a value that no config file can hold.") from None
    if isinstance(config, (str, Path)):
        return read_values(Path(config), [])
    raise EpisodeError(
        f"what is {shown(config)}: give a function that trains, or a config: a mapping or a file."
    )


def as_sections(values: dict[str, Any]) -> dict[str, Any]:
    """Let the task and the algorithm be sections, where only their names are given."""
    for section, usual in (("task", {"name": "digits"}), ("algorithm", {})):
        given = values.get(section, usual)
        values[section] = given if isinstance(given, dict) else {"name": str(given)}
    return values
