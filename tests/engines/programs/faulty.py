"""`episode`, with a fault that strikes once, at an event: FAULT = kind:event:round:rank.

kind is kill, stop (SIGSTOP) or flip (a bit of x̄); event is probe, local, collective or checkpoint.
The file FAULT_MARK remembers that it has struck, so that a restarted run is spared.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from episode.cli.main import main
from episode.engines.cluster import Cluster
from episode.federation import checkpoint
from episode.federation.worker import Worker

KIND, EVENT, ROUND, RANK = os.environ["FAULT"].split(":")
MARK = Path(os.environ["FAULT_MARK"])


def strike() -> None:
    try:
        MARK.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP if KIND == "stop" else signal.SIGKILL)


def in_a_phase(serve: Any) -> Any:
    def served(self: Worker, *args: Any, round: int, **rest: Any) -> Any:
        if round == int(ROUND):
            if KIND == "flip" and not MARK.exists():
                MARK.touch()
                rest["x"].view(-1)[0] += 1e-3
            elif KIND != "flip":
                strike()
        return serve(self, *args, round=round, **rest)

    return served


def in_a_collective(self: Cluster, flat: Tensor) -> None:
    if self._where.endswith(f"of round {ROUND}") and not MARK.exists():
        dist.all_reduce(flat, async_op=True)
        strike()
    add_up(self, flat)


def while_writing(tensors: Any, path: Path, metadata: Any) -> None:
    name = path.name.removesuffix(".tmp")
    if name.startswith(f"clients-{ROUND}-" if RANK != "0" else "state") and not MARK.exists():
        path.write_bytes(b"half a file")
        strike()
    save_file(tensors, path, metadata)


if os.environ["RANK"] == RANK:
    if EVENT in ("probe", "local"):
        setattr(Worker, EVENT, in_a_phase(getattr(Worker, EVENT)))
    elif EVENT == "collective":
        add_up = Cluster.add_up
        Cluster.add_up = in_a_collective  # type: ignore[method-assign]
    else:
        save_file = checkpoint.save_file
        checkpoint.save_file = while_writing  # type: ignore[assignment]
main()
