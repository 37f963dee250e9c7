"""What changes during a run. It lives here and nowhere else, so a checkpoint can be complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Status = Literal["running", "finished", "diverged", "failed"]


@dataclass
class Buffers:
    """A model's buffers (BatchNorm's statistics): averaged with it, not corrected or clipped."""

    floats: Tensor = field(default_factory=lambda: torch.empty(0))
    """`[b]`: averaged over the cohort."""
    integers: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """`[k]`: the cohort's maximum."""

    @property
    def nbytes(self) -> int:
        """What they cost on the wire."""
        return self.floats.nbytes + self.integers.nbytes


@dataclass
class Counts:
    """What the run has cost so far. Compare algorithms by all of these, not by rounds alone."""

    exchanges: int = 0
    """Times that the server waited for its cohort: two a round for EPISODE, one for FedAvg."""
    bytes_up: int = 0
    """Vectors and buffers sent by all clients; a few scalars a round are left out."""
    bytes_down: int = 0
    gradients: int = 0
    """Batches differentiated, by all clients together."""
    seconds: float = 0.0
    """Training time: no evaluation, no checkpoints."""


@dataclass
class ServerState:
    """The server between two rounds."""

    x: Tensor
    """x̄_r, `[d]`."""
    buffers: Buffers = field(default_factory=Buffers)
    round: int = 0
    """r: rounds played."""
    memory: Tensor | None = None
    """Mean over all N of the clients' memories, `[d]` (Remembered)."""
    velocity: Tensor | None = None
    """The server's momentum, `[d]` (Synchronous)."""
    counts: Counts = field(default_factory=Counts)


@dataclass
class ClientState:
    """What one client keeps between messages."""

    anchor: Tensor | None = None
    """G_r^i, `[d]`: from its probe to the end of the round (Resampled)."""
    memory: Tensor | None = None
    """Mean raw gradient of its last round, `[d]`; None stands for zero (Remembered)."""
    velocity: Tensor | None = None
    """Momentum, `[d]`."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint between two rounds must hold."""
        held = {"memory": self.memory, "velocity": self.velocity}
        return {name: tensor for name, tensor in held.items() if tensor is not None}
