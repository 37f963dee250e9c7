"""Products with a loss's Hessian, for losses that are twice differentiable everywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from episode.errors import NotTwiceDifferentiableError

KINKED = ("Relu", "Abs", "Max", "Min", "Amax", "Amin", "Clamp", "Threshold", "Hard", "Margin")
"""Parts of torch's names for operations that have no second derivative everywhere."""
ATTENTION = "ScaledDotProduct"
"""How torch's names of fused attention begin; those of attention in single operations do not."""
SMOOTH = ("LogSoftmax", "MaxUnpool")
"""Names that contain one of these parts, and are smooth."""


def hessian_product(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Callable[[Tensor], Tensor]:
    """Return v ↦ ∇²f·v for a loss f, by differentiating it twice.

    Raises:
        NotTwiceDifferentiableError: The loss has kinks (ReLU, hinge, max-pooling), which its second
            derivative would miss, or torch cannot differentiate it twice.
    """
    if kinds := kinks(loss):
        raise NotTwiceDifferentiableError(
            f"The loss is not twice differentiable: it has kinks ({', '.join(kinds)})."
        )
    try:
        with warnings.catch_warnings():  # the graph of a graph is intended, and freed with it
            warnings.simplefilter("ignore", UserWarning)
            first = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        gradient = torch.cat([g.reshape(-1) for g in first])
        if not gradient.requires_grad:
            return torch.zeros_like  # the loss is linear
        _product(gradient, parameters, torch.zeros_like(gradient))
    except (RuntimeError, NotImplementedError) as error:
        if fused := [name for name in names_of(loss) if name.startswith(ATTENTION)]:
            raise NotTwiceDifferentiableError(
                f"The attention {', '.join(fused)} has no second derivative in torch: build "
                "a transformer with attn_implementation='eager' to measure its Hessian."
            ) from None
        reason = str(error).splitlines()[0][:100].rstrip(".")
        raise NotTwiceDifferentiableError(
            f"The loss is not twice differentiable by torch ({reason})."
        ) from None
    return lambda v: _product(gradient, parameters, v)


def kinks(loss: Tensor) -> list[str]:
    """Return torch's names of the operations in a loss that are not twice differentiable."""
    kinked = [name for name in names_of(loss) if any(k in name for k in KINKED)]
    return [name for name in kinked if not any(k in name for k in SMOOTH)]


def names_of(loss: Tensor) -> list[str]:
    """Return torch's names of all operations in a loss, in alphabetical order."""
    nodes = operations(loss)
    return sorted({node.name().removesuffix("0").removesuffix("Backward") for node in nodes})


def operations(loss: Tensor) -> set[Any]:
    """Return the nodes of the loss's graph: its operations and, at its ends, the leaves."""
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return seen


def _product(gradient: Tensor, parameters: Sequence[nn.Parameter], v: Tensor) -> Tensor:
    blocks = torch.autograd.grad(gradient, parameters, v, retain_graph=True, materialize_grads=True)
    return torch.cat([b.reshape(-1) for b in blocks])
