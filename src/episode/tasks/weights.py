"""A model's weights as a run stores them: what was trained, and a checksum of what was not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from episode.core.vectors import bytes_of
from episode.errors import EpisodeError


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state dict without its frozen parameters."""
    frozen = frozen_names(model)
    return {name: t for name, t in model.state_dict().items() if name not in frozen}


def frozen_names(model: nn.Module) -> set[str]:
    """Return the names of parameters that are not trained, with all names of tied ones."""
    every = model.named_parameters(remove_duplicate=False)
    return {name for name, p in every if not p.requires_grad}


def frozen_checksum(model: nn.Module) -> str:
    """Return a checksum of the parameters that are not trained; empty if there are none."""
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    return checksum(frozen) if frozen else ""


def checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a checksum of named tensors: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().cpu()
        digest.update(bytes_of(values if values.layout == torch.strided else values.to_dense()))
    return digest.hexdigest()[:16]


def load_trained(model: nn.Module, state: Mapping[str, Tensor], frozen: str, name: str) -> None:
    """Write weights into a model; frozen parameters that were not stored stay as they are.

    Args:
        model: A model of the same shape.
        state: Its tensors by name.
        frozen: Checksum of the frozen parameters that these weights were trained beside; empty if
            it is not known.
        name: What the weights are, for messages.

    Raises:
        EpisodeError: The weights do not fit the model, or its frozen parameters are other ones.
    """
    missing = frozen_names(model) - state.keys()
    if missing and frozen and frozen != (own := frozen_checksum(model)):
        raise EpisodeError(
            f"The weights of {name} were trained beside a frozen base with the checksum {frozen}, "
            f"but this model's has {own or 'none'}: build the model from the same base."
        )
    # Extra state that is not a tensor is not stored, and stays as it is, too.
    kept = {
        n: own
        for n, own in model.state_dict().items()
        if n in missing or not isinstance(own, Tensor)
    }
    try:
        model.load_state_dict({**kept, **state})
    except RuntimeError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[1:])[:300].rstrip(".")
        raise EpisodeError(f"The weights of {name} do not fit the model: {reason}.") from None
