"""A rank that is lost: with restarts it is the same run, without all say who, when and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from launch import PROGRAMS, Ended, torchrun
from safetensors.torch import load_file

from episode.results.store import read_rounds

TASK = Path(__file__).parents[2] / "examples" / "my_task.py"
SETTINGS = [
    "task.num_clients=3", "algorithm=episode", "algorithm.momentum=0.5",
    "budget.rounds=5", "budget.local_steps=2", "record.checkpoint_seconds=0",
    "engine.timeout_seconds=15",
]  # fmt: skip
FAULTS = [
    "kill:probe:2:1",
    "kill:local:2:0",
    "kill:collective:2:1",
    "kill:checkpoint:2:1",
    "kill:checkpoint:2:0",
]


def run(folder: Path, fault: str, restarts: int = 0, size: int = 2, *more: str) -> Ended:
    sets = [a for s in (*SETTINGS, *more) for a in ("--set", s)]
    command = [str(PROGRAMS / "faulty.py"), "run", "--task", f"{TASK}:Waves", *sets]
    mark = str(folder / "struck")
    command += ["--folder", str(folder / "run")]
    return torchrun(size, command, restarts=restarts, FAULT=fault, FAULT_MARK=mark)


def same(a: Path, b: Path) -> None:
    models = [load_file(f / "run" / "model.safetensors") for f in (a, b)]
    assert all(torch.equal(models[0][k], models[1][k]) for k in models[0])
    rounds = [read_rounds(f / "run" / "rounds.jsonl") for f in (a, b)]
    assert [{**r, "seconds": 0} for r in rounds[0]] == [{**r, "seconds": 0} for r in rounds[1]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = run(folder, "kill:probe:99:0")
    assert ended.code == 0, ended.output
    return folder


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_restarted_run_is_the_same_run(fault: str, undisturbed: Path, tmp_path: Path) -> None:
    ended = run(tmp_path, fault, restarts=1)
    assert (tmp_path / "struck").exists()
    assert ended.code == 0, ended.output
    same(tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill:local:2:0", "kill:checkpoint:2:1", "kill:checkpoint:2:0"])
def test_a_restarted_run_with_client_states_in_files_is_the_same_run(
    fault: str, undisturbed: Path, tmp_path: Path
) -> None:
    ended = run(tmp_path, fault, 1, 2, "engine.state_memory_mb=0")
    assert (tmp_path / "struck").exists()
    assert ended.code == 0, ended.output
    assert len(list(tmp_path.rglob("*.rows"))) == 2
    same(tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_without_restarts_the_survivors_say_who_and_when(fault: str, tmp_path: Path) -> None:
    _, event, _, lost = fault.split(":")
    ended = run(tmp_path, fault)
    assert ended.code != 0
    where = f"in the {'probe' if event == 'collective' else event} phase of round 2"
    if event == "checkpoint":
        where = f"at the checkpoint after round {1 if lost == '1' else 0}"
    assert f"Error: Rank {1 - int(lost)} stops " in ended.output, ended.output
    gone = f"rank {lost} is gone (killed, hung or unreachable), last seen {where}"
    assert gone in ended.output, ended.output
    assert ended.output.count("Traceback") <= 1  # torchrun's own


@pytest.mark.long
def test_a_rank_that_hangs_counts_as_lost_after_the_timeout(
    undisturbed: Path, tmp_path: Path
) -> None:
    ended = run(tmp_path, "stop:local:2:1", restarts=1)
    gone = "rank 1 is gone (killed, hung or unreachable), last seen in the local phase of round 2"
    assert f"Rank 0 stops in the local phase of round 2: {gone}" in ended.output
    assert ended.code == 0, ended.output
    same(tmp_path, undisturbed)


@pytest.mark.long
def test_of_three_ranks_both_survivors_name_the_third(tmp_path: Path) -> None:
    ended = run(tmp_path, "kill:local:1:1", size=3)
    assert ended.code != 0
    for survivor in (0, 2):
        text = (
            rf"Rank {survivor} stops .*: rank 1 is gone .*, last seen in the local phase of round 1"
        )
        assert re.search(text, ended.output), ended.output


@pytest.mark.long
def test_ranks_that_drift_apart_are_found_out(tmp_path: Path) -> None:
    ended = run(tmp_path, "flip:probe:10:1", 0, 2, "budget.rounds=11")
    assert ended.code != 0
    assert "Rank 1 holds another model than rank 0 at the start of round 10" in ended.output
