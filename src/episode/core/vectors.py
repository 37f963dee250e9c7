"""Vectors of R^d, and the few operations that the algorithms need.

A vector is a tensor `[..., d]`, or a list of tensors of any shape, its blocks. A model's gradient
comes as one block per parameter, and copying it into one flat vector would cost as much as the
step itself. Leading dimensions of a flat vector, if there are any, are independent vectors
(clients, settings, seeds): one line of code is one line of the paper, for a single run and for
a whole table of runs.

A scalar that belongs to a vector is a float if it can be read for free (one vector on the CPU), and
a tensor `[..., 1]` otherwise, so that nothing waits for a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Vector = Tensor | list[Tensor]
Scalar = float | Tensor
Flag = bool | Tensor


def norm(v: Vector) -> Scalar:
    """‖v‖, the Euclidean norm."""
    if isinstance(v, Tensor):
        flat: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    else:
        flat = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(v))), keepdim=True)
    return _read(flat)


def dot(v: Vector, w: Vector) -> Scalar:
    """⟨v, w⟩, the inner product."""
    if isinstance(v, Tensor) and isinstance(w, Tensor):
        total = torch.linalg.vecdot(v, w).unsqueeze(-1)
    else:
        pairs = zip(blocks_of(v), blocks_of(w), strict=True)
        parts = [torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in pairs]
        total = torch.stack(parts).sum(dim=0, keepdim=True)
    return _read(total)


def add_(v: Vector, w: Vector, scale: Scalar = 1.0) -> None:
    """v ← v + scale · w."""
    if isinstance(scale, Tensor):
        for v_k, w_k in zip(blocks_of(v), blocks_of(w), strict=True):
            v_k.addcmul_(w_k, scale)
    else:
        torch._foreach_add_(blocks_of(v), blocks_of(w), alpha=scale)


def difference(v: Vector, w: Vector) -> list[Tensor]:
    """Return v - w, in blocks."""
    return list(torch._foreach_sub(blocks_of(v), blocks_of(w)))


def descend_(x: Vector, size: Scalar, g: Vector) -> None:
    """x ← x - size · g."""
    add_(x, g, scale=-size)


def scale_(v: Vector, factor: Scalar) -> None:
    """v ← factor · v; the factor may be a tensor of one number."""
    if isinstance(factor, Tensor):
        for block in blocks_of(v):
            block.mul_(factor)
    else:
        torch._foreach_mul_(blocks_of(v), factor)


def copy_(v: Vector, w: Vector) -> None:
    """v ← w."""
    torch._foreach_copy_(blocks_of(v), blocks_of(w))


def cut(flat: Tensor, like: Vector) -> Vector:
    """Return views of a flat vector `[d]`, in blocks of the same shapes as those of `like`."""
    if isinstance(like, Tensor):
        return flat
    parts = flat.split_with_sizes([block.numel() for block in like])
    return [part.view(block.shape) for part, block in zip(parts, like, strict=True)]


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether a real float type holds the values of another type exactly."""
    if narrow.itemsize == 1:  # torch does not promote floats of 8 bits, and all others hold them
        return True
    return torch.promote_types(wide, narrow) == wide


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor `[...]` as its real and imaginary parts `[..., 2]`, if it is one."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def bytes_of(tensor: Tensor) -> bytes:
    """Return a tensor's values as bytes, also of types that numpy does not have (bfloat16)."""
    values = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
    return values.view(torch.uint8).numpy().tobytes()


def where(condition: Flag, a: Scalar, b: Scalar) -> Scalar:
    """Return a if the condition holds, else b; for tensors, element by element."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """Return the smaller of a and b; NaN if one is NaN, so that divergence is noticed."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
    return a if a < b or math.isnan(a) else b


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return the larger of a and b; NaN if one is NaN."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
    return a if a > b or math.isnan(a) else b


def clamped_ratio(a: Scalar, b: Scalar) -> Scalar:
    """Return a / b, but at least 0 and at most 1, and 0 if b is 0; NaN if one is NaN."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        return torch.where(b == 0, 0.0 * a, a / b).clamp(0.0, 1.0)
    ratio = 0.0 * a if b == 0 else a / b
    return ratio if math.isnan(ratio) else min(max(ratio, 0.0), 1.0)


def _read(scalar: Tensor) -> Scalar:
    """Return a scalar `[1]` on the CPU as a number, and any other as it is."""
    return scalar.item() if scalar.dim() == 1 and scalar.device.type == "cpu" else scalar


def blocks_of(v: Vector) -> list[Tensor]:
    """Return the blocks of a vector; a flat one is its own only block."""
    return [v] if isinstance(v, Tensor) else v
