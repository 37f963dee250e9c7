"""Live views: `episode watch` and TensorBoard events."""

from __future__ import annotations

import fcntl
import math
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from episode.errors import EpisodeError
from episode.results.groups import describe_differences
from episode.results.watch import WatchedRun, Watcher, is_locked, sparkline
from episode.runs.config import read_experiment
from episode.runs.tensorboard import tensorboard_events
from episode.runs.trainer import job_of, train


def test_an_update_reads_what_was_added_and_waits_for_half_lines(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", rounds=10, status="running")
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:20])
    run = WatchedRun(folder)
    run.update()
    assert run.last["round"] == 3
    path.write_text("".join(lines))
    run.update()
    assert run.last["round"] == 9
    assert len(run.losses) == 10
    path.write_text("".join(lines[:2]))  # it was killed, and goes on from a checkpoint
    run.update()
    assert run.last["round"] == 1
    assert len(run.losses) == 2


def test_running_stopped_and_ended_runs_have_different_statuses(tmp_path: Path) -> None:
    make_run(tmp_path / "done", status="diverged")
    going = make_run(tmp_path / "going", seed=1, status="running")
    make_run(tmp_path / "left", seed=2, status="running")
    watcher = Watcher([tmp_path])
    with (going / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(going / ".lock")
        statuses = {f.folder.name: f.status for f in watcher.update()}
        assert statuses == {"done": "diverged", "going": "running", "left": "stopped"}
        assert watcher.is_active()
    assert not is_locked(going / ".lock")
    assert not watcher.is_active()
    assert len(watcher.table().rows) == 3
    with pytest.raises(EpisodeError, match="There is no folder"):
        Watcher([tmp_path / "nowhere"])


def test_a_study_between_two_trials_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "locks").mkdir()
    watcher = Watcher([tmp_path])
    watcher.update()
    with (tmp_path / "locks" / "trial-0").open("w") as lock:
        assert not watcher.is_active()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert watcher.is_active()
    assert watcher.is_active()
    monkeypatch.setattr("episode.results.watch.BETWEEN_TRIALS", 0.0)
    assert not watcher.is_active()


def test_runs_are_described_by_the_settings_in_which_they_differ() -> None:
    def config(task: str = "snli", similarity: float = 30.0, **budget: int) -> dict[str, Any]:
        algorithm = {"name": "celgc" if similarity else "episode"}
        record = {"evaluate_every": budget.get("local_steps", 1)}
        values = {"name": task, "similarity": similarity}
        return {"task": values, "algorithm": algorithm, "budget": budget, "record": record}

    assert describe_differences([config(), config(similarity=0.0)]) == [
        "similarity 30",
        "similarity 0",
    ]
    by_steps = [config(local_steps=4, rounds=8), config(local_steps=8, rounds=4)]
    assert describe_differences(by_steps) == ["local_steps 4", "local_steps 8"]
    assert describe_differences([config(rounds=4), config(rounds=8)]) == ["rounds 4", "rounds 8"]
    assert describe_differences([*by_steps, config("digits")])[1:] == [
        "snli, local_steps 8",
        "digits",
    ]
    assert describe_differences([config(), config()]) == ["", ""]


def test_a_sparkline_falls_with_its_values() -> None:
    assert sparkline([3.0, 2.0, 1.0, 0.0], 4) == "█▆▃▁"
    assert sparkline([1.0]) == ""
    assert sparkline([1.0, math.nan, 2.0, math.inf]) == "▁█"


def test_tracked_events_are_the_rounds(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    experiment = read_experiment(None, ["task=synthetic", "budget.rounds=5"])
    with tensorboard_events(tmp_path) as tracker:
        run = train(job_of(experiment), tmp_path, tracker)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    for tag, key in (("round/loss", "loss"), ("costs/exchanges", "exchanges")):
        assert [e.step for e in events.Scalars(tag)] == [r["round"] for r in run.history]
        assert [e.value for e in events.Scalars(tag)] == pytest.approx(
            [r[key] for r in run.history], rel=1e-6
        )
    assert events.Scalars("metrics/gap")[-1].value == pytest.approx(
        run.summary["metrics"]["gap"], rel=1e-6
    )


def test_the_loss_of_local_steps_is_called_so(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    columns = Watcher([tmp_path]).table().columns
    assert "local_loss" in columns
    assert "loss" not in columns
