"""The top eigenvalue of a Hessian, by power iteration on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Eigenvalue:
    """The eigenvalue of largest magnitude, as far as the iteration came."""

    norm: float
    """|λ|: the spectral norm, from below."""
    signed: float
    """vᵀHv at the last v: λ itself where one eigenvalue dominates."""
    iterations: int
    converged: bool
    """Whether the error still expected was below the tolerance."""
    vector: Tensor


def top_eigenvalue(
    product: Product, start: Tensor, tolerance: float = 2e-3, iterations: int = 100
) -> Eigenvalue:
    """Power iteration from `start` until the error still expected is below tolerance·|λ|.

    ‖Hv‖ rises to |λ| (also where λ and -λ are both eigenvalues). Its rises shrink by a factor q,
    so what is still to come is about rise·q/(1-q): small rises alone would stop a slow iteration
    too early.
    """
    v = start / start.norm()
    norm, rise = 0.0, float("inf")
    for count in range(1, iterations + 1):
        image = product(v)
        signed = torch.dot(v, image).item()
        found = image.norm().item()
        if found == 0 or found != found:
            return Eigenvalue(found, signed, count, found == 0, v)
        last, rise = rise, abs(found - norm)
        q = min(rise / last, 0.99) if last > 0 else 0.0
        norm, v = max(found, norm), image / found
        if count > 2 and rise * q / (1 - q) <= tolerance * norm and rise <= tolerance * norm:
            return Eigenvalue(norm, signed, count, True, v)
    return Eigenvalue(norm, signed, iterations, False, v)


def by_differences(gradient: Callable[[Tensor], Tensor], x: Tensor) -> Product:
    """v ↦ (∇F(x + hv) - ∇F(x - hv))/2h: for objectives that offer no Hessian of their own."""
    precision: float = torch.finfo(x.dtype).eps

    def product(v: Tensor) -> Tensor:
        # The cube root of the precision balances rounding against the third derivative.
        h = precision ** (1 / 3) * (1 + x.norm().item()) / (v.norm().item() + 1e-30)
        change = gradient(x + h * v) - gradient(x - h * v)
        return change.div(2 * h)

    return product
