"""SIGKILL at any moment, resume, and it is the same run: figures and model, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from episode.results.store import read_rounds

SETTINGS = [
    "algorithm=episode_plus_plus", "algorithm.momentum=0.5", "cohorts.kind=uniform",
    "cohorts.cohort_size=4", "budget.rounds=120", "budget.local_steps=4", "engine.workers=2",
    "record.checkpoint_seconds=0", "task.similarity=10", "task.holdout=0.1",
]  # fmt: skip


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    sets = [a for s in (*SETTINGS, *more) for a in ("--set", s)]
    command = [sys.executable, "-m", "episode", "run", *sets, "--folder", str(folder), "--resume"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def rounds_written(folder: Path) -> int:
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1024, pytest.param(0, marks=pytest.mark.long)])
def test_ten_kills_at_random_moments_leave_no_trace(megabytes: int, tmp_path: Path) -> None:
    """With 0 MB for client states, they are in a memory-mapped file."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(timeout=240) == 0
    moments = random.Random(7)
    kills = 0
    budget = f"engine.state_memory_mb={megabytes}"
    while kills < 10:
        process = start(killed, budget)
        # Wait for work to be under way, by what it writes, then for a moment more.
        goal = rounds_written(killed) + moments.randint(1, 4)
        deadline = time.monotonic() + 120
        while process.poll() is None and rounds_written(killed) < goal:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(moments.random() * 0.05)
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        kills += 1
    assert start(killed, budget).wait(timeout=240) == 0

    def metrics(folder: Path) -> list[dict[str, object]]:
        rounds = read_rounds(folder / "rounds.jsonl")
        return [{k: v for k, v in r.items() if k != "seconds"} for r in rounds]

    assert metrics(killed) == metrics(whole)
    clients = [(folder / "clients.jsonl").read_bytes() for folder in (killed, whole)]
    assert clients[0] == clients[1]
    assert b"holdout_accuracy" in clients[0]
    a, b = (load_file(f / "model.safetensors") for f in (killed, whole))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not list(killed.rglob("*.tmp"))
    assert len(list(killed.rglob("*.rows"))) == (0 if megabytes else 1)
