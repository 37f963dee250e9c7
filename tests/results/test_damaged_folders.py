"""Folders that are damaged, or made to deceive: one sentence each, and nothing of them is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run, write_partition

from episode.errors import EpisodeError
from episode.results import store
from episode.results.report import write_report
from episode.results.watch import Watcher

WRONG: tuple[Any, ...] = (None, True, "text", -1, 1.5, 10**30, [], {}, [1], {"a": 1}, "\ud800")
"""Values of which every key allows some and refuses others."""
DEEP = "[" * 5000 + "]" * 5000


def read_all(folder: Path, page: Path) -> None:
    """Read a folder as `report` and `watch` do."""
    write_report(store.find_runs([folder]), page)
    Watcher([folder]).table()


def change(path: Path, key: str, value: Any) -> None:
    values = json.loads(path.read_text())
    owner = values
    *tables, last = key.split(".")
    for table in tables:
        owner = owner[table]
    if value is KeyError:
        del owner[last]
    else:
        owner[last] = value
    path.write_text(json.dumps(values))


REQUIRED = {
    "config.json": ["seed", "schedule", "task.name", "budget", "budget.rounds"],
    "summary.json": ["status", "rounds", "loss", "metrics", "exchanges", "bytes_up", "seconds"],
    "partition.json": ["title", "labels", "clients", "counts"],
}


@pytest.mark.parametrize(
    ("file", "key"), [(file, key) for file, keys in REQUIRED.items() for key in keys]
)
def test_a_missing_key_is_named(file: str, key: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    write_partition(folder)
    change(folder / file, key, KeyError)
    with pytest.raises(EpisodeError, match=rf"{file} is damaged \({key} is missing\): leave out"):
        read_all(folder, tmp_path / "r.html")


TYPED = {
    "config.json": ["seed", "task.name", "algorithm.name", "schedule", "budget.local_steps", "id"],
    "env.json": ["command"],
    "summary.json": ["status", "rounds", "loss", "metrics", "gradients", "seconds", "reason"],
    "partition.json": ["title", "labels", "clients", "counts"],
}


@pytest.mark.parametrize(
    ("file", "key"), [(file, key) for file, keys in TYPED.items() for key in keys]
)
def test_a_wrong_type_is_one_sentence_and_a_right_one_is_shown(
    file: str, key: str, tmp_path: Path
) -> None:
    refused = 0
    for number, value in enumerate(WRONG):
        folder = make_run(tmp_path / str(number))
        write_partition(folder)
        change(folder / file, key, value)
        try:
            read_all(folder, tmp_path / "r.html")
        except EpisodeError as error:
            assert f"{file} " in str(error) or "rounds.jsonl" in str(error)  # noqa: PT017
            refused += 1
    assert refused > len(WRONG) / 2


@pytest.mark.parametrize("key", sorted(json.loads(json.dumps(store.schema.ROUND, default=str))))
def test_every_value_of_a_round_is_checked(key: str, tmp_path: Path) -> None:
    for number, value in enumerate(("text", [True], {"a": "b"}, 10**30)):
        folder = make_run(tmp_path / str(number))
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        lines[3] = json.dumps(json.loads(lines[3]) | {key: value})
        (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
        with pytest.raises(EpisodeError, match=rf"damaged in line 4 \({key} is "):
            store.find_runs([folder])
        with pytest.raises(EpisodeError, match=rf"damaged in line 4 \({key} is "):
            Watcher([folder]).update()


@pytest.mark.parametrize(
    "file", ["config.json", "env.json", "summary.json", "partition.json", "rounds.jsonl"]
)
@pytest.mark.parametrize("content", [DEEP, "9" * 5000, "null", '{"a": "\\ud800"}', "\0", "{}"])
def test_any_content_is_a_sentence(file: str, content: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    write_partition(folder)
    (folder / file).write_text(content + "\n")
    if (file, content) == ("env.json", "{}"):
        read_all(folder, tmp_path / "r.html")
        return
    with pytest.raises(EpisodeError):
        read_all(folder, tmp_path / "r.html")


def test_values_nested_too_deeply_to_compare_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    nested: Any = 1
    for _ in range(300):
        nested = {"a": nested}
    change(folder / "config.json", "task.more", nested)
    with pytest.raises(EpisodeError, match="nested more than 40 levels deep"):
        read_all(folder, tmp_path / "r.html")


@pytest.mark.parametrize("kept", [0, 5, 19])
def test_an_ended_run_with_missing_rounds_is_refused(kept: int, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:kept]))
    if not kept:
        path.unlink()
    message = rf"rounds\.jsonl is damaged \(it has {kept} rounds, but summary\.json says 20\)"
    with pytest.raises(EpisodeError, match=message):
        store.find_runs([folder])
    with pytest.raises(EpisodeError, match=message):
        Watcher([folder]).update()


@pytest.mark.parametrize("key", ["loss", "exchanges", "seconds", "metrics"])
def test_a_summary_that_contradicts_its_rounds_is_refused(key: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    change(folder / "summary.json", key, {"test_loss": 0.5} if key == "metrics" else 3)
    with pytest.raises(
        EpisodeError, match=rf"summary\.json is damaged \({key} is .*, but the last"
    ):
        store.find_runs([folder])


def test_rounds_out_of_order_are_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a") / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:5], lines[6], lines[5], *lines[7:]]))
    with pytest.raises(EpisodeError, match=r"line 6 \(round is 6, but must be 5\)"):
        store.find_runs([tmp_path])


@pytest.mark.parametrize("file", ["summary.json", "env.json", "partition.json", "rounds.jsonl"])
def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(file: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(EpisodeError, match=rf"{file} .*(not a regular file|has 0 rounds)"):
        read_all(folder, tmp_path / "r.html")


@pytest.mark.parametrize("text", ["[]", "{}", '{"runs": 3}', '{"runs": [1]}', "no json", DEEP])
def test_a_damaged_sweep_is_one_sentence(text: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(EpisodeError, match=r"sweep\.json (is damaged|cannot be read)"):
        store.find_runs([tmp_path])


@pytest.mark.parametrize("name", ["../secret", "/etc", "..", "", "a/../../secret", "link"])
def test_a_sweep_names_no_runs_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    make_run(tmp_path / "secret")
    folder = tmp_path / "sweep"
    make_run(folder / "mine")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "sweep.json").write_text(json.dumps({"axes": {}, "runs": [name, "mine"]}))
    with pytest.raises(EpisodeError, match="is not the name of a folder beside it"):
        store.find_runs([folder])
    with pytest.raises(EpisodeError, match="is not the name of a folder beside it"):
        Watcher([folder]).table()


def test_a_watched_run_that_is_resumed_is_read_anew(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", status="running")
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:9]))
    watcher = Watcher([folder])
    (run,) = watcher.update()
    again = [line.replace('"seconds": 0', '"seconds": 12') for line in lines[4:12]]
    path.with_name("new").write_text("".join(lines[:4] + again))  # killed, and resumed
    path.with_name("new").rename(path)
    watcher.update()
    assert len(run.losses) == 12
