"""Tasks whose f_i and ∇f_i are formulas, which can be computed for all clients and runs at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from episode.core.vectors import Vector
from episode.federation.protocols import Draw, Objective, Phase, Task
from episode.federation.state import Buffers
from episode.randomness import uniform

Coefficients = Sequence[Tensor]

STREAMS = {"probe": 0, "local": 1}


class ClosedForm(Task):
    """F_i(x; ξ) = f_i(x) + ⟨ξ, x⟩: a formula, with noise ξ in its gradient.

    Args:
        coefficients: Tensors `[..., clients, d]`; leading dimensions are independent problems.
        x_0: The initial point `[d]`.
        noise: Each coordinate of ξ is uniform on [-noise, noise].
        seeds: Random seeds of the noise: one for a single run; several form a dimension of their
            own, in front of the clients'.
    """

    def __init__(
        self, coefficients: Sequence[Tensor], x_0: Tensor, noise: float, seeds: Sequence[int]
    ) -> None:
        self.coefficients = coefficients
        self.x_0 = x_0
        self.noise = noise
        self.seeds = seeds
        self.num_clients = coefficients[0].shape[-2]

    @abstractmethod
    def value(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        """Return f `[...]` at x `[..., d]`."""

    @abstractmethod
    def gradient(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        """Return ∇f `[..., d]` at x `[..., d]`."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(x) and ∇f(x) of the average objective, at x `[..., d]`."""
        x = x.unsqueeze(-2)
        value, gradient = self.value(x, self.coefficients), self.gradient(x, self.coefficients)
        return value.mean(-1), gradient.mean(-2)

    def examples(self, client: int) -> int:
        return 1

    def initial(self) -> tuple[Tensor, Buffers]:
        return self.x_0.clone(), Buffers()

    def objective(self) -> Objective:
        return _OneClientAtATime(self)

    def all_clients(self, shape: Sequence[int]) -> Objective:
        """Return a replica for the batched engine, with x of this shape `[..., clients, d]`."""
        return _AllClients(self, shape)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        """Return f and ‖∇f‖ at x̄, and x̄ itself if it is one number."""
        value, gradient = self.mean(x)
        metrics = {"value": value.item(), "gradient_norm": gradient.norm().item()}
        return metrics | ({"x": x.item()} if x.numel() == 1 else {})

    def draw_noise(self, clients: Sequence[int], stream: Phase, indices: Sequence[int]) -> Tensor:
        """Return the noise `[indices, seeds, clients, d]` of these batches."""
        unit = uniform(
            np.array(self.seeds)[:, None, None],
            np.array(clients)[:, None],
            STREAMS[stream],
            np.array(indices)[:, None, None, None],
            np.arange(self.x_0.shape[-1]),
        )
        return torch.from_numpy(self.noise * (2 * unit - 1)).to(self.x_0)


class _OneClientAtATime(Objective):
    def __init__(self, task: ClosedForm) -> None:
        self._task = task
        self.x = task.x_0.clone()
        self.blocks: Vector = self.x

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        coefficients = self._coefficients(draw)
        value = self._task.value(self.x, coefficients)
        gradient = self._task.gradient(self.x, coefficients)
        if not self._task.noise:
            return value, gradient
        noise = self._noise(draw)
        return value + (noise * self.x).sum(-1), gradient + noise

    def hessian_product(self, draw: Draw) -> Callable[[Tensor], Tensor]:
        """Return v ↦ ∇²F_i(x; ξ)v at the current x: the derivative of the formula for ∇f_i."""
        x = self.x.detach().clone().requires_grad_()
        gradient = self._task.gradient(x, self._coefficients(draw))
        return lambda v: torch.autograd.grad(gradient, x, v, retain_graph=True)[0]

    def _coefficients(self, draw: Draw) -> Coefficients:
        return [c[draw.client] for c in self._task.coefficients]

    def _noise(self, draw: Draw) -> Tensor:
        return self._task.draw_noise([draw.client], draw.stream, [draw.index])[0, 0, 0]


class _AllClients(_OneClientAtATime):
    """All clients at once. Losses are NaN: computing them would double the time."""

    AHEAD = 256
    """For how many batches the noise is made at once; the values do not depend on it."""

    def __init__(self, task: ClosedForm, shape: Sequence[int]) -> None:
        super().__init__(task)
        self.x = torch.empty(tuple(shape), dtype=task.x_0.dtype)
        self.blocks = self.x
        self._no_loss = torch.tensor(math.nan, dtype=task.x_0.dtype)
        self._ahead: dict[str, tuple[int, Tensor]] = {}

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        gradient = self._task.gradient(self.x, self._coefficients(draw))
        return self._no_loss, gradient + self._noise(draw) if self._task.noise else gradient

    def _coefficients(self, draw: Draw) -> Coefficients:
        return self._task.coefficients

    def _noise(self, draw: Draw) -> Tensor:
        block, offset = divmod(draw.index, self.AHEAD)
        if draw.stream not in self._ahead or self._ahead[draw.stream][0] != block:
            indices = range(block * self.AHEAD, (block + 1) * self.AHEAD)
            noise = self._task.draw_noise(range(self._task.num_clients), draw.stream, indices)
            self._ahead[draw.stream] = block, noise
        return self._ahead[draw.stream][1][offset]
