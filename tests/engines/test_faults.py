"""A rank that is lost: with restarts it is the same run, without all say who, when and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from launch import PROGRAMS, Ended, torchrun
from safetensors.torch import load_file

from episode.results.store import read_rounds
from fault_matrix import RESUMES

TASK = Path(__file__).parents[2] / "examples" / "my_task.py"
SETTINGS = [
    "task.num_clients=3", "algorithm=episode", "algorithm.momentum=0.5",
    "budget.rounds=5", "budget.local_steps=2", "record.checkpoint_seconds=0",
    "engine.timeout_seconds=15",
]  # fmt: skip
STRUCK = [("probe", 1), ("local", 0), ("average", 1), ("checkpoint", 1), ("checkpoint", 0),
          ("evaluate", 1), ("evaluate", 0)]  # fmt: skip
"""Phases, and the ranks that are struck there."""
HERE = str(Path(__file__).parent)
GONE = "rank {} is gone (killed, hung or unreachable)"


def run(folder: Path, fault: str, restarts: int = 0, size: int = 2, *more: str) -> Ended:
    sets = [a for s in (*SETTINGS, *more) for a in ("--set", s)]
    command = [str(PROGRAMS / "faulty.py"), "run", "--task", f"{TASK}:Waves", *sets]
    mark = str(folder / "struck")
    command += ["--folder", str(folder / "run")]
    variables = {"FAULT": fault, "FAULT_MARK": mark, "PYTHONPATH": HERE}
    return torchrun(size, command, restarts=restarts, **variables)


def same(a: Path, b: Path) -> None:
    models = [load_file(f / "run" / "model.safetensors") for f in (a, b)]
    assert all(torch.equal(models[0][k], models[1][k]) for k in models[0])
    rounds = [read_rounds(f / "run" / "rounds.jsonl") for f in (a, b)]
    assert [{**r, "seconds": 0} for r in rounds[0]] == [{**r, "seconds": 0} for r in rounds[1]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = run(folder, "SIGKILL:probe:99:0")
    assert ended.code == 0, ended.output
    return folder


@pytest.mark.long
@pytest.mark.fault(engine="torchrun", fault="SIGKILL", outcome=RESUMES)
@pytest.mark.parametrize(("phase", "rank"), STRUCK)
def test_a_restarted_run_is_the_same_run(
    phase: str, rank: int, undisturbed: Path, tmp_path: Path
) -> None:
    ended = run(tmp_path, f"SIGKILL:{phase}:2:{rank}", restarts=1)
    assert (tmp_path / "struck").exists()
    assert ended.code == 0, ended.output
    same(tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize(("phase", "rank"), [("local", 0), ("checkpoint", 1), ("checkpoint", 0)])
def test_a_restarted_run_with_client_states_in_files_is_the_same_run(
    phase: str, rank: int, undisturbed: Path, tmp_path: Path
) -> None:
    ended = run(tmp_path, f"SIGKILL:{phase}:2:{rank}", 1, 2, "engine.state_memory_mb=0")
    assert (tmp_path / "struck").exists()
    assert ended.code == 0, ended.output
    assert len(list(tmp_path.rglob("*.rows"))) == 2
    same(tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize(("phase", "lost"), STRUCK[:6])
def test_without_restarts_the_survivors_say_who_and_when(
    phase: str, lost: int, tmp_path: Path
) -> None:
    ended = run(tmp_path, f"SIGKILL:{phase}:2:{lost}")
    assert ended.code != 0
    assert f"Error: Rank {1 - lost} stops " in ended.output, ended.output
    assert f"{GONE.format(lost)}, last seen {where(phase)}" in ended.output, ended.output
    assert ended.output.count("Traceback") <= 1  # torchrun's own


def where(phase: str) -> str:
    """Return where a rank was seen that was struck in this phase of round 2."""
    return {
        "average": "in the probe phase of round 2",
        "checkpoint": "at the checkpoint after round 2",
        "evaluate": "in an evaluation",
    }.get(phase, f"in the {phase} phase of round 2")


@pytest.mark.long
@pytest.mark.fault(engine="torchrun", fault="SIGSTOP", outcome=RESUMES)
@pytest.mark.parametrize(
    ("phase", "rank"),
    [("probe", 1), ("local", 1), ("average", 1), ("checkpoint", 1), ("evaluate", 1)],
)
def test_a_rank_that_hangs_counts_as_lost_after_the_timeout(
    phase: str, rank: int, undisturbed: Path, tmp_path: Path
) -> None:
    short = "engine.timeout_seconds=8"
    ended = run(tmp_path, f"SIGSTOP:{phase}:2:{rank}", 1, 2, short)
    assert f"{GONE.format(rank)}, last seen {where(phase)}" in ended.output, ended.output
    assert ended.code == 0, ended.output
    same(tmp_path, undisturbed)


@pytest.mark.long
def test_of_three_ranks_both_survivors_name_the_third(tmp_path: Path) -> None:
    ended = run(tmp_path, "SIGKILL:local:1:1", size=3)
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
