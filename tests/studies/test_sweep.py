"""Sweeps: the product, what is skipped, what goes on, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import kill_when

from episode.errors import EpisodeError
from episode.runs.config import read_experiment
from episode.studies.grid import parse_axis, read_grid
from episode.studies.sweep import NoProgress, RunOutcome, SweepOptions, sweep

TINY = ["task=synthetic", "budget.rounds=3", "record.evaluate_every=1"]


class Listener(NoProgress):
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[RunOutcome] = []

    def begin(self, name: str, experiment: object) -> None:
        self.begun.append(name)

    def end(self, outcome: RunOutcome) -> None:
        self.ended.append(outcome)


def test_axes_are_lists_ranges_and_names() -> None:
    assert parse_axis("seed=0..2") == ("seed", [0, 1, 2])
    assert parse_axis("algorithm=celgc, episode") == ("algorithm", ["celgc", "episode"])
    assert parse_axis("schedule.eta=0.1,1") == ("schedule.eta", [0.1, 1])
    assert parse_axis("schedule.milestones=[[0.5], [0.6, 0.8]]")[1] == [[0.5], [0.6, 0.8]]


def test_the_product_keeps_the_configs_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        "[algorithm]\nmomentum = 0.9\n[task]\nname='synthetic'\n"
        "[sweep]\nalgorithm=['celgc','episode']\nbudget.local_steps=[2, 4]\n'seed'=[0, 1, 2]\n"
    )
    experiments, axes = read_grid(file, [], ["seed=5"])
    assert len(experiments) == 4
    assert axes["seed"] == [5]
    assert {e.algorithm.momentum for e in experiments} == {0.9}
    assert {(e.algorithm.name, e.budget.local_steps) for e in experiments} == {
        (a, i) for a in ("celgc", "episode") for i in (2, 4)
    }


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ([], "needs something to vary"),
        (["algorithm"], "not of the form"),
        (["algorithm=celgc,,episode"], "empty value"),
        (["algorithm=celgc,episod"], "did you mean 'episode'"),
        (["budget.local_step=1,2"], "did you mean 'budget.local_steps'"),
        (["algorithm=celgc", "algorithm=fedavg"], "--over algorithm is given twice"),
        (["seed=4..0"], r"the range is empty, write 0\.\.4"),
        (
            ["task=digits,synthetic"],
            r"cannot compare a sweep over different tasks \(digits, synthetic\)",
        ),
    ],
)
def test_mistakes_are_sentences_before_any_run(over: list[str], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        read_grid(None, [], over)


def test_what_is_set_and_varied_is_a_mistake_and_so_is_what_cannot_be_swept() -> None:
    for key, other in (("seed", "seed"), ("algorithm.name", "algorithm")):
        with pytest.raises(EpisodeError, match=f"{other} is both set and varied"):
            read_grid(None, [f"{key}=3"], [f"{other}=0,1"])
    with pytest.raises(EpisodeError, match=r"did you mean 'budget\.rounds'"):
        read_grid(None, ["budget.rouns=3"], [])


def test_a_table_may_hold_a_range_and_is_for_sweeps_alone(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('task = "synthetic"\n[sweep]\nseed = "2..4"\n')
    assert [e.seed for e in read_grid(file, [], [])[0]] == [2, 3, 4]
    with pytest.raises(EpisodeError, match=r"A \[sweep\] table is for `episode sweep`"):
        read_experiment(file)


def test_ended_runs_are_skipped_and_diverged_ones_are_results(tmp_path: Path) -> None:
    experiments, _ = read_grid(None, [*TINY, "schedule.eta=1e6"], ["algorithm=fedavg,celgc"])
    first = sweep(experiments, SweepOptions(tmp_path, jobs=1))
    assert [o.status for o in first] == ["diverged", "finished"]
    listener = Listener()
    again = sweep(experiments, SweepOptions(tmp_path, jobs=1), listener)
    assert listener.begun == []
    assert [(o.name, o.status) for o in again] == [(o.name, o.status) for o in first]
    assert all(o.skipped for o in listener.ended)


def test_a_run_that_breaks_does_not_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import episode.studies.sweep as module

    experiments, _ = read_grid(None, TINY, ["seed=0..2"])
    real = module.play

    def play(experiment, *rest):  # type: ignore[no-untyped-def]
        if experiment.seed == 1:
            raise RuntimeError("out of memory")
        return real(experiment, *rest)

    monkeypatch.setattr(module, "play", play)
    outcomes = sweep(experiments, SweepOptions(tmp_path, jobs=1))
    assert [o.status for o in outcomes] == ["finished", "failed", "finished"]
    assert "out of memory" in outcomes[1].reason


def test_a_second_sweep_in_the_folder_is_refused(tmp_path: Path) -> None:
    experiments, axes = read_grid(None, TINY, ["seed=0"])

    class Nested(NoProgress):
        def begin(self, name: str, experiment: object) -> None:
            with pytest.raises(EpisodeError, match="Another sweep is running"):
                sweep(experiments, SweepOptions(tmp_path, jobs=1, axes={"seed": [7, 8]}))

    options = SweepOptions(tmp_path, jobs=1, axes=axes)
    assert sweep(experiments, options, Nested())[0].status == "finished"
    assert json.loads((tmp_path / "sweep.json").read_text())["axes"] == {"seed": [0]}


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "episode", "sweep", "--over", "algorithm=celgc,episode",
        "--over", "seed=0,1", "--set", "budget.rounds=30", "--set", "budget.local_steps=2",
        "--set", "record.checkpoint_seconds=0", "--folder", str(folder), *more,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> int:
    return sum(f.read_bytes().count(b"\n") for f in folder.glob("*/rounds.jsonl"))


@pytest.mark.long
def test_a_killed_sweep_repeats_nothing_and_ends_with_the_same_table(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    out, err = start(whole, "--jobs", "1").communicate(timeout=240)
    assert (whole / "table.md").exists(), out + err
    for goal in (20, 70):
        kill_when(start(killed, "--jobs", "2"), lambda g=goal: lines(killed) >= g)
    finished = {p: p.stat().st_mtime_ns for p in killed.glob("*/summary.json")}
    process = start(killed, "--jobs", "2", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert all(o["status"] == "finished" for o in json.loads(out)["runs"])
    for name in ("table.md", "table.csv", "table.tex"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in finished.items())
    assert not list(killed.rglob("*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize("rounds_before", [10, 0])
def test_a_run_whose_process_dies_fails_alone(tmp_path: Path, rounds_before: int) -> None:
    """The process of one run is killed: the others end in a table, and the exit code is 1."""
    process = start(tmp_path, "--jobs", "2", "--json", "--set", "budget.rounds=60")
    deadline = time.monotonic() + 120
    while lines(tmp_path) < rounds_before or not (victims := players(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(victims[0], signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    statuses = sorted(o["status"] for o in json.loads(out)["runs"])
    assert statuses == ["failed", "finished", "finished", "finished"]
    assert "its process ended with code -9" in err
    assert process.returncode == 1
    assert (tmp_path / "table.md").exists()


def players(pid: int) -> list[int]:
    """The processes in which a sweep plays its runs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {c: Path(f"/proc/{c}/cmdline").read_text() for c in children}
    return [int(c) for c, line in commands.items() if "spawn_main" in line]
