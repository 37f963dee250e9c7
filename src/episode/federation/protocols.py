"""The seams: what a task, an objective and an engine must offer. Whoever offers it, is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from episode.core.vectors import Vector
from episode.federation.state import Buffers, ClientState

Phase = Literal["probe", "local"]
"""What clients are asked for: the gradient at x̄_r, or I local steps from x̄_r."""


@dataclass(frozen=True)
class Draw:
    """Names one batch: the `index`-th of a client's stream. Equal draws are equal batches."""

    client: int
    stream: Phase
    index: int


@dataclass
class Reply:
    """What a phase returned on one client, or its mean over a cohort."""

    vectors: dict[str, Tensor]
    """`x`, `gradient`, `change` …, each `[d]`: averaged."""
    buffers: Buffers | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers of one client; of a cohort, a list of them in its order. Never averaged."""


class Objective(Protocol):
    """One worker's replica of the problem: a point x, and gradients there on any client's data."""

    x: Tensor
    """The work vector `[d]`, always the point at which gradients are taken; set it in place."""
    blocks: Vector
    """x in the form in which gradients come: itself, or views of it, one per block."""

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        """(loss, ∇F_i(x; ξ)): a scalar, and a vector that the caller may overwrite."""

    def load_buffers(self, buffers: Buffers) -> None:
        """Puts these values into the model's buffers."""

    def buffers(self) -> Buffers:
        """A copy of the model's buffers."""


class Task(Protocol):
    """A loss, its clients' data and its evaluation."""

    num_clients: int

    def examples(self, client: int) -> int:
        """How many examples a client holds (1 where that has no meaning)."""

    def initial(self) -> tuple[Tensor, Buffers]:
        """x_0, and the buffers at the start."""

    def objective(self) -> Objective:
        """A replica for one worker; replicas share nothing that changes."""

    def evaluate(self, x: Tensor, buffers: Buffers) -> Mapping[str, float]:
        """Figures of the model x̄, such as test_loss and test_accuracy."""


class Engine(Protocol):
    """Where clients run. One verb."""

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """The mean over the cohort, weighted, of what `phase` returned on each client."""

    def client_states(self) -> dict[int, ClientState]:
        """The states held here, for a checkpoint."""

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        """Puts back what `client_states` gave."""

    def close(self) -> None:
        """Ends threads, processes and connections."""
