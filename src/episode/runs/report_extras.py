"""What a report shows beyond run folders: commands that repeat a run, and who has which labels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError, differences
from episode.runs.config import Experiment
from episode.results.report import Extras, Partition
from episode.results.store import StoredRun
from episode.tasks.settings import TaskSettings

MOST_PARTITIONS = 12


def extras_of(runs: Sequence[StoredRun]) -> Extras:
    """Everything for a report of these runs."""
    return Extras({run.folder: command_of(run.config) for run in runs}, partitions_of(runs))


def command_of(config: Mapping[str, Any]) -> str:
    """The shortest `episode run` with the same config."""
    try:
        experiment = _experiment(config)
    except EpisodeError:
        return "Made by episode.fit in Python: call fit again with the same arguments."
    values = experiment.to_dict()
    start: dict[str, Any] = {"task": {"name": values["task"]["name"]}}
    if "scale" in values["task"]:
        start["task"]["scale"] = values["task"]["scale"]
    if name := values["algorithm"].get("name"):
        start["algorithm"] = {"name": name}
    start["task"] |= {k: values["task"][k] for k in _required(experiment.task)}
    usual = _defaults_of(start, values)
    words = ["episode", "run"]
    for section, table in start.items():
        for key, value in table.items():
            words += [
                "--set",
                f"{section}={value}" if key == "name" else f"{section}.{key}={value}",
            ]
    for key, (_, value) in differences(usual, values).items():
        if value is not None and not key.startswith("record.checkpoint"):
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", f"{key}={text}"]
    return shlex.join(words)


def _required(settings: TaskSettings) -> list[str]:
    """The settings of a task that have no default."""
    return [k for k, field in type(settings).model_fields.items() if field.is_required()]


def _defaults_of(start: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a config has that says no more than `start`; a task may suggest no η, γ, R and I."""
    try:
        return Experiment.from_dict(start).to_dict()
    except EpisodeError:
        for section, keys in (
            ("schedule", ("eta", "gamma")),
            ("budget", ("rounds", "local_steps")),
        ):
            start[section] = {k: values[section][k] for k in keys}
        return Experiment.from_dict(start).to_dict()


def partitions_of(runs: Sequence[StoredRun]) -> list[Partition]:
    """Clients by labels, for each way in which the runs' data were distributed, up to a dozen."""
    found: dict[str, Partition] = {}
    for run in runs:
        try:
            experiment = _experiment(run.config)
        except EpisodeError:
            continue
        partition_settings = {
            k: v for k, v in experiment.task.model_dump(mode="json").items() if k in PARTITIONED_BY
        }
        key = json.dumps([partition_settings, experiment.seed])
        if key in found or len(found) >= MOST_PARTITIONS:
            continue
        partition = _partition(experiment)
        if partition is not None:
            found[key] = partition
    return list(found.values())


PARTITIONED_BY = (
    "data", "num_clients", "partition", "similarity", "alpha", "labels_per_client", "evaluate_on",
    "minimum_tweets",
)  # fmt: skip
"""Settings of tasks that decide who has which examples."""


def _partition(experiment: Experiment) -> Partition | None:
    try:
        found = experiment.task.partition(experiment.seed)
    except EpisodeError:
        return None  # the data are not on this machine
    if found is None:
        return None
    counts = experiment.task.label_counts(found, experiment.seed)
    return Partition(counts.title, counts.labels, counts.counts)


def _experiment(config: Mapping[str, Any]) -> Experiment:
    if config.get("made_by") == "fit":
        raise EpisodeError("This run was made by episode.fit.")
    return Experiment.from_dict({k: v for k, v in config.items() if k != "id"})


def report_path(folders: Sequence[Path]) -> Path:
    """Where a report goes, if nothing is said: into the folder it is about."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
