"""Tasks whose f_i and ∇f_i are formulas: exact, and evaluated for all clients and runs at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from episode.core.vectors import Blocks
from episode.federation.protocols import Draw, Objective
from episode.federation.state import Buffers
from episode.randomness import uniform

Coefficients = Sequence[Tensor]

STREAMS = {"probe": 0, "local": 1}


class ClosedForm(ABC):
    """f_i(x) from a table of coefficients, with noise uniform on [-noise, noise] on each gradient.

    Coefficients are `[..., clients, d]` each; leading dimensions are independent problems.
    """

    def __init__(
        self, coefficients: Sequence[Tensor], x_0: Tensor, noise: float, seeds: Sequence[int]
    ) -> None:
        self.coefficients = coefficients
        self.x_0 = x_0
        self.noise = noise
        self.seeds = seeds
        """One for a single run; several are a dimension of their own, in front of `clients`."""
        self.num_clients = coefficients[0].shape[-2]

    @abstractmethod
    def value_and_gradient(self, x: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """f `[...]` and ∇f `[..., d]` at x `[..., d]`."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and ∇f(x) of the average objective, at x `[..., d]`."""
        value, gradient = self.value_and_gradient(x.unsqueeze(-2), self.coefficients)
        return value.mean(-1), gradient.mean(-2)

    def examples(self, client: int) -> int:
        return 1

    def initial(self) -> tuple[Tensor, Buffers]:
        return self.x_0.clone(), Buffers()

    def objective(self) -> Objective:
        return _OneClientAtATime(self)

    def all_clients(self, shape: Sequence[int]) -> Objective:
        """A replica for the batched engine, with x of the shape `[..., clients, d]`."""
        return _AllClients(self, shape)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        """f and ‖∇f‖ at x̄; x̄ itself where it is a number."""
        value, gradient = self.mean(x)
        figures = {"value": value.item(), "gradient_norm": gradient.norm().item()}
        return figures | ({"x": x.item()} if x.numel() == 1 else {})

    def draw_noise(self, clients: Sequence[int], draw: Draw, width: int) -> Tensor:
        """Noise `[seeds, clients, d]` on [-noise, noise], each entry named by its own key."""
        unit = uniform(
            np.array(self.seeds)[:, None, None],
            np.array(clients)[None, :, None],
            STREAMS[draw.stream],
            draw.index,
            np.arange(width),
        )
        return torch.from_numpy(self.noise * (2 * unit - 1)).to(self.x_0)


class _OneClientAtATime:
    def __init__(self, task: ClosedForm) -> None:
        self._task = task
        self.x = task.x_0.clone()
        self.blocks: Blocks = [self.x]

    def gradient(self, draw: Draw) -> tuple[Tensor, list[Tensor]]:
        coefficients = [c[draw.client] for c in self._task.coefficients]
        value, gradient = self._task.value_and_gradient(self.x, coefficients)
        if self._task.noise:
            gradient = gradient + self._task.draw_noise([draw.client], draw, len(self.x))[0, 0]
        return value, [gradient]

    def load_buffers(self, buffers: Buffers) -> None:
        """Has none."""

    def buffers(self) -> Buffers:
        return Buffers()


class _AllClients(_OneClientAtATime):
    def __init__(self, task: ClosedForm, shape: Sequence[int]) -> None:
        super().__init__(task)
        self.x = torch.empty(tuple(shape), dtype=task.x_0.dtype)
        self.blocks = [self.x]

    def gradient(self, draw: Draw) -> tuple[Tensor, list[Tensor]]:
        value, gradient = self._task.value_and_gradient(self.x, self._task.coefficients)
        if self._task.noise:
            clients = range(self._task.num_clients)
            gradient = gradient + self._task.draw_noise(clients, draw, self.x.shape[-1])
        return value, [gradient]
