"""A model's buffers as two vectors: floats, whose mean is taken, and integers with their maximum.

Complex buffers are pairs of floats. Floats are of the parameters' type if it holds all of them, and
of float64 otherwise, so that none is rounded on its way; each is written back in its own type.
Buffers with persistent=False, such as the frequencies of rotary embeddings, are constants of the
model: they are neither averaged nor sent, and every phase begins with their initial values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from episode.core.vectors import as_real, holds
from episode.errors import EpisodeError
from episode.federation.state import Buffers


def check_buffers(model: nn.Module) -> None:
    """Refuse buffers that cannot be averaged and written back, by name."""
    for name, buffer in model.named_buffers():
        if (problem := _problem(buffer)) is not None:
            raise EpisodeError(f"The buffer {name} {problem}.")


def _problem(buffer: Tensor) -> str | None:
    if buffer.is_meta:
        return "is on the meta device: give it storage with to_empty first"
    if buffer.layout != torch.strided or buffer.is_quantized:
        kind = "quantized" if buffer.is_quantized else "sparse"
        return (
            f"is {kind}, but buffers are averaged as dense tensors: convert it, or keep it as "
            "a plain attribute of its module"
        )
    if buffer.is_inference():
        return "was made under torch.inference_mode and cannot be changed: replace it by a clone"
    if any(step == 0 and n > 1 for step, n in zip(buffer.stride(), buffer.shape, strict=True)):
        return "repeats elements in memory (expand) and cannot be written: replace it by a clone"
    return None


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that change with training, by name: those of the model's state dict."""
    constant = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: b for name, b in model.named_buffers() if name not in constant}


def reset_constants(model: nn.Module, original: nn.Module) -> None:
    """Give buffers that are not persistent their values in the original; some modules grow them."""
    kept, values = persistent_buffers(model), dict(original.named_buffers())
    for name, buffer in model.named_buffers():
        if name not in kept and name in values and values[name].shape == buffer.shape:
            buffer.copy_(values[name])


def float_type(model: nn.Module, x: Tensor) -> torch.dtype:
    """Return the type in which the float buffers of a model with the parameters x are averaged."""
    floats = [b.dtype for b in persistent_buffers(model).values() if _is_averaged(b)]
    if all(holds(x.dtype, dtype) for dtype in floats):
        return x.dtype
    return torch.float32 if x.device.type == "mps" else torch.float64  # mps has no float64


def read_buffers(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Buffers:
    """Return a copy of the model's buffers, with the floats as `dtype`."""
    floats = [torch.empty(0, dtype=dtype, device=device)]
    integers = [torch.empty(0, dtype=torch.int64, device=device)]
    for buffer in persistent_buffers(model).values():
        if _is_averaged(buffer):
            floats.append(as_real(buffer.detach()).reshape(-1).to(device, dtype))
        else:
            integers.append(buffer.detach().reshape(-1).to(device, torch.int64))
    return Buffers(torch.cat(floats), torch.cat(integers))


def write_buffers(model: nn.Module, buffers: Buffers) -> None:
    """Write what `read_buffers` returned, each buffer in its own type."""
    left = {True: buffers.floats, False: buffers.integers}
    with torch.no_grad():
        for buffer in persistent_buffers(model).values():
            kind, size = _is_averaged(buffer), buffer.numel() * (1 + buffer.is_complex())
            buffer.copy_(as_buffer(left[kind][:size], buffer))
            left[kind] = left[kind][size:]


def as_buffer(values: Tensor, like: Tensor) -> Tensor:
    """Return values in the shape of a buffer; pairs become complex numbers if it is complex."""
    if not like.is_complex():
        return values.view(like.shape)
    real, imaginary = values.view(*like.shape, 2).unbind(-1)
    return torch.complex(real, imaginary)


def _is_averaged(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()
