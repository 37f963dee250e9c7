"""One worker's copy of a model, seen as one flat vector."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from episode.core.vectors import Vector, add_, cut, scale_
from episode.federation.protocols import Draw, Objective
from episode.federation.state import Buffers
from episode.randomness import derive, seeded
from episode.tasks.model_buffers import (
    float_type,
    persistent_buffers,
    read_buffers,
    reset_constants,
    write_buffers,
)
from episode.tasks.second_derivatives import hessian_product
from episode.tasks.trial import copy_of

if TYPE_CHECKING:
    from episode.tasks.neural import NeuralTask


class Replica(Objective):
    """A copy of the module whose trainable parameters are views of one work vector."""

    def __init__(self, task: NeuralTask) -> None:
        self._task = task
        self.module = copy_of(task.model).train()
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.x = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.blocks: Vector = cut(self.x, [p.detach() for p in self._parameters])
        self._device = self.x.device
        self._has_constants = len(persistent_buffers(self.module)) < len([*self.module.buffers()])
        self._has_buffers = bool(persistent_buffers(self.module))
        self._buffer_type = float_type(self.module, self.x)
        self._autocast = task.autocast(self._device)  # slower to make than to enter
        self._attach()

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        if self._task.accumulate > 1:
            return self._accumulated(draw)
        loss = self.loss(draw)
        return loss.detach(), self._gradient_of(loss)

    def hessian_product(self, draw: Draw) -> Callable[[Tensor], Tensor]:
        """Return v ↦ ∇²F_i(x; ξ)v at the current x.

        Raises:
            NotTwiceDifferentiableError: The loss has kinks, or torch cannot differentiate it twice.
        """
        return hessian_product(self.loss(draw), self._parameters)

    def load_buffers(self, buffers: Buffers) -> None:
        self._attach()
        if self._has_buffers:
            write_buffers(self.module, buffers)
        if self._has_constants:
            reset_constants(self.module, self._task.model)

    def buffers(self) -> Buffers:
        if not self._has_buffers:
            return Buffers()
        return read_buffers(self.module, self._buffer_type, self._device)

    def loss(self, draw: Draw) -> Tensor:
        """Return F_i(x; ξ), with its graph."""
        with self._turn(draw, 0):  # datasets and `collate` may draw random numbers, too
            return self._loss_of(self._task.batches[draw.client].draw(draw.stream, draw.index))

    def losses(self, draw: Draw) -> Iterator[tuple[int, Tensor]]:
        """Yield the loss of each part of the batch, with its graph and the part's size."""
        batches, count = self._task.batches[draw.client], self._task.accumulate
        parts = batches.draw_parts(draw.stream, draw.index, count)
        for part in range(min(count, batches.batch_size)):
            with self._turn(draw, part):
                size, batch = next(parts)
                loss = self._loss_of(batch)
            yield size, loss

    def _loss_of(self, batch: Any) -> Tensor:
        with self._autocast:
            return self._task.loss(self.module, to_device(batch, self._device))

    def _accumulated(self, draw: Draw) -> tuple[Tensor, Vector]:
        """Return loss and gradient of a batch from those of its parts, weighted by their sizes."""
        examples = self._task.batches[draw.client].batch_size
        total, gradient = torch.zeros((), device=self._device), list[Tensor]()
        for size, loss in self.losses(draw):
            share = size / examples
            total = total + share * loss.detach()
            blocks = self._gradient_of(loss)
            if gradient:
                add_(gradient, blocks, share)
            else:
                scale_(blocks, share)
                gradient = blocks
        return total, gradient

    def _gradient_of(self, loss: Tensor) -> list[Tensor]:
        # Zeros for parameters that this batch did not touch.
        found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return separate(list(found))

    def _turn(self, draw: Draw, part: int) -> AbstractContextManager[None]:
        """Return a context in which random draws are a function of the batch and its part."""
        if not self._task.draws_random_numbers:
            return nullcontext()
        key = (self._task.seed, "model", draw.client, draw.stream, draw.index)
        return seeded(derive(*key, *([part] if part else [])))

    def _attach(self) -> None:
        """Make the parameters views of x, also after a module has moved them (cuDNN does)."""
        for p, view in zip(self._parameters, self.blocks, strict=True):
            if p.data_ptr() != view.data_ptr():
                p.data = view


def separate(blocks: list[Tensor]) -> list[Tensor]:
    """Return blocks that can be changed in place one by one.

    For the sum of two parameters torch gives both one tensor as their gradient, and for a plain sum
    a single number that is seen many times; adding a correction to these would add it twice.
    """
    seen: set[int] = set()
    for k, block in enumerate(blocks):
        place = block.untyped_storage().data_ptr()
        if place in seen or 0 in block.stride():
            blocks[k] = block.clone(memory_format=torch.contiguous_format)
        seen.add(place)
    return blocks


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch on the device; tensors may be nested in dicts, tuples and lists."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device)
    if isinstance(batch, UserDict):  # such as a BatchEncoding, which also has attributes
        moved = copy.copy(batch)
        moved.data = to_device(batch.data, device)
        return moved
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    # Named tuples have no common base class, and take their values one by one.
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
