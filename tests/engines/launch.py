"""Starts the processes of a cluster on this machine, and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "PYTEST"))},
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Ended:
    """One process after its end; a negative code is the signal that ended it."""

    code: int
    output: str


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def ranks(
    size: int,
    command: Sequence[str],
    *,
    timeout: float = 240,
    each: Mapping[int, Sequence[str]] | None = None,
    missing: Sequence[int] = (),
    **variables: str,
) -> list[Ended]:
    """Python programs as the ranks of one cluster, without torchrun; `each` adds arguments."""
    port = str(free_port())
    processes = []
    for rank in range(size):
        if rank in missing:
            continue
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        argv = [sys.executable, *command, *(each or {}).get(rank, ())]
        processes.append(_start(argv, {**ENVIRONMENT, **place, **variables}))
    return [_end(process, timeout) for process in processes]


def torchrun(
    size: int,
    command: Sequence[str],
    *,
    restarts: int = 0,
    timeout: float = 240,
    **variables: str,
) -> Ended:
    """A Python program under torchrun; the output is that of all ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    launcher += ["--nproc-per-node", str(size), "--max-restarts", str(restarts)]
    launcher += ["--monitor-interval", "0.1"]
    return _end(_start([*launcher, *command], {**ENVIRONMENT, **variables}), timeout)


def _start(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str], timeout: float) -> Ended:
    """Waits; whatever is left of the process and its children afterwards is ended."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
        raise AssertionError(f"Still running after {timeout:g} s:\n{output}") from None
    return Ended(process.returncode, output)
