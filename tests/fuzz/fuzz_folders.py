"""Run folders with damaged bytes or JSON: the right result or one sentence, never other numbers."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from fuzzing import (
    Case,
    Kind,
    as_bytes,
    as_text,
    command,
    is_one_sentence,
    odd_json,
    own_folder,
    quiet,
)
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import episode
from episode import EpisodeError
from episode.runs.records import Run

CLI = ["run", "-q", "--set", "task=quadratics", "--set", "budget.rounds=3", "--set", "seed=1"]
ROUNDS = 4


class PowerCut(BaseException):
    """Stops a run in the middle."""


def fit(folder: Path | None, stop_after: int | None = None) -> Run:
    """Train a small model with memories, momenta, buffers, evaluations and named clients."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    g = torch.Generator().manual_seed(0)
    silos = [
        (torch.randn(6, 2, generator=g) + i, torch.randint(2, (6,), generator=g)) for i in range(2)
    ]

    def observe(record: dict[str, Any]) -> None:
        if record["round"] == stop_after:
            raise PowerCut

    return episode.fit(
        model, silos, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        algorithm=episode.Algorithm.named("episode_plus_plus", momentum=0.9),
        eta=0.1, gamma=0.05, local_steps=2, rounds=ROUNDS, batch_size=3, folder=folder,
        holdout=0.34, checkpoint_seconds=0, observe=observe, workers=1, client_names=["A", "B"],
    )  # fmt: skip


@functools.cache
def made() -> Path:
    """Return a folder with runs that have finished, and one that was stopped in the middle."""
    home = Path(tempfile.mkdtemp(prefix="episode-fuzz-"))
    with quiet():
        fit(home / "finished")
        with contextlib.suppress(PowerCut):
            fit(home / "stopped", stop_after=2)
    assert command(*CLI, "--folder", str(home / "by command")).code == 0
    return home


@functools.cache
def whole() -> Run:
    """Return the run that was never stopped."""
    with quiet():
        return fit(None)


KEPT = (
    "config.json", "env.json", "rounds.jsonl", "summary.json", "clients.jsonl",
    "client_names.json", "model.safetensors", "checkpoint/state.safetensors", ".lock",
)  # fmt: skip
CHECKPOINT = "checkpoint/state.safetensors"
places = st.floats(0, 1, exclude_max=True)
damages = st.one_of(
    st.fixed_dictionaries({"flip": places, "bit": st.integers(0, 7)}),
    st.fixed_dictionaries({"flip": places, "bit": st.integers(0, 7)}),
    st.fixed_dictionaries({"cut": places}),
    st.fixed_dictionaries({"insert": places, "bytes": st.binary(max_size=6).map(as_text)}),
    st.fixed_dictionaries({"digit": places, "to": st.sampled_from("0123456789-.eE")}),
    st.fixed_dictionaries({"json": places, "value": odd_json}),
    st.fixed_dictionaries({"json": places, "value": odd_json}),
    st.fixed_dictionaries({"forget": places}),
    st.fixed_dictionaries({"line": places, "act": st.sampled_from(["drop", "twice", "first"])}),
    st.sampled_from(["remove", "empty", "folder", "link", "pipe"]).map(lambda act: {"file": act}),
)
cases = st.fixed_dictionaries(
    {
        "run": st.sampled_from(["finished", "stopped", "stopped", "by command"]),
        "read": st.sampled_from(
            [
                ["compare"],
                ["compare", "--json"],
                ["compare", "--per-silo"],
                ["report"],
                ["watch"],
                ["diagnose", "--steps=1", "--points=1", "--batches=1", "--rehearsal=1", "-q"],
            ]
        ),
        "damage": st.lists(
            st.fixed_dictionaries({"file": st.sampled_from(KEPT), "how": damages}),
            min_size=1,
            max_size=2,
        ),
    }
)


