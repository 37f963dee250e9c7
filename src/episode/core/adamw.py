"""AdamW as a client's descent: corrections and clipping act on the gradient that goes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from episode.arguments import positive, share
from episode.core.descent import Descent, shifted
from episode.core.vectors import Scalar, Vector, blocks_of, scale_
from episode.errors import EpisodeError, unknown


@dataclass
class Moments:
    """What AdamW holds of a client: means of its gradients and of their squares, and a count."""

    first: Vector
    second: Vector
    steps: list[Tensor]
    """The number of steps, once for each block, as torch counts them."""

    @classmethod
    def of(cls, first: Vector, second: Vector, steps: int) -> Moments:
        """Return moments that share memory with these vectors."""
        blocks = blocks_of(first)
        counts = torch.full((len(blocks),), float(steps), device=blocks[0].device)
        return cls(first, second, list(counts.unbind()))


@dataclass(frozen=True)
class AdamW(Descent):
    """AdamW (Loshchilov and Hutter 2019) on each client: torch's own kernel.

    A corrected gradient g = ∇F_i(x; ξ) + λ(G_r - G_r^i) goes in. A clipping that would take a step
    of size s along g scales it to (s/η) g instead: `PerStep` clips it to the norm γ/η. So γ bounds
    gradients and not steps, whose length Adam decides: about η for each parameter.

    Args:
        weight_decay: λ of the decoupled decay: each step also takes η λ x from x. It is no part of
            gradients, anchors and norms.
        proximal: FedProx's μ, as for any descent.
        beta1: β1, at least 0 and below 1.
        beta2: β2, at least 0 and below 1.
        eps: ε, above 0.
        moments: `"kept"` from round to round by each client, as in DiLoCo, and never averaged: two
            vectors for each client, in checkpoints too, and on Flower two more vectors up.
            `"reset"` to zero at the start of each round: nothing is kept, but the first steps of a
            round, whose moments are those of a few batches, are long.

    Raises:
        EpisodeError: A value is out of its range, or belongs to momentum.

    Example:
        >>> AdamW(moments="reset").kept, AdamW().kept
        ((), ('velocity', 'second', 'steps'))
    """

    adapts: ClassVar[bool] = True

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    moments: Literal["kept", "reset"] = "kept"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum or self.momentum_of != "corrected":
            raise EpisodeError("AdamW has beta1 in place of momentum: leave momentum at 0.")
        share("beta1", self.beta1)
        share("beta2", self.beta2)
        positive("eps", self.eps)
        if self.moments not in ("kept", "reset"):
            raise unknown("moments", self.moments, ("kept", "reset"))

    @property
    def kept(self) -> tuple[str, ...]:
        return ("velocity", "second", "steps") if self.moments == "kept" else ()

    def decay_(self, gradient: Vector, x: Vector) -> None:
        """Do nothing: the decay is decoupled from the gradient."""

    def direction(
        self, gradient: Vector, shift: Vector | None, velocity: Any, trust: Scalar = 1.0
    ) -> Vector:
        return shifted(gradient, shift, trust)

    def move_(self, x: Vector, size: Scalar, g: Vector, eta: Scalar, velocity: Moments) -> None:
        """Take a step of AdamW with the gradient (size/η) g."""
        clip_(g, size, eta)
        self.adam_(x, g, velocity, float(eta), self.weight_decay)

    def adam_(self, x: Vector, g: Vector, moments: Moments, eta: float, decay: float) -> None:
        """Take a step of AdamW with the gradient g."""
        adam(
            blocks_of(x), blocks_of(g), blocks_of(moments.first), blocks_of(moments.second), [],
            moments.steps, fused=True, amsgrad=False, beta1=self.beta1, beta2=self.beta2, lr=eta,
            weight_decay=decay, eps=self.eps, maximize=False, decoupled_weight_decay=True,
        )  # fmt: skip


def clip_(g: Vector, size: Scalar, eta: Scalar) -> None:
    """g ← (size/η) g, unless it is not clipped."""
    if isinstance(size, Tensor) or size != eta:
        scale_(g, size / eta)
