"""Files of a run folder, and functions that read and write them.

A run folder holds config.json, env.json, rounds.jsonl and, once the run has ended, summary.json.
Reading one never imports training code and never runs anything that the folder names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.files import write_whole

CONFIG = "config.json"
ENVIRONMENT = "env.json"
PARTITION = "partition.json"
"""How many examples of each label each client has; only for tasks that know it."""
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
CHECKPOINT = "checkpoint/state.safetensors"
LAST_FINITE = "checkpoint/last_finite.safetensors"
"""State before the last round of a run that diverged."""
MODEL = "model.safetensors"
PRUNED = "pruned"
"""Empty file in the folder of a trial that its study has stopped early."""
SWEEP = "sweep.json"
"""In the folder of a sweep: the settings that it varies, and the names of its runs in order."""

NOT_DECIDING = (
    "engine.name",
    "engine.workers",
    "engine.timeout_seconds",
    "engine.min_replies",
    "engine.retries",
    "engine.allow_takeover",
    "engine.max_examples",
    "record.checkpoint_seconds",
)
"""Settings that change how fast or how safely a run is played, but not what it computes.

Two runs whose configs differ only in these are the same run."""

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class StoredRun:
    """Contents of a run folder."""

    folder: Path
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    """Empty until the run has ended."""

    @property
    def label(self) -> str:
        """Name of the algorithm."""
        return algorithm_name(self.config)

    @property
    def status(self) -> str:
        """One of finished, diverged, failed, pruned and running.

        A run that was killed also counts as running: it can be resumed.
        """
        return str(self.summary.get("status", "pruned" if is_pruned(self.folder) else "running"))


@dataclass(frozen=True)
class LabelCounts:
    """How many examples of each label each client has."""

    title: str
    """How the data were partitioned, such as `similarity s = 30%, seed 0`."""
    labels: Sequence[str]
    clients: Sequence[str]
    counts: Sequence[Sequence[int]]
    """One row for each client, one column for each label."""


def algorithm_name(config: Mapping[str, Any]) -> str:
    """Return an algorithm's name, or those of its pieces, without the files that they are in."""
    algorithm = config.get("algorithm", {})
    pieces = [algorithm.get("correction"), algorithm.get("clipping")]
    names = [p.get("name") if isinstance(p, Mapping) else p for p in pieces]
    names = [algorithm["name"]] if algorithm.get("name") else names
    return "-".join(str(name).rpartition(":")[2] for name in names)


def read_run(folder: Path) -> StoredRun:
    """Read a run folder, whether or not the run has ended."""
    path = folder / SUMMARY
    summary = read_json(path) if path.exists() else {}
    if not isinstance(summary, dict):
        raise EpisodeError(
            f"{path} is not the summary of a run: leave out this folder, or delete it."
        )
    return StoredRun(folder, read_config(folder), read_rounds(folder / ROUNDS), summary)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a run; refuse a config.json that another program has written."""
    if not (folder / CONFIG).is_file():
        raise EpisodeError(f"{folder} is not a run folder: it has no {CONFIG}.")
    config = read_json(folder / CONFIG)
    sections = ("task", "algorithm")
    if not isinstance(config, dict) or any(not isinstance(config.get(s), dict) for s in sections):
        raise EpisodeError(
            f"{folder} is not a run folder: its {CONFIG} has no sections task and algorithm."
        )
    return dict(config)


def read_partition(folder: Path) -> LabelCounts | None:
    """Read who has which labels, or return None if the run did not store it."""
    path = folder / PARTITION
    if not path.exists():
        return None
    values = read_json(path)
    try:
        found = LabelCounts(**{field: values[field] for field in LabelCounts.__annotations__})
        shape = [len(found.labels)] * len(found.clients)
        whole = isinstance(found.title, str) and [len(row) for row in found.counts] == shape
        whole = whole and all(isinstance(n, int) for row in found.counts for n in row)
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise EpisodeError(
            f"{path} is damaged: delete this file to get a report without this partition."
        )
    return found


def read_json(path: Path) -> Any:
    """Read JSON in which non-finite numbers are strings (see `dumps`)."""
    try:
        return loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EpisodeError(
            f"{path} cannot be read ({error}): leave out this folder, or delete it."
        ) from None


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Read the rounds played so far; an incomplete last line, left by a kill, is dropped."""
    if not path.exists():
        return []
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                records.append(read_record(line))
        except ValueError:
            if number < len(lines):
                raise damaged(path, number) from None
    return records


def read_record(line: bytes) -> dict[str, Any]:
    """Read one line of rounds.jsonl; raise a ValueError if it is not the record of a round."""
    record = loads(line.decode())
    if not isinstance(record, dict) or not {"round", "loss", "threshold", "seconds"} <= set(record):
        raise ValueError
    return record


def damaged(path: Path, line: int) -> EpisodeError:
    """Return the error for a line of rounds.jsonl that cannot be read."""
    return EpisodeError(f"{path} is damaged in line {line}: leave out this folder, or delete it.")


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
    """Whether a study has stopped this run early because others were better."""
    return (folder / PRUNED).exists()


def find_runs(folders: Sequence[Path]) -> list[StoredRun]:
    """Read all runs in these folders; a folder that is no run folder is searched."""
    check_folders(folders)
    found: dict[Path, StoredRun] = {}
    for folder in folders:
        below = run_folders(folder)
        if not below:
            raise EpisodeError(
                f"{folder} is not a run folder and contains none: there is no {CONFIG} in it."
            )
        for path in below:
            found.setdefault(path.resolve(), read_run(path))
    return list(found.values())


def check_folders(folders: Sequence[Path]) -> None:
    """Refuse folders that do not exist."""
    for folder in folders:
        if not folder.is_dir():
            raise EpisodeError(f"There is no folder {folder}: give the folder of a run or sweep.")


def run_folders(folder: Path) -> list[Path]:
    """Return the folder if it is a run folder, else those in it, in the order of their sweep."""
    if (folder / CONFIG).is_file():
        return [folder]
    begun = [folder / name for name in planned_runs(folder) if (folder / name / CONFIG).is_file()]
    rest = sorted(path.parent for path in folder.rglob(CONFIG))
    return list(dict.fromkeys([*begun, *rest]))


def planned_runs(folder: Path) -> list[str]:
    """Return the names of a sweep's runs in order; empty if the folder holds no sweep."""
    try:
        return [str(name) for name in json.loads((folder / SWEEP).read_text())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def dumps(values: Any, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinities become "NaN", "Infinity" and "-Infinity"."""
    try:
        return json.dumps(values, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(json.loads(json.dumps(values), parse_constant=str), indent=indent)


def loads(text: str) -> Any:
    """Parse what `dumps` returned."""
    values = json.loads(text)
    return _decode(values) if 'NaN"' in text or 'Infinity"' in text else values


def _decode(value: Any) -> Any:
    """Turn the strings that stand for numbers in nested dicts and lists into numbers again."""
    if isinstance(value, dict):
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v) for v in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
