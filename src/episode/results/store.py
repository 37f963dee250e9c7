"""A run's folder, read back: config.json, env.json, rounds.jsonl, summary.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.files import write_whole

CONFIG = "config.json"
ENVIRONMENT = "env.json"
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
CHECKPOINT = "checkpoint/state.safetensors"
LAST_FINITE = "checkpoint/last_finite.safetensors"
"""Where a diverged run leaves the state before its last round."""
MODEL = "model.safetensors"
PRUNED = "pruned"
"""Marks a trial that its study has given up."""
SWEEP = "sweep.json"
"""In a sweep's folder: what it varies, and its runs in order."""

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class StoredRun:
    """What a folder says about its run."""

    folder: Path
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def label(self) -> str:
        """The algorithm, as its config names it."""
        algorithm = self.config.get("algorithm", {})
        cell = f"{algorithm.get('correction')}-{algorithm.get('clipping')}"
        return str(algorithm.get("name") or cell)

    @property
    def status(self) -> str:
        """finished, diverged, failed, pruned, or running (also: was killed, and can be resumed)."""
        return str(self.summary.get("status", "pruned" if is_pruned(self.folder) else "running"))


def read_run(folder: Path) -> StoredRun:
    """The run in a folder, finished or not."""
    summary = folder / SUMMARY
    ended = read_json(summary) if summary.exists() else {}
    if not isinstance(ended, dict):
        raise EpisodeError(f"{summary} is no summary of ours: leave its folder out, or remove it.")
    return StoredRun(folder, read_config(folder), read_rounds(folder / ROUNDS), ended)


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config; refuses one that something else has written."""
    if not (folder / CONFIG).is_file():
        raise EpisodeError(f"{folder} is not a run's folder: it has no {CONFIG}.")
    config = read_json(folder / CONFIG)
    ours = isinstance(config, dict) and all(
        isinstance(config.get(section), dict) for section in ("task", "algorithm")
    )
    if not ours:
        raise EpisodeError(
            f"{folder} is not a run's folder: its {CONFIG} has no task and algorithm of ours."
        )
    return dict(config)


def read_json(path: Path) -> Any:
    """JSON values, non-finite numbers included (see `dumps`)."""
    try:
        return loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EpisodeError(
            f"{path} cannot be read ({error}): leave its folder out, or remove it."
        ) from None


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The rounds written so far; a torn last line, left by a kill, is dropped."""
    if not path.exists():
        return []
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(read_record(line))
        except ValueError:
            if number == len(lines):
                break
            raise damaged(path, number) from None
    return records


def read_record(line: bytes) -> dict[str, Any]:
    """A round as it was written; a ValueError where it is none."""
    record = loads(line.decode())
    if not isinstance(record, dict) or not {"round", "loss", "threshold", "seconds"} <= set(record):
        raise ValueError
    return record


def damaged(path: Path, line: int) -> EpisodeError:
    """The error for a file of rounds that holds something else."""
    return EpisodeError(f"{path} is damaged in line {line}: leave its folder out, or remove it.")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, in a folder that is made if necessary.

    Raises:
        EpisodeError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise EpisodeError(f"{path} cannot be written: {error.strerror}.") from None


def is_pruned(folder: Path) -> bool:
    """Whether a study has stopped this run because it fell behind."""
    return (folder / PRUNED).exists()


def find_runs(folders: Sequence[Path]) -> list[StoredRun]:
    """The runs in these folders, and in folders below those that are none themselves."""
    found: dict[Path, StoredRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise EpisodeError(f"There is no folder {folder}: give a run's folder, or a sweep's.")
        below = folders_of_runs(folder)
        if not below:
            raise EpisodeError(
                f"{folder} is not a run's folder and holds none: no {CONFIG} is in it."
            )
        for path in below:
            found.setdefault(path.resolve(), read_run(path))
    return list(found.values())


def folders_of_runs(folder: Path) -> list[Path]:
    """The folder, if it is a run's, or those below it: in the order of their sweep, or by name."""
    if (folder / CONFIG).is_file():
        return [folder]
    begun = [folder / name for name in planned_runs(folder) if (folder / name / CONFIG).is_file()]
    rest = sorted(path.parent for path in folder.rglob(CONFIG))
    return list(dict.fromkeys([*begun, *rest]))


def planned_runs(folder: Path) -> list[str]:
    """The names of a sweep's runs, in order; none where the folder is no sweep's."""
    try:
        return [str(name) for name in json.loads((folder / SWEEP).read_text())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def dumps(values: Any, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinities become the strings "NaN", "Infinity", "-Infinity"."""
    try:
        return json.dumps(values, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_jsonable(values), allow_nan=False, indent=indent)


def loads(text: str) -> Any:
    """What `dumps` wrote."""
    values = json.loads(text)
    return _finite_or_not(values) if 'NaN"' in text or 'Infinity"' in text else values


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    return value


def _finite_or_not(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {k: _finite_or_not(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite_or_not(v) for v in value]
    return value
