"""Nested values of a config: read from TOML or a run's folder, and overridden."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError

NAMED = ("task", "algorithm", "engine", "correction", "clipping", "descent")
"""Sections, and pieces of an algorithm, that may be given by name alone: algorithm = "episode"."""


def read_values(path: Path) -> dict[str, Any]:
    """Read the nested values of a TOML file or a run's folder."""
    try:
        if path.is_dir():
            values = dict(json.loads((path / "config.json").read_text()))
            if made_by := values.pop("made_by", None):
                raise EpisodeError(
                    f"{path} was made by episode.{made_by} in Python: call that again for it."
                )
            values.pop("id", None)
            return values
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if path.is_dir():
            raise EpisodeError(f"{path} is not a run's folder: it has no config.json.") from None
        raise EpisodeError(f"There is no config {path}: give a TOML file or a folder.") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise EpisodeError(f"The config {path} cannot be read: {error}.") from None
    except OSError as error:
        raise EpisodeError(f"The config {path} cannot be read: {error.strerror}.") from None


def parse_value(text: str) -> Any:
    """Return the value of a TOML expression, or the text itself if it is a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one of the nested values, as in `schedule.eta=0.3`."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise EpisodeError(f"--set {override!r} is not of the form section.key=value.")
    value = parse_value(text)
    *path, last = key.strip().split(".")
    for part in path:
        if isinstance(values.get(part), str) and part in NAMED:
            values[part] = {"name": values[part]}
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise EpisodeError(f"--set {override!r}: {part!r} is a value, not a section.")
    values[last] = value
