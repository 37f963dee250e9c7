"""Nested values of a config: read from TOML or a run's folder, and overridden."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.results.named_code import require_named
from episode.results.schema import MOST_LEVELS, check_levels
from episode.results.store import read_config

Values = dict[str, Any]
"""Nested values by section and key."""

NAMED = ("task", "algorithm", "engine", "correction", "clipping", "trust", "descent", "server")
"""Sections, and pieces of an algorithm, that may be given by name alone: algorithm = "episode"."""


def read_values(path: Path | None, overrides: Sequence[str] = (), *, found: bool = False) -> Values:
    """Read the nested values of a TOML file or a run's folder, and override some of them.

    Args:
        path: The file or folder; None for no values.
        overrides: Settings such as `schedule.eta=0.3`.
        found: Whether a TOML file was found in a folder, and not named by the user.

    Raises:
        EpisodeError: It cannot be read, or a folder names code that no override names.
    """
    stored = path is not None and (found or path.is_dir())
    values = {} if path is None else _of_run(path) if path.is_dir() else _of_toml(path)
    given: list[Values] = [{} for _ in overrides]
    for override, own in zip(overrides, given, strict=True):
        apply_override(values, override)
        apply_override(own, override)
    if stored:
        require_named(values, given, path)
    return values


def _of_run(path: Path) -> Values:
    values = read_config(path)
    if made_by := values.pop("made_by", None):
        raise EpisodeError(
            f"{path} was made by episode.{made_by} in Python: call that again for it."
        )
    values.pop("id", None)
    return values


def _of_toml(path: Path) -> Values:
    try:
        return _parse_toml(path.read_bytes().decode())
    except FileNotFoundError:
        raise EpisodeError(
            f"There is no config {path}: give a TOML file or a folder, or a task by "
            "--set task=NAME."
        ) from None
    except ValueError as error:
        raise EpisodeError(f"The config {path} cannot be read: {error}.") from None
    except OSError as error:
        raise EpisodeError(f"The config {path} cannot be read: {error.strerror}.") from None


def _parse_toml(text: str) -> Values:
    """Parse TOML; raise a ValueError for anything that cannot be a config."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_levels(values)
    try:
        json.dumps(values)
    except TypeError:
        raise _DateError(
            "it holds a date or a time, which no setting is: put it in quotes"
        ) from None
    return values


class _DateError(ValueError):
    """A TOML value is a date or a time."""


def parse_value(text: str) -> Any:
    """Return the value of a TOML expression, or the text itself if it is a bare word or a date."""
    try:
        return _parse_toml(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, _DateError):
        return text
    except ValueError as error:
        raise EpisodeError(f"The value {text[:40]!r} cannot be read: {error}.") from None


def apply_override(values: Values, override: str) -> None:
    """Set one of the nested values, as in `schedule.eta=0.3`."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise EpisodeError(f"--set {override!r} is not of the form section.key=value.")
    value = parse_value(text)
    *path, last = key.strip().split(".")
    if len(path) >= MOST_LEVELS:
        raise EpisodeError(f"--set {override[:40]}...: a key has at most {MOST_LEVELS} parts.")
    for part in path:
        if isinstance(values.get(part), str) and part in NAMED:
            values[part] = {"name": values[part]}
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise EpisodeError(f"--set {override!r}: {part!r} is a value, not a section.")
    values[last] = value


def refuse_booleans(values: Mapping[str, Any], parsed: object, section: str) -> None:
    """Refuse a true or false that was taken for a number, as pydantic does with 1 and 0.

    Args:
        values: Values as they were given.
        parsed: The dataclass or model that was built from them, with an attribute for each.
        section: The section of the config, for messages.
    """
    aliases = {
        field.alias: name for name, field in getattr(type(parsed), "model_fields", {}).items()
    }
    for key, value in values.items():
        if _has_become_a_number(value, getattr(parsed, aliases.get(key) or key, value)):
            place = f"{section}.{key}".strip(".")
            raise EpisodeError(
                f"{place} is {str(value).lower()}: it must be a number, not true or false."
            )


def _has_become_a_number(given: Any, parsed: Any) -> bool:
    if isinstance(given, list) and isinstance(parsed, (list, tuple)):
        return any(map(_has_become_a_number, given, parsed))
    return isinstance(given, bool) and not isinstance(parsed, bool)
