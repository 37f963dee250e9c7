"""A run's folder while it is written: no links are followed, and it stays the run's own."""

from __future__ import annotations

import math
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.state import ServerState
from episode.files import lock
from episode.results import store
from episode.runs.checkpoints import Checkpoints
from episode.runs.config import read_experiment
from episode.runs.records import Observe, Run
from episode.runs.tensorboard import tensorboard_events
from episode.runs.trainer import job_of, train
from episode.studies.grid import read_grid
from episode.studies.sweep import SweepOptions, sweep

SETTINGS = ["task=synthetic", "budget.rounds=4", "budget.local_steps=2"]
EXPLODING = ["algorithm=fedavg", "schedule.eta=1000", "budget.rounds=50"]


def play(folder: Path, observe: Observe | None = None, *settings: str) -> Run:
    return train(job_of(read_experiment(None, [*SETTINGS, *settings])), folder, observe)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "diary"
    path.write_text("dear diary")
    return path


def test_a_lock_that_is_a_link_is_refused_and_its_target_untouched(
    tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(victim)
    with pytest.raises(EpisodeError, match=r"cannot be written: \.lock is a symbolic link"):
        play(tmp_path / "run")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.lock").symlink_to(victim)
    experiments, axes = read_grid(None, SETTINGS, ["seed=0,1"])
    with pytest.raises(EpisodeError, match=r"sweep\.lock is a symbolic link"):
        sweep(experiments, SweepOptions(tmp_path / "sweep", 1, axes=axes))
    assert victim.read_text() == "dear diary"


def test_a_lock_keeps_what_its_file_holds_and_waits_for_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "hard").write_text("old")
    held = lock(tmp_path / "hard")
    assert held is not None
    with held:
        assert lock(tmp_path / "hard") is None
    assert (tmp_path / "hard").read_text() == "old"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        lock(tmp_path / "pipe")


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "config.json", "env.json", "rounds.jsonl", "summary.json", "model.safetensors",
    "config.json.tmp", "rounds.jsonl.tmp", "model.safetensors.tmp",
    "checkpoint/state.safetensors", "checkpoint/state.safetensors.tmp",
])  # fmt: skip
def test_no_link_in_a_folder_is_followed(name: str, tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    try:
        assert play(tmp_path / "run", None, "task=digits").status == "finished"
        assert not link.is_symlink()
    except EpisodeError as error:  # an existing config or summary is read first
        assert "diary" not in str(error)  # noqa: PT017
    assert victim.read_text() == "dear diary"


def test_folders_inside_that_are_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("run/checkpoint", "tracked/events"):
        link = tmp_path / name
        link.parent.mkdir()
        link.symlink_to(tmp_path / "elsewhere")
    for settings in ([], EXPLODING):
        with pytest.raises(OSError, match="A symbolic link is not followed"):
            play(tmp_path / "run", None, *settings)
    job = job_of(read_experiment(None, SETTINGS))
    with pytest.raises(OSError, match="A symbolic link is not followed"):  # also on other ranks
        Checkpoints(tmp_path / "run" / store.CHECKPOINT, job).write(
            ServerState(*job.task.initial()), {}
        )
    with tensorboard_events(tmp_path / "tracked") as write:
        with pytest.raises(OSError, match="A symbolic link is not followed"):
            write({"round": 0, "loss": 1.0})
    experiments, axes = read_grid(None, SETTINGS, ["seed=0"])
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / experiments[0].name).symlink_to(tmp_path / "elsewhere")
    (outcome,) = sweep(experiments, SweepOptions(tmp_path / "sweep", 1, axes=axes))
    assert outcome.status == "failed"
    assert "A symbolic link is not followed" in outcome.reason
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("checkpoint_seconds", [0, 1000])
def test_a_folder_that_another_run_has_taken_over_is_left_to_it(
    tmp_path: Path, checkpoint_seconds: int
) -> None:
    folder, saved = tmp_path / "run", {}

    def replace_folder(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            shutil.rmtree(folder)
            play(folder, None, "seed=7")
            saved.update(contents(folder))

    with pytest.raises(EpisodeError, match="was removed or replaced during this run"):
        play(folder, replace_folder, f"record.checkpoint_seconds={checkpoint_seconds}")
    assert saved
    assert contents(folder) == saved
    assert store.read_run(folder).config["seed"] == 7


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl", "."])
def test_a_run_stops_when_its_files_are_taken_away(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def remove(record: dict[str, Any]) -> None:
        if record["round"] == 3:  # the last: only a checkpoint, the model and a summary follow
            folder.rename(tmp_path / "away") if name == "." else (folder / name).unlink()

    with pytest.raises(EpisodeError, match="was removed or replaced during this run"):
        play(folder, remove)
    assert not (folder / "summary.json").exists()
    assert not (folder / "model.safetensors").exists()


def test_a_folder_that_is_just_being_removed_is_named_although_it_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go first: the one that is being written cannot be renamed any more."""
    save = checkpoint.save_file

    def saving(tensors: Any, path: Path, metadata: Any) -> None:
        save(tensors, path, metadata)
        path.unlink()

    monkeypatch.setattr(checkpoint, "save_file", saving)
    with pytest.raises(EpisodeError, match="was removed during this run"):
        play(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint").is_dir()


def test_a_diverged_run_writes_nothing_into_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    folder, saved = tmp_path / "run", {}

    def replace_folder(record: dict[str, Any]) -> None:
        if not math.isfinite(record["loss"]):
            shutil.rmtree(folder)
            play(folder, None, "seed=7")
            saved.update(contents(folder))

    with pytest.raises(EpisodeError, match="was removed or replaced"):
        play(folder, replace_folder, *EXPLODING)
    assert saved
    assert contents(folder) == saved


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o077])
def test_all_files_have_the_mode_of_the_umask(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    for left in ("model.safetensors.tmp", "checkpoint/state.safetensors.tmp"):  # by a killed run
        (folder / left).touch(0o600)
    before = os.umask(umask)
    try:
        play(folder, None, "task=digits")
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}
    assert len(modes) >= 6
    assert set(modes.values()) == {0o666 & ~umask}, modes
