"""How the processes of a cluster find each other, and whether they may start together."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from episode.errors import ClusterError, EpisodeError, differences

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def under_torchrun() -> bool:
    """Whether torchrun, or a launcher like it, started this process as one of several."""
    return all(os.environ.get(name) for name in _VARIABLES)


def objection_to(hellos: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why these processes may not start together, the same on every rank, or None."""
    for rank, hello in enumerate(hellos):
        if "error" in hello:
            return f"Rank {rank} cannot start: {hello['error']}"
    for rank, hello in enumerate(hellos):
        for key, (first, other) in differences(hellos[0], hello).items():
            return (
                f"Ranks 0 and {rank} are about to run different things: {key} is "
                f"{json.dumps(first)} on rank 0 and {json.dumps(other)} on rank {rank}. "
                "Give all of them the same configuration and the same versions."
            )
    return None


def meeting_point(timeout: float) -> tuple[Store, int, int]:
    """Return the shared store, this process's rank, and the number of processes."""
    if not under_torchrun():
        missing = ", ".join(name for name in _VARIABLES if not os.environ.get(name))
        raise EpisodeError(
            f"The distributed engine has nobody to meet ({missing} not set): start it with "
            "torchrun --nproc-per-node 2 -m episode run config.toml"
        )
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except (RuntimeError, ValueError, OSError) as error:
        rank, reason = os.environ["RANK"], first_line(error)
        if rank == "0":
            raise ClusterError(
                f"Rank 0 waited at {address}, but not all of {os.environ['WORLD_SIZE']} ranks came "
                f"({reason}): were they started, with this address?"
            ) from None
        raise ClusterError(
            f"Rank {rank} on {socket.gethostname()} cannot reach the rendezvous at "
            f"{address} ({reason}): is rank 0 up, and the port open?"
        ) from None
    return store, rank, size


def first_line(error: BaseException) -> str:
    """Return the first line of an error of gloo or NCCL, without source file and stack."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.rpartition("] ")[2].split(". This is typically")[0][:160].rstrip(". ")
