"""The Slurm script, with stand-ins for Slurm's own commands: one node, two processes on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import ENVIRONMENT, free_port

from episode.results.store import read_run

SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "episode.sbatch"
CONFIG = """
[task]
name = "quadratics"
[budget]
rounds = 4
local_steps = 2
"""


def slurm(folder: Path, srun: str) -> dict[str, str]:
    """Commands and variables as Slurm would provide them; `srun` is a line of shell."""
    commands = {
        "srun": srun,
        "scontrol": f'[ "$1" = show ] && echo 127.0.0.1 || echo "$@" >> {folder}/scontrol.log',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, line in commands.items():
        file = folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{line}\n")
        file.chmod(0o755)
    (folder / "config.toml").write_text(CONFIG)
    return {
        **{k: v for k, v in ENVIRONMENT.items() if not k.startswith("SLURM")},
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-1]",
        "CONFIG": str(folder / "config.toml"),
        "FOLDER": str(folder / "run"),
        "PROCESSES": "2",
        "PORT": str(free_port()),
    }


def test_it_is_valid_shell_and_asks_for_what_it_needs() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True, timeout=30)
    variables = {k: v for k, v in ENVIRONMENT.items() if k not in ("CONFIG", "FOLDER")}
    done = subprocess.run(
        ["bash", str(SCRIPT)], env=variables, capture_output=True, text=True, timeout=30
    )
    assert done.returncode != 0
    assert "CONFIG: name the experiment" in done.stderr


@pytest.mark.slow
def test_it_runs_an_experiment_and_may_be_started_again(tmp_path: Path) -> None:
    environment = slurm(tmp_path, 'shift; exec "$@"')
    for _ in range(2):  # the second time, the run has ended and is read back
        done = subprocess.run(
            ["bash", str(SCRIPT)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            start_new_session=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        run = read_run(tmp_path / "run")
        assert run.status == "finished"
        assert run.summary["cluster"]["ranks"] == 2
    assert not (tmp_path / "scontrol.log").exists()


def test_it_goes_back_into_the_queue_before_its_time_is_up(tmp_path: Path) -> None:
    environment = slurm(tmp_path, f"touch {tmp_path}/started; exec sleep 60")
    process = subprocess.Popen(["bash", str(SCRIPT)], env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=30) == 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "scontrol.log").read_text() == "requeue 7\n"
