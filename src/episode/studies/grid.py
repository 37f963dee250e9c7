"""The experiments of a sweep: the product of some settings' values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.runs.config import Experiment
from episode.runs.config_values import NAMED, apply_override, parse_value, read_values

Axes = dict[str, list[Any]]
"""The values that each varied setting takes, by its dotted key."""

SECTION = "sweep"
"""The table of a TOML file that holds axes: [sweep] budget.local_steps = [2, 4, 8]."""


def read_grid(
    path: Path | None, overrides: Sequence[str], over: Sequence[str]
) -> tuple[list[Experiment], Axes]:
    """Read and check all experiments of a sweep.

    Args:
        path: A TOML file, which may have a [sweep] table.
        overrides: Settings that are the same everywhere, such as `task=digits`.
        over: Further axes, such as `seed=0..4`; they replace those of the file.

    Returns:
        The experiments, each once, and the axes.

    Raises:
        EpisodeError: a setting or value has a mistake, or nothing varies.
    """
    values = read_values(path, overrides)
    axes = dict(_axes_in(values.pop(SECTION, {})))
    varied = [parse_axis(text) for text in over]
    for key, chosen in varied:
        if [k for k, _ in varied].count(key) > 1:
            raise EpisodeError(f"--over {key} is given twice: list all its values in one option.")
        axes[key] = chosen
    varied_keys = {_without_name(key) for key in axes}
    for override in overrides:
        if (key := _without_name(override.partition("=")[0])) in varied_keys:
            raise EpisodeError(f"{key} is both set and varied: leave one of them out.")
    if not axes:
        at_point(values, {})  # a mistake in the config is reported first
        raise EpisodeError(
            "A sweep needs something to vary: --over algorithm=celgc,episode, or a [sweep] table."
        )
    return grid_of(values, axes), axes


def grid_of(values: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[Experiment]:
    """Return the experiment of each combination of settings, each once.

    Raises:
        EpisodeError: a setting or value has a mistake, or the tasks differ.
    """
    experiments: dict[str, Experiment] = {}
    for point in itertools.product(*axes.values()):
        experiment = at_point(values, dict(zip(axes, point, strict=True)))
        experiments.setdefault(experiment.id, experiment)
    tasks = sorted({e.task_name for e in experiments.values()})
    if len(tasks) > 1:
        raise EpisodeError(
            f"One table cannot compare a sweep over different tasks ({', '.join(tasks)}): "
            "sweep each of them separately."
        )
    return list(experiments.values())


def at_point(values: Mapping[str, Any], point: Mapping[str, Any]) -> Experiment:
    """Build and check the experiment of a config with the settings of `point` changed."""
    changed = json.loads(json.dumps(values))
    for key, value in point.items():
        name = f"{key}.name" if key in NAMED else key
        apply_override(changed, f"{name}={json.dumps(value)}")
    experiment = Experiment.from_dict(changed)
    experiment.plan()
    return experiment


def parse_axis(text: str, option: str = "--over") -> tuple[str, list[Any]]:
    """Parse `key=a,b,c`, or `key=0..4` for the whole numbers from 0 to 4.

    Messages name `option` as the place of a mistake.
    """
    key, equals, listed = text.partition("=")
    if not equals or not key.strip() or not listed.strip():
        raise EpisodeError(f"{option} {text!r} is not of the form section.key=value,value,….")
    if span := re.fullmatch(r"\s*(-?\d+)\.\.(-?\d+)\s*", listed):
        low, high = map(int, span.groups())
        if low > high:
            raise EpisodeError(f"{option} {text!r}: the range is empty, write {high}..{low}.")
        values: list[Any] = list(range(low, high + 1))
    else:
        whole = parse_value(listed)
        parts = [parse_value(part.strip()) for part in listed.split(",")]
        values = whole if isinstance(whole, list) else parts
    return key.strip(), _checked(key.strip(), values)


def _without_name(key: str) -> str:
    """Shorten `algorithm.name` to `algorithm`, which is the same setting."""
    return key.strip().removesuffix(".name")


def _axes_in(table: Any, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the axes of a [sweep] table, whose dotted keys may be quoted or be nested tables."""
    if not isinstance(table, Mapping):
        raise EpisodeError(f"{SECTION} is {table!r}: it must be a table of settings and lists.")
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _axes_in(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", _checked(f"{prefix}{key}", value)
        elif isinstance(value, str) and ".." in value:
            yield parse_axis(f"{prefix}{key}={value}", SECTION)
        else:
            raise EpisodeError(f"{SECTION}.{prefix}{key} is {value!r}: give a list of values.")


def _checked(key: str, values: list[Any]) -> list[Any]:
    if not values or "" in values:
        raise EpisodeError(f"The sweep over {key} has an empty value: list the values as a,b,c.")
    return values
