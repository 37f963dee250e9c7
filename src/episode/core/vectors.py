"""Vectors of R^d as lists of blocks, and the four operations that the algorithms need.

A vector is a list of tensors `[..., d_k]`, its blocks; d is the sum of the d_k. A model's gradient
comes as one block per parameter tensor, and copying it into one flat vector would cost more than
the step itself. A flat vector is a list of one block. Leading dimensions, where there are any, are
independent vectors (clients, settings, seeds), so one line of code is one line of the paper for
a single run and for a whole table of runs.

A scalar that belongs to a vector is a float where it can be read for free (one vector on the CPU),
else a tensor `[..., 1]`, so that nothing waits for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Blocks = Sequence[Tensor]
Scalar = float | Tensor
Flag = bool | Tensor


def norm(v: Blocks) -> Scalar:
    """‖v‖, the Euclidean norm over all blocks."""
    if v[0].dim() > 1:
        of_blocks = [torch.linalg.vector_norm(b, dim=-1, keepdim=True) for b in v]
        return _combined(of_blocks)
    norms: Sequence[Tensor] = torch._foreach_norm(list(v))
    if v[0].device.type == "cpu":
        return math.hypot(*(n.item() for n in norms))
    return _combined([n[None] for n in norms])


def add_(v: Blocks, w: Blocks, scale: float = 1.0) -> None:
    """V ← v + scale · w."""
    torch._foreach_add_(list(v), list(w), alpha=scale)


def descend_(x: Blocks, size: Scalar, g: Blocks) -> None:
    """X ← x - size · g."""
    if isinstance(size, Tensor):
        for x_k, g_k in zip(x, g, strict=True):
            x_k.addcmul_(g_k, size, value=-1)
    else:
        torch._foreach_add_(list(x), list(g), alpha=-size)


def scale_(v: Blocks, factor: float) -> None:
    """V ← factor · v."""
    torch._foreach_mul_(list(v), factor)


def copy_(v: Blocks, w: Blocks) -> None:
    """V ← w."""
    torch._foreach_copy_(list(v), list(w))


def split(vector: Tensor, like: Blocks) -> Blocks:
    """The blocks of a flat vector `[..., d]`, as views, cut as those of `like`."""
    blocks: Blocks = vector.split_with_sizes([b.shape[-1] for b in like], dim=-1)
    return blocks


def where(condition: Flag, a: Scalar, b: Scalar) -> Scalar:
    """A where the condition holds, else b."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of a and b; NaN if one is NaN, so that a diverged run is seen."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
    return a if a < b or math.isnan(a) else b


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of a and b; NaN if one is NaN."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
    return a if a > b or math.isnan(a) else b


def _combined(norms: list[Tensor]) -> Tensor:
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return whole
