"""The reference lists every public name, command, flag, config key and record field."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

import episode
import reference
from episode.catalogue import TASKS
from episode.cli.main import app
from episode.results import schema
from episode.runs.config import SECTIONS, Experiment, read_experiment
from episode.runs.folder import environment
from episode.runs.trainer import prepared, train

RECORDS = (Path(reference.__file__).parents[1] / "reference" / "records.md").read_text()


def test_every_public_name_is_in_the_reference() -> None:
    page = reference.api_page()
    for module in ("episode", "episode.optim", "episode.flower", "episode.testing"):
        for name in importlib.import_module(module).__all__:
            assert re.search(rf"auto\w+:: {re.escape(module)}\.{name}\n", page), name


def every_command(name: str, command: Any) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for sub in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), sub)
            yield from every_command(f"{name} {sub}", inner)


def test_every_command_and_flag_is_in_the_reference() -> None:
    page = reference.commands_page()
    sections = dict(re.findall(r"^## (episode.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    for name, command in every_command("episode", typer.main.get_command(app)):
        for parameter in command.params:
            options = [*parameter.opts, *parameter.secondary_opts]
            if parameter.param_type_name == "argument":
                options = [str(parameter.name).upper()]
            assert all(f"`{o}`" in sections[name] for o in options), (name, options)


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key


@pytest.mark.parametrize("task", list(TASKS))
def test_every_config_key_is_in_the_reference_with_a_meaning(task: str) -> None:
    sections = reference.config_sections()
    keys = [
        *sections[f"Task: {task}"],
        *(k for t, ks in sections.items() if ":" not in t for k in ks),
    ]
    listed = {key.name: key for key in keys}
    assert all(key.kind and key.meaning for key in keys), [k for k in keys if not k.meaning]
    settings = {f.alias or n for n, f in TASKS[task].model_fields.items()}
    assert {f"task.{name}" for name in settings} <= listed.keys()
    given = Experiment.from_dict({"task": {"name": task}}).to_dict()
    assert set(flat(given)) - {"task.name"} <= listed.keys() | {"task.name"}
    for section in SECTIONS:
        assert any(name.startswith(f"{section}.") for name in listed)


def test_every_key_of_the_reference_can_be_set() -> None:
    for key in reference.config_sections()["Schedule"]:
        assert key.name.split(".")[1] in vars(read_experiment(None).schedule)


def fields_of(title: str) -> set[str]:
    """Return the fields that the page lists below a heading."""
    section = RECORDS.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE))


def test_every_field_that_files_are_checked_for_is_in_the_reference() -> None:
    assert schema.ROUND.keys() <= fields_of("rounds.jsonl")
    assert schema.SUMMARY.keys() | schema.STATUS.keys() <= fields_of("summary.json")
    assert schema.PARTITION.keys() == fields_of("partition.json")
    assert environment().keys() == fields_of("env.json")


def test_every_field_that_a_run_writes_is_in_the_reference(tmp_path: Path) -> None:
    settings = ["budget.rounds=2", "task.holdout=0.2", "task.num_clients=2", "cohorts.kind=uniform"]
    chosen = read_experiment(None, [*settings, "cohorts.cohort_size=1", "algorithm.trust=measured"])
    with prepared(lambda: chosen) as (_, job):
        train(job, tmp_path / "run")

    def lines(name: str) -> set[str]:
        texts = (tmp_path / "run" / name).read_text().splitlines()
        return {key for text in texts for key in json.loads(text)}

    assert lines("rounds.jsonl") <= fields_of("rounds.jsonl")
    assert lines("clients.jsonl") <= fields_of("clients.jsonl")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.keys() <= fields_of("summary.json")
    for values in summary["per_client"].values():
        assert {f"per_client.NAME.{key}" for key in values} <= fields_of("summary.json")
    files = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    missing = [name for name in files if f"`{name}" not in RECORDS]
    assert not missing


def test_the_fields_that_engines_add_are_in_the_reference() -> None:
    from episode.flower.attendance import Attendance

    seen = Attendance([0, 1])
    seen.absent[0], seen.unusual[1], seen.attempts = "is away", "is large", 2
    assert seen.notes().keys() <= fields_of("rounds.jsonl")


def test_the_version_of_the_site_is_that_of_the_package() -> None:
    assert (Path(reference.__file__).parents[1] / "conf.py").read_text().count("__version__") >= 2
    assert episode.__version__
