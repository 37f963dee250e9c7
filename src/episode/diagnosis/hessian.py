"""Norm of a Hessian, by power iteration on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HessianProduct = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Eigenvalue:
    """The eigenvalue of largest magnitude, as far as the power iteration found it."""

    norm: float
    """|λ|, the spectral norm, approached from below."""
    iterations: int
    converged: bool
    """Whether the estimated remaining error is within the tolerance."""
    vector: Tensor


def top_eigenvalue(
    product: HessianProduct, start: Tensor, tolerance: float = 2e-3, iterations: int = 100
) -> Eigenvalue:
    """Iterate from `start` until the estimated remaining error is below tolerance·|λ|.

    ‖Hv‖ rises to |λ| (also if both λ and -λ are eigenvalues). Each rise is smaller than the last by
    a factor q, so about rise·q/(1-q) is still to come. A small rise alone would end a slowly
    converging iteration too early.
    """
    v = start / start.norm()
    norm, rise = 0.0, float("inf")
    for count in range(1, iterations + 1):
        image = product(v)
        found = image.norm().item()
        if found == 0 or found != found:
            return Eigenvalue(found, count, found == 0, v)
        last, rise = rise, abs(found - norm)
        q = min(rise / last, 0.99) if last > 0 else 0.0
        norm, v = max(found, norm), image / found
        if count > 2 and rise * q / (1 - q) <= tolerance * norm and rise <= tolerance * norm:
            return Eigenvalue(norm, count, True, v)
    return Eigenvalue(norm, iterations, False, v)


def by_differences(gradient: Callable[[Tensor], Tensor], x: Tensor) -> HessianProduct:
    """Return v ↦ (∇F(x + hv) - ∇F(x - hv))/2h, for objectives without a Hessian product."""
    precision: float = torch.finfo(x.dtype).eps

    def product(v: Tensor) -> Tensor:
        # The cube root of the precision balances rounding against the third derivative.
        h = precision ** (1 / 3) * (1 + x.norm().item()) / (v.norm().item() + 1e-30)
        change = gradient(x + h * v) - gradient(x - h * v)
        return change.div(2 * h)

    return product
