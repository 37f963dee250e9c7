"""Files of a run folder, and functions that read and write them.

A run folder holds config.json, env.json, rounds.jsonl and, once the run has ended, summary.json.
Reading one never imports training code and never runs anything that the folder names. What is read
is checked against `schema`, so that the rest of the package can rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.catalogue import cell_name
from episode.errors import EpisodeError
from episode.files import read_regular, write_whole
from episode.results import schema
from episode.results.strict_json import dumps as dumps, loads as loads

LOCK = ".lock"
"""Locked by the process that writes the folder."""
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
    "engine.state_memory_mb",
    "engine.allow_takeover",
    "engine.max_examples",
    "record.checkpoint_seconds",
    "record.per_client",
)
"""Settings that change how fast or how safely a run is played, but not what it computes.

Two runs whose configs differ only in these are the same run."""


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
    if name := algorithm.get("name"):
        return str(name).rpartition(":")[2]
    return cell_name(algorithm)


def read_run(folder: Path) -> StoredRun:
    """Read a run folder, whether or not the run has ended.

    Raises:
        EpisodeError: A file is missing, damaged, or not one of a run; the message names it.
    """
    config, summary = read_config(folder), read_summary(folder)
    rounds = read_rounds(folder / ROUNDS)
    check_agreement(folder, rounds, summary)
    return StoredRun(folder, config, rounds, summary)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a run; refuse a config.json that another program has written."""
    path = folder / CONFIG
    if not path.is_file():
        raise EpisodeError(f"{folder} is not a run folder: it has no {CONFIG}.")
    config = read_json(path)
    sections = ("task", "algorithm")
    if not isinstance(config, dict) or any(not isinstance(config.get(s), dict) for s in sections):
        raise EpisodeError(
            f"{folder} is not a run folder: its {CONFIG} has no sections task and algorithm."
        )
    return _checked(config, schema.CONFIG, path)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read how a run ended; empty if it has not ended."""
    path = folder / SUMMARY
    if not path.exists():
        return {}
    summary = _checked(read_json(path), schema.STATUS, path)
    return summary if summary["status"] == "failed" else _checked(summary, schema.SUMMARY, path)


def check_complete(folder: Path, rounds: int, summary: Mapping[str, Any]) -> None:
    """Refuse a run that has ended if some of its rounds are missing."""
    if "rounds" in summary and rounds != summary["rounds"]:
        what = f"it has {rounds} rounds, but {SUMMARY} says {summary['rounds']}"
        raise schema.damaged(folder / ROUNDS, what)


def check_agreement(
    folder: Path, rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> None:
    """Refuse a run that has ended if its summary is not that of its rounds."""
    check_complete(folder, len(rounds), summary)
    if "rounds" in summary and (what := schema.contradiction(summary, rounds)):
        raise schema.damaged(folder / SUMMARY, what)


def read_environment(folder: Path) -> dict[str, Any]:
    """Read the versions, the machine and the command of a run; empty if they were not stored."""
    path = folder / ENVIRONMENT
    return _checked(read_json(path), schema.ENVIRONMENT, path) if path.exists() else {}


def read_partition(folder: Path) -> LabelCounts | None:
    """Read who has which labels, or return None if the run did not store it."""
    path = folder / PARTITION
    if not path.exists():
        return None
    values = _checked(read_json(path), schema.PARTITION, path)
    found = LabelCounts(**{field: values[field] for field in LabelCounts.__annotations__})
    if [len(row) for row in found.counts] != [len(found.labels)] * len(found.clients):
        raise schema.damaged(path, "counts must have a row for each client, of all labels")
    return found


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    return _checked(read_json(path), schema.ANY, path)


def read_json(path: Path) -> Any:
    """Read JSON in which non-finite numbers are strings (see `dumps`)."""
    try:
        values = loads(read_regular(path).decode())
        schema.check_levels(values)
        return values
    except OSError as error:
        reason: object = error.strerror
    except ValueError as error:
        reason = error
    raise EpisodeError(f"{path} cannot be read ({reason}): leave out this folder, or delete it.")


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Read the rounds played so far; an incomplete last line, left by a kill, is dropped."""
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    try:
        lines = read_regular(path).split(b"\n")
    except OSError as error:
        raise schema.damaged(path, str(error.strerror)) from None
    for number, line in enumerate(lines, 1):
        try:
            if line:
                records.append(read_record(line, len(records)))
        except ValueError as error:
            if number < len(lines):
                raise damaged_line(path, number, error) from None
    return records


def read_record(line: bytes, number: int) -> dict[str, Any]:
    """Read a line of rounds.jsonl; raise a ValueError if it is not the record of this round."""
    record = loads(line.decode())
    if what := schema.fault(record, schema.ROUND):
        raise ValueError(what)
    if record["round"] != number:
        raise ValueError(f"round is {record['round']}, but must be {number}")
    return dict(record)


def damaged_line(path: Path, line: int, what: object) -> EpisodeError:
    """Return the error for a line of rounds.jsonl that is not the record of its round."""
    return schema.damaged(path, what, f" in line {line}")


def _checked(values: Any, table: schema.Schema, path: Path) -> dict[str, Any]:
    if what := schema.fault(values, table):
        raise schema.damaged(path, what)
    return dict(values)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, in a folder that is made if necessary.

    Raises:
        EpisodeError: The file cannot be written.
    """
    if path.is_dir():
        raise EpisodeError(f"{path} is a folder: give the name of a file.")
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
    """Return the names of a sweep's runs in order; empty if the folder holds no sweep.

    Raises:
        EpisodeError: The sweep's file is damaged, or names a folder outside of its own.
    """
    path = folder / SWEEP
    if not path.exists():
        return []
    names: list[str] = _checked(read_json(path), schema.SWEEP, path)["runs"]
    root = folder.resolve()
    for name in names:
        inside = Path(name).name == name and (root / name).resolve().parent == root
        if not inside:
            raise schema.damaged(path, f"{name!r} is not the name of a folder beside it")
    return names
