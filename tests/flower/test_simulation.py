"""Flower's simulation, in a separate process, gives the same numbers, folder and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from episode import ALGORITHMS
from episode.results.store import read_json, read_rounds

PROGRAM = Path(__file__).parent / "programs" / "every_algorithm.py"
RUN = [
    "-m", "episode", "run", "--quiet", "--set", "task=digits", "--set", "task.num_clients=3",
    "--set", "task.hidden=8", "--set", "task.time_steps=4", "--set", "budget.rounds=3",
    "--set", "budget.local_steps=2", "--set", "algorithm=scaffold_clipped", "--set",
    "algorithm.momentum=0.5",
]  # fmt: skip


def run(*command: str, code: int = 0, seconds: float = 240) -> str:
    path = f"{PROGRAM.parents[1]}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == code, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_every_algorithm_gives_the_numbers_of_the_simulation_bit_for_bit() -> None:
    output = run(str(PROGRAM))
    for name in ALGORITHMS:
        assert f"{name} differs by 0.0\n" in output


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_engine_is_sound_on_flowers_simulation() -> None:
    output = run(str(PROGRAM.with_name("sound_engine.py")), seconds=800)
    assert "with cohorts of 2 of 6 follows" in output
    assert "a weighted mean is right" in output


@pytest.mark.long
def test_a_run_on_flower_is_stopped_and_goes_on_as_one_of_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(*RUN, "--folder", str(ours))
    run("-c", STOP_AFTER_TWO, *RUN[2:], "--engine", "flower", "--folder", str(theirs), code=130)
    assert len(read_rounds(theirs / "rounds.jsonl")) == 2
    run(*RUN, "--folder", str(theirs), "--resume", "--engine", "flower")
    a, b = (load_file(f / "model.safetensors") for f in (ours, theirs))
    assert all(torch.equal(a[name], b[name]) for name in a)
    first, second = (read_rounds(f / "rounds.jsonl") for f in (ours, theirs))
    assert [{**r, "seconds": 0} for r in first] == [{**r, "seconds": 0} for r in second]
    assert read_json(theirs / "summary.json")["status"] == "finished"


@pytest.mark.long
def test_a_secure_run_on_flowers_simulation_is_stopped_and_goes_on(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(*RUN, "--folder", str(ours))
    secure = ["--engine", "flower", "--set", "engine.secure=true", "--folder", str(theirs)]
    run("-c", STOP_AFTER_TWO, *RUN[2:], *secure, code=130)
    assert len(list((theirs / "sites").iterdir())) == 3
    run(*RUN, *secure, "--resume")
    a, b = (load_file(f / "model.safetensors") for f in (ours, theirs))
    assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-5) for name in a)
    assert len(read_rounds(theirs / "rounds.jsonl")) == 3


STOP_AFTER_TWO = """
import os, signal
from episode.cli.main import main
from episode.federation.rounds import Rounds
play = Rounds.play
def stopping(self, server):
    if server.round == 1:
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
    return play(self, server)
Rounds.play = stopping
main()
"""

WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else find(name, *rest)
from episode.cli.main import main
main()
"""


@pytest.mark.slow
def test_without_the_extra_it_is_named_and_all_else_works(tmp_path: Path) -> None:
    small = ["run", "--set", "task=quadratics", "--set", "budget.rounds=2", "--folder"]
    run("-c", WITHOUT, *small, str(tmp_path / "a"))
    output = run("-c", WITHOUT, *small, str(tmp_path / "b"), "--engine", "flower", code=2)
    assert "pip install 'episode-fl[flower]'" in output