def harm(path: Path, how: dict[str, Any]) -> None:
    """Damage a file; nothing happens to one that is not there."""
    if not path.is_file() or path.is_symlink():
        return
    if "file" in how:
        replace(path, how["file"])
        return
    data = path.read_bytes()
    if "json" in how or "forget" in how:
        data = other_json(data, how)
    elif "line" in how:
        lines = data.splitlines(keepends=True)
        at = int(how["line"] * len(lines))
        new = {"drop": [], "twice": lines[at : at + 1] * 2, "first": lines[:1]}[how["act"]]
        data = b"".join(lines[:at] + new + lines[at + 1 :])
    elif "digit" in how:
        digits = [k for k, byte in enumerate(data) if chr(byte).isdigit()]
        if digits:
            at = digits[int(how["digit"] * len(digits))]
            data = data[:at] + how["to"].encode() + data[at + 1 :]
    elif "flip" in how and data:
        at = int(how["flip"] * len(data))
        data = data[:at] + bytes([data[at] ^ 1 << how["bit"]]) + data[at + 1 :]
    elif "cut" in how:
        data = data[: int(how["cut"] * len(data))]
    elif "insert" in how:
        at = int(how["insert"] * len(data))
        data = data[:at] + as_bytes(how["bytes"]) + data[at:]
    path.write_bytes(data)


def replace(path: Path, act: str) -> None:
    if act == "empty":
        path.write_bytes(b"")
        return
    path.unlink()
    if act == "folder":
        path.mkdir()
    elif act == "link":
        path.symlink_to(path.parent / "elsewhere")
    elif act == "pipe":
        os.mkfifo(path)


def other_json(data: bytes, how: dict[str, Any]) -> bytes:
    """Return JSON, or lines of JSON, with another value in one place or without one."""
    try:
        values = [json.loads(line) for line in (data.split(b"\n") if b"}\n{" in data else [data])]
    except ValueError:
        return data  # no JSON, or no longer
    spots: list[tuple[Any, Any]] = []
    pending: list[Any] = [values]
    while pending:
        owner = pending.pop()
        inside = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for key, value in inside:
            spots.append((owner, key))
            if isinstance(value, (dict, list)):
                pending.append(value)
    owner, key = spots[int(how.get("json", how.get("forget")) * len(spots))]
    if "json" in how:
        owner[key] = how["value"]
    else:
        del owner[key]
    return "\n".join(map(json.dumps, values)).encode() + b"\n"


def check(case: Case) -> str:
    """Damage the copy of a folder, read it, and go on with its run."""
    with own_folder() as here:
        shutil.copytree(made() / case["run"], here / "run")
        for damage in case["damage"]:
            harm(here / "run" / damage["file"], damage["how"])
        command(*case["read"], "run")
        if case["run"] == "by command":
            return goes_on_by_command(here / "run")
        return goes_on(here / "run")


def goes_on(folder: Path) -> str:
    """Call `fit` with the folder again: it must end as the run that was never stopped."""
    has_clients = (folder / "clients.jsonl").exists()  # they may be deleted, but not changed
    try:
        with quiet():
            run = fit(folder)
    except EpisodeError as error:
        is_one_sentence(str(error))
        return "refused"
    assert run.status == whole().status
    assert torch.equal(run.x, whole().x)
    for name, buffer in vars(whole().buffers).items():
        assert torch.equal(getattr(run.buffers, name), buffer)
    assert without_seconds(run.history) == without_seconds(whole().history)
    summary, expected = without_seconds([run.summary, whole().summary])
    if has_clients:
        assert run.history.clients() == whole().history.clients()
    else:
        summary.pop("per_client", None)
        expected.pop("per_client")
    assert summary == expected
    return "the same run"


def without_seconds(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def goes_on_by_command(folder: Path) -> str:
    spoken = command("run", str(folder), "--resume", "--json", "-q")
    if spoken.code:
        return "refused"
    expected = json.loads((made() / "by command" / "summary.json").read_text())
    found = json.loads(spoken.out)
    assert found.pop("folder") == str(folder)
    assert without_seconds([found]) == without_seconds([expected])
    return "the same run"


KIND = Kind("folders", cases, check)
