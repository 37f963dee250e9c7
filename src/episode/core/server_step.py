"""What the server does with the mean of the clients' models: the outer step.

A round ends with mean(x_i). FedAvg takes it for the next x̄. It can also be read as a step
Δ = mean(x_i) - x̄_r, and -Δ as a gradient (the *pseudo-gradient*) for any optimizer: FedAvgM is
momentum, FedOpt is Adam, Yogi or Adagrad, and the outer step of DiLoCo is Nesterov's momentum. What
an optimizer keeps from round to round is in `ServerState`, so that checkpoints hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from episode.arguments import not_negative, positive, share, switch
from episode.errors import EpisodeError
from episode.pieces import Pieces

Held = dict[str, Tensor]
"""What a server step keeps from round to round; empty before the first."""


@dataclass(frozen=True)
class ServerStep:
    """Base class of all server steps. Derive a frozen dataclass from it to write your own.

    A server step must define `step`. It is not for algorithms without local steps: their server
    steps along G_r itself.

    Example:
        >>> @dataclass(frozen=True)
        ... class Halfway(ServerStep):
        ...     def step(self, x, mean, held):
        ...         return (x + mean) / 2
        >>> Halfway().step(torch.zeros(1), torch.ones(1), {})
        tensor([0.5000])
    """

    @property
    def name(self) -> str:
        """Name under which it can be found: `adam`, or `my_server.py:Halfway`."""
        return SERVER_STEPS.name_of(type(self))

    def step(self, x: Tensor, mean: Tensor, held: Held) -> Tensor:
        """Return x̄_{r+1}.

        Args:
            x: x̄_r, which stays as it is.
            mean: Mean of the clients' models after their local steps.
            held: What the last round has put here. Put new tensors into it; do not change old ones.

        Returns:
            The new model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ServerMean(ServerStep):
    """x̄_{r+1} = mean(x_i), as in the paper (Algorithm 1, line 13).

    Example:
        >>> ServerMean().step(torch.zeros(1), torch.ones(1), {})
        tensor([1.])
    """

    def step(self, x: Tensor, mean: Tensor, held: Held) -> Tensor:
        return mean


@dataclass(frozen=True)
class ServerSGD(ServerStep):
    """x̄ + rate · Δ, or momentum: v ← μv - Δ, x̄ ← x̄ - rate · v, as torch.optim.SGD has it.

    FedAvgM (Hsu et al. 2019) is `ServerSGD(momentum=0.9)`; the outer step of DiLoCo (Douillard et
    al. 2023) is `ServerSGD(0.7, 0.9, nesterov=True)`. With rate 1 and no momentum it is the mean,
    bit for bit. A momentum μ makes the steps of many rounds 1/(1-μ) times as long: lower η or the
    rate with it.

    Args:
        rate: The server's learning rate, above 0.
        momentum: μ, at least 0 and below 1. Not the `momentum` of the clients' steps.
        nesterov: Whether to look ahead along the momentum.

    Raises:
        EpisodeError: A value is out of its range.

    Example:
        >>> ServerSGD(rate=0.5).step(torch.zeros(1), torch.ones(1), {})
        tensor([0.5000])
    """

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        positive("server.rate", self.rate)
        share("server.momentum", self.momentum)
        if switch("server.nesterov", self.nesterov) and not self.momentum:
            raise EpisodeError(
                "server.nesterov looks ahead along the momentum, but server.momentum is 0."
            )

    def step(self, x: Tensor, mean: Tensor, held: Held) -> Tensor:
        if self.rate == 1 and not self.momentum:
            return mean
        new, before = x.clone(), held.get("velocity")
        velocity = [None if before is None else before.clone()]
        sgd(
            [new], [x - mean], velocity, weight_decay=0.0, momentum=self.momentum, lr=self.rate,
            dampening=0.0, nesterov=self.nesterov, maximize=False,
        )  # fmt: skip
        if velocity[0] is not None:
            held["velocity"] = velocity[0]
        return new


@dataclass(frozen=True)
class ServerAdamW(ServerStep):
    """AdamW on the pseudo-gradient -Δ: torch's own, with bias correction and decoupled decay.

    Args:
        rate: The server's learning rate, above 0.
        beta1: β1, at least 0 and below 1.
        beta2: β2, at least 0 and below 1.
        eps: ε, above 0.
        weight_decay: λ, at least 0: each round also takes rate · λ · x̄ from x̄.

    Raises:
        EpisodeError: A value is out of its range.

    Example:
        >>> ServerAdamW(rate=0.5).step(torch.zeros(1), torch.ones(1), {})
        tensor([0.5000])
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        positive("server.rate", self.rate)
        share("server.beta1", self.beta1)
        share("server.beta2", self.beta2)
        positive("server.eps", self.eps)
        not_negative("server.weight_decay", self.weight_decay)

    def step(self, x: Tensor, mean: Tensor, held: Held) -> Tensor:
        new, zero = x.clone(), torch.zeros_like(x)
        m, v = (held.get(name, zero).clone() for name in ("m", "v"))
        steps = held.get("step", torch.zeros(())).clone()
        adam(
            [new], [x - mean], [m], [v], [], [steps], amsgrad=False, beta1=self.beta1,
            beta2=self.beta2, lr=self.rate, weight_decay=self.weight_decay, eps=self.eps,
            maximize=False, decoupled_weight_decay=True,
        )  # fmt: skip
        held.update(m=m, v=v, step=steps)
        return new


SERVER_STEPS = Pieces(
    "server",
    ServerStep,
    {
        "mean": ServerMean,
        "sgd": ServerSGD,
        "adam": "episode.core.fed_opt:ServerAdam",
        "adamw": ServerAdamW,
        "adagrad": "episode.core.fed_opt:ServerAdagrad",
        "yogi": "episode.core.fed_opt:ServerYogi",
    },
    "step(self, x, mean, held)",
)
"""The built-in server steps by name."""
