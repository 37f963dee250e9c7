"""Where the processes of a cluster meet, and whether they may start together."""

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
_met: list[tuple[Store, int, int]] = []


def under_torchrun() -> bool:
    """Whether this process was started as one of several, by torchrun or its like."""
    return all(os.environ.get(name) for name in _VARIABLES)


def objection_to(hellos: Sequence[Mapping[str, Any]]) -> str | None:
    """Why these may not start together; the same on every rank."""
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
    """The store at which all meet, this process's rank there, and how many they are."""
    if not under_torchrun():
        missing = ", ".join(name for name in _VARIABLES if not os.environ.get(name))
        raise EpisodeError(
            f"The distributed engine has nobody to meet ({missing} not set): start it with "
            "torchrun --nproc-per-node 2 -m episode run config.toml"
        )
    if _met:  # in an earlier run of this process; its host cannot be made twice
        return _met[0]
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
    _met.append((store, rank, size))
    return store, rank, size


def first_line(error: BaseException) -> str:
    """An error of gloo's or NCCL's without its source file and without its stack."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.rpartition("] ")[2].split(". This is typically")[0][:160].rstrip(". ")
