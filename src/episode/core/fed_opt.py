"""FedOpt: adaptive server steps, scaled for each parameter by how much it has changed so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from episode.arguments import not_negative, positive, share
from episode.core.server_step import Held, ServerStep


@dataclass(frozen=True)
class FedOpt(ServerStep):
    """Base class of the adaptive server steps of Reddi et al. (2021), Algorithm 2.

        m ← β1 m + (1 - β1) Δ,   v as each kind says,   x̄ ← x̄ + rate · m / (√v + τ)

    There is no bias correction, and v starts from τ² instead of 0, so these are not the optimizers
    of torch. The authors tune the rate; the defaults are those of Flower's strategies.

    Args:
        rate: The server's learning rate, above 0.
        beta1: β1, at least 0 and below 1.
        tau: τ, above 0. Where |Δ| is far below it, the step is about rate/τ · m.
        start: v before the first round, as a multiple of τ². The paper asks for 1 or more; Flower's
            strategies start from 0.

    Raises:
        EpisodeError: A value is out of its range.
    """

    rate: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3
    start: float = 1.0

    def __post_init__(self) -> None:
        positive("server.rate", self.rate)
        share("server.beta1", self.beta1)
        positive("server.tau", self.tau)
        not_negative("server.start", self.start)

    def step(self, x: Tensor, mean: Tensor, held: Held) -> Tensor:
        delta = mean - x
        m = held.get("m", torch.zeros_like(x))
        v = held.get("v", torch.full_like(x, self.start * self.tau**2))
        held["m"] = m = self.beta1 * m + (1 - self.beta1) * delta
        held["v"] = v = self._second_moment(v, delta * delta)
        return x + self.rate * m / (v.sqrt() + self.tau)

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v, given the old one and Δ²."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdam(FedOpt):
    """FedAdam: v ← β2 v + (1 - β2) Δ², and x̄ ← x̄ + rate · m / (√v + τ).

    The rule of Reddi et al. (2021), Algorithm 2, where m ← β1 m + (1 - β1) Δ; without Adam's bias
    correction. The authors tune the rate; the default is that of Flower's strategy.

    Args:
        rate: The server's learning rate, above 0.
        beta1: β1, at least 0 and below 1.
        tau: τ, above 0.
        start: v before the first round, as a multiple of τ²: 1 or more in the paper, 0 in Flower.
        beta2: β2, at least 0 and below 1.

    Example:
        >>> ServerAdam(rate=1.0, beta1=0.0).step(torch.zeros(1), torch.ones(1), {})
        tensor([9.9005])
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        share("server.beta2", self.beta2)

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi: as FedAdam, with v ← v - (1 - β2) Δ² sign(v - Δ²), which shrinks more slowly.

    Its arguments are those of `ServerAdam`.

    Example:
        >>> ServerYogi(rate=1.0, beta1=0.0).step(torch.zeros(1), torch.ones(1), {})
        tensor([9.9005])
    """

    rate: float = 0.01

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class ServerAdagrad(FedOpt):
    """FedAdagrad: v ← v + Δ², and x̄ ← x̄ + rate · m / (√v + τ).

    The rule of Reddi et al. (2021), Algorithm 2, where m = Δ unless `beta1` is set. Steps become
    shorter and shorter, so that it needs no schedule.

    Args:
        rate: The server's learning rate, above 0.
        beta1: β1, at least 0 and below 1.
        tau: τ, above 0.
        start: v before the first round, as a multiple of τ²: 1 or more in the paper, 0 in Flower.

    Example:
        >>> ServerAdagrad(rate=1.0).step(torch.zeros(1), torch.ones(1), {})
        tensor([0.9990])
    """

    beta1: float = 0.0

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
