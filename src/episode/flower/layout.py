"""Conversion between a model's named arrays and the one vector x̄ that algorithms work on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from episode.core.vectors import as_real, bytes_of
from episode.federation.state import Buffers
from episode.tasks.model_buffers import as_buffer, persistent_buffers

Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters and buffers, in the vector's order."""

    trained: Shapes
    floats: Shapes
    """Buffers whose mean is taken; complex ones have the shape `[..., 2]` of their parts."""
    integers: Shapes
    """Buffers whose maximum is taken."""
    aliases: dict[str, str]
    """Other names of trained parameters (tied weights)."""
    frozen: dict[str, int]
    """Parameters that are not trained and not sent, each with a checksum."""

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of a model, in the order in which `tasks.neural` flattens it."""
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        names = {id(p): n for n, p in trained.items()}
        buffers = {n: as_real(b) for n, b in persistent_buffers(model).items()}
        return cls(
            trained={n: list(p.shape) for n, p in trained.items()},
            floats={n: list(b.shape) for n, b in buffers.items() if b.is_floating_point()},
            integers={n: list(b.shape) for n, b in buffers.items() if not b.is_floating_point()},
            aliases={
                n: names[id(p)]
                for n, p in model.named_parameters(remove_duplicate=False)
                if p.requires_grad and n not in trained
            },
            frozen={n: _checksum(p) for n, p in model.named_parameters() if not p.requires_grad},
        )

    def objection(self, arrays: Mapping[str, Tensor], dtype: str) -> str | None:
        """Return why these arrays do not fit this model, which trains `dtype`; None if they do."""
        shapes = self.trained | self.floats | self.integers
        for name, shape in shapes.items():
            if name in self.trained and name not in arrays:
                return f"trains {name}, which the initial arrays do not have"
            if name in arrays and (given := list(as_real(arrays[name]).shape)) != shape:
                return f"has {name} of {shape}, but the initial arrays {given}"
        for name, checksum in self.frozen.items():
            if name in arrays and _checksum(arrays[name]) != checksum:
                return f"has other values in {name}, which is frozen, than the initial arrays"
        if extra := sorted(arrays.keys() - {*shapes, *self.aliases, *self.frozen}):
            return f"has no {extra[0]}, which is among the initial arrays"
        dtypes = {str(arrays[name].dtype) for name in self.trained}
        if dtypes != {dtype}:
            return f"trains {dtype}, but the initial arrays are {', '.join(sorted(dtypes))}"
        return None

    def split(self, arrays: Mapping[str, Tensor], buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return x̄ and the buffers of these arrays; a missing buffer keeps its value."""
        x = torch.cat([arrays[name].reshape(-1) for name in self.trained])
        floats = _replaced(self.floats, buffers.floats, arrays)
        return x, Buffers(floats, _replaced(self.integers, buffers.integers, arrays))

    def join(self, x: Tensor, buffers: Buffers, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return x̄ as arrays with the names, order and types of `like`."""
        values = _cut(self.trained, x)
        values |= _cut(self.floats, buffers.floats) | _cut(self.integers, buffers.integers)
        values |= {alias: values[name] for alias, name in self.aliases.items()}
        return {
            name: as_buffer(values[name], t).to(t.dtype).clone() if name in values else t.clone()
            for name, t in like.items()
        }


def _cut(shapes: Shapes, flat: Tensor) -> dict[str, Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = flat.split_with_sizes(sizes) if sizes else ()
    return {n: part.view(shapes[n]) for n, part in zip(shapes, parts, strict=True)}


def _replaced(shapes: Shapes, flat: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
    """Return `flat` with the values of those arrays that have a name in `shapes`."""
    parts = _cut(shapes, flat)
    pieces = [as_real(arrays.get(n, part)).reshape(-1).to(flat.dtype) for n, part in parts.items()]
    return torch.cat(pieces) if pieces else flat


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(bytes_of(tensor))
