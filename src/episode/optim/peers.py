"""The processes that train together, and their collectives."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from episode.core.vectors import blocks_of, cut, holds
from episode.errors import EpisodeError

log = logging.getLogger("episode")

if dist.is_available():  # early, because its functions keep the process group they find
    import torch.distributed.nn


class Peers:
    """The processes of a group of torch.distributed; this one alone if there is none.

    Args:
        group: The process group; None for all processes.

    Raises:
        EpisodeError: A group is given, but torch.distributed has not been started.
    """

    def __init__(self, group: Any) -> None:
        if group is not None and not _ready():
            raise EpisodeError(
                "process_group is given, but there are no processes: call "
                "torch.distributed.init_process_group first."
            )
        self._group = group

    def warn_if_alone(self) -> None:
        """Say that nobody else takes part, which is seldom meant."""
        if _ready():
            return
        started = int(os.environ.get("WORLD_SIZE", "1"))
        text = "FederatedSGD trains alone and averages with nobody: "
        if started > 1:
            text += f"{started} processes were started, but "
        log.warning(
            "%sthere is no process group. Start the script with torchrun, and call "
            "torch.distributed.init_process_group before you make the optimizer.",
            text,
        )

    @property
    def size(self) -> int:
        """Number of processes."""
        return dist.get_world_size(self._group) if _ready() else 1

    def mean(self, blocks: list[Tensor]) -> list[Tensor]:
        """Return the mean over all processes of each block."""

        def average(flat: Tensor) -> None:
            flat *= 1 / self.size
            dist.all_reduce(flat, group=self._group)

        return blocks if self.size == 1 else _together(blocks, average)

    def of_first(self, blocks: list[Tensor]) -> list[Tensor]:
        """Return the first process's blocks."""
        return _together(blocks, lambda flat: dist.broadcast(flat, group=self._group, group_src=0))


def _together(blocks: list[Tensor], collective: Callable[[Tensor], Any]) -> list[Tensor]:
    """Return the blocks after one collective, in the first block's type.

    Blocks whose values this type does not hold (float64 buffers of a float32 model) go in another.
    """
    first, result = blocks[0].dtype, list(blocks)
    fit = [holds(first, block.dtype) for block in blocks]
    for chosen, dtype in ((True, first), (False, torch.float64)):
        places = [k for k, fits in enumerate(fit) if fits == chosen]
        if places:
            flat = torch.cat([blocks[k].reshape(-1).to(dtype) for k in places])
            collective(flat)
            parts = blocks_of(cut(flat, [blocks[k] for k in places]))
            for k, part in zip(places, parts, strict=True):
                result[k] = part
    return result


def _ready() -> bool:
    return dist.is_available() and dist.is_initialized()
