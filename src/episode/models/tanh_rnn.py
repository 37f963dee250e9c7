"""A tanh recurrence whose gradient takes a CPU about 0.6 of `nn.RNN`'s time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class TanhRNN(nn.RNN):
    """One layer of `h_t = tanh(W x_t + U h_{t-1} + b)`, in one direction, from a state of zero.

    It has the parameters, initial values and results of `nn.RNN`. On a CPU torch adds up the
    gradient of the weights step by step; here it is one product over all steps
    (`python benchmarks/run.py rnn`). On a GPU, and in mixed precision, it is `nn.RNN` itself.

    Args:
        inputs: Numbers per step.
        hidden: Units.
        batch_first: Whether sequences are `[batch, time, inputs]` instead of `[time, batch, …]`.
    """

    def __init__(self, inputs: int, hidden: int, batch_first: bool = False) -> None:
        super().__init__(inputs, hidden, batch_first=batch_first)

    def forward(self, sequence: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the states of all steps, and the last one `[1, batch, hidden]`."""
        plain = sequence.dim() == 3 and sequence.numel() and first is None
        if not plain or sequence.is_cuda or torch.is_autocast_enabled(sequence.device.type):
            theirs: tuple[Tensor, Tensor] = super().forward(sequence, first)
            return theirs
        ordered = sequence.transpose(0, 1) if self.batch_first else sequence
        w, u, b, c = self.parameters()
        states: Tensor = _Recurrence.apply(ordered, w, u, b + c)  # type: ignore[no-untyped-call]
        last = states[-1:]
        return (states.transpose(0, 1) if self.batch_first else states), last


class _Recurrence(torch.autograd.Function):
    """States `[time, batch, hidden]` of a sequence `[time, batch, inputs]`."""

    @staticmethod
    def forward(ctx: FunctionCtx, sequence: Tensor, w: Tensor, u: Tensor, bias: Tensor) -> Tensor:
        states = nn.functional.linear(sequence, w, bias)
        steps, turned = states.unbind(), u.t()
        previous = steps[0].tanh_()
        for state in steps[1:]:
            previous = state.addmm_(previous, turned).tanh_()
        ctx.save_for_backward(sequence, w, u, bias, states)
        return states

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        sequence, w, u, bias, states = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            return _differentiable_gradients(ctx, outputs[0])
        below = outputs[0].clone(memory_format=torch.contiguous_format)  # of the sums below tanh
        slopes = torch.addcmul(torch.ones_like(bias), states, states, value=-1).unbind()
        steps = below.unbind()
        following = steps[-1].mul_(slopes[-1])
        for step, slope in zip(steps[-2::-1], slopes[-2::-1], strict=True):
            following = step.addmm_(following, u).mul_(slope)
        flat = below.flatten(0, 1)
        return (
            below @ w if ctx.needs_input_grad[0] else None,
            flat.t() @ sequence.flatten(0, 1),
            below[1:].flatten(0, 1).t() @ states[:-1].flatten(0, 1),
            flat.sum(0),
        )


def _differentiable_gradients(ctx: Any, output: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients as functions of all inputs, for products with a Hessian."""
    sequence, w, u, bias, _ = ctx.saved_tensors
    states: list[Tensor] = []
    for given in nn.functional.linear(sequence, w, bias).unbind():
        states.append((given + states[-1] @ u.t() if states else given).tanh())
    wanted = [
        v for v, asked in zip((sequence, w, u, bias), ctx.needs_input_grad, strict=True) if asked
    ]
    found = iter(
        torch.autograd.grad(
            torch.stack(states), wanted, output, create_graph=True, materialize_grads=True
        )
    )
    return tuple(next(found) if asked else None for asked in ctx.needs_input_grad)
