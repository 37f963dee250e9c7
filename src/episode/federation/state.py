"""All that changes during a run. It lives here and nowhere else, so checkpoints are complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor

Status = Literal["running", "finished", "diverged", "failed"]


@dataclass
class Buffers:
    """A model's buffers, such as BatchNorm's statistics: averaged, never corrected or clipped."""

    floats: Tensor = field(default_factory=lambda: torch.empty(0))
    """`[b]`: their mean over the cohort is taken. In x's type, if it holds them all."""
    integers: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """`[k]`: their maximum over the cohort is taken."""

    @property
    def nbytes(self) -> int:
        """Their size when they are sent."""
        return self.floats.nbytes + self.integers.nbytes

    def left_the_finite(self, before: Buffers | None = None) -> bool:
        """Whether a value is NaN or infinite that was not so before, such as a mask of -∞ was."""
        return any(
            left_the_finite(tensor, None if before is None else vars(before)[name])
            for name, tensor in vars(self).items()
        )


@dataclass
class Counts:
    """Costs of the run so far. Compare algorithms by all of these, not by rounds alone."""

    exchanges: int = 0
    """How often the server waited for its cohort: twice a round for EPISODE, once for FedAvg."""
    bytes_up: int = 0
    """Bytes sent by all clients in vectors and buffers, without a few scalars a round."""
    bytes_down: int = 0
    gradients: int = 0
    """Batches that all clients together have differentiated."""
    seconds: float = 0.0
    """Training time, without evaluation and checkpoints."""


@dataclass
class ServerState:
    """State of the server between two rounds."""

    x: Tensor
    """x̄_r, `[d]`."""
    buffers: Buffers = field(default_factory=Buffers)
    round: int = 0
    """r, the number of rounds played."""
    memory: Tensor | None = None
    """Mean over all N of the clients' memories, `[d]` (Remembered)."""
    velocity: Tensor | None = None
    """The server's momentum, `[d]` (Synchronous)."""
    outer: dict[str, Tensor] = field(default_factory=dict)
    """What the server step keeps from round to round, such as its momentum, by name."""
    counts: Counts = field(default_factory=Counts)


@dataclass
class ClientState:
    """State of one client between messages."""

    anchor: Tensor | None = None
    """G_r^i, `[d]`, from the probe to the end of the round (Resampled)."""
    memory: Tensor | None = None
    """Mean raw gradient of its last round, `[d]`; None stands for zero (Remembered)."""
    velocity: Tensor | None = None
    """Momentum, or the mean of gradients that AdamW keeps, `[d]`."""
    second: Tensor | None = None
    """The mean of squared gradients that AdamW keeps, `[d]`."""
    steps: Tensor | None = None
    """How many steps are in these means, `[1]`, a whole number."""

    @classmethod
    def of(cls, given: Mapping[str, Tensor]) -> ClientState:
        """Return the state of which these are the tensors, among others."""
        return cls(**{f.name: given.get(f.name) for f in fields(cls)})

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint between two rounds must hold."""
        names = ("memory", "velocity", "second", "steps")
        held = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in held.items() if tensor is not None}


def left_the_finite(now: Tensor, before: Tensor | None = None) -> bool:
    """Whether an element of `now` is NaN or infinite, and is not the same as it was before."""
    lost = ~torch.isfinite(now)
    if before is not None and lost.any():
        lost &= ~((now == before) | (torch.isnan(now) & torch.isnan(before)))
    return bool(lost.any())
