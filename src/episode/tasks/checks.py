"""What is checked of a model, its clients and its functions before anything is computed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from episode.arguments import function, optional, whole_number
from episode.data.batches import Batches
from episode.errors import EpisodeError
from episode.tasks.model_buffers import check_buffers


def check_functions(loss: Any, evaluate: Any, collate: Any) -> None:
    """Refuse what cannot be called."""
    function("loss", loss, "returns a scalar from (model, batch)")
    optional(function, "evaluate", evaluate, "returns metrics by name from a model")
    function("collate", collate, "makes a batch of a list of examples")


def check_model(model: nn.Module) -> None:
    """Refuse a model whose parameters or buffers cannot be trained; warn of hooks that do not run.

    Raises:
        EpisodeError: Says what is wrong with which parameter, and what to do.
    """
    if not isinstance(model, nn.Module):
        raise EpisodeError(f"model is a {type(model).__name__}: give an nn.Module.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise EpisodeError(
                f"{name} has no shape yet (a lazy module): call the model once on a batch, so that "
                "it is initialised."
            )
        if tensor.is_meta:
            raise EpisodeError(
                f"{name} is on the meta device: give the model storage with to_empty first."
            )
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        adapter = ", or load its adapter with is_trainable=True" * hasattr(model, "peft_config")
        raise EpisodeError(
            f"The model has no trainable parameters: set requires_grad on those to train{adapter}."
        )
    _check_trainable(trainable)
    check_buffers(model)
    _warn_of_hooks(trainable)


def _check_trainable(trainable: Mapping[str, nn.Parameter]) -> None:
    if len({(p.dtype, p.device) for p in trainable.values()}) > 1:
        raise EpisodeError(
            "The trainable parameters differ in dtype or device, but they must form one vector: "
            "convert the model with model.to(...)."
        )
    for name, p in trainable.items():
        if not p.is_floating_point():
            raise EpisodeError(f"The parameters are {p.dtype}: real floats are needed.")
        if p.layout != torch.strided:
            raise EpisodeError(f"{name} is sparse: make it dense, or freeze it.")
        if p.is_inference():
            raise EpisodeError(
                f"{name} was made under torch.inference_mode and cannot be trained: build the "
                "model outside of it."
            )


def _warn_of_hooks(trainable: Mapping[str, nn.Parameter]) -> None:
    hooked = [n for n, p in trainable.items() if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        more = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
        warnings.warn(
            f"The gradient hooks of {hooked[0]}{more} do not run here, because clients train "
            "copies of the model: put what they do into the loss or into the model's forward.",
            stacklevel=5,
        )


def check_clients(clients: Any, batch_size: Any, num_clients: int | None) -> None:
    """Refuse what is no sequence of clients, and a batch size that is no number from 1."""
    whole_number("batch_size", batch_size, least=1)
    if num_clients is not None:
        return
    if isinstance(clients, Mapping) or not isinstance(clients, Sequence):
        raise EpisodeError(
            f"clients is a {type(clients).__name__}: give a list with one dataset per client."
        )
    if len(clients) == 0:
        raise EpisodeError("There are no clients: give at least one dataset.")


def check_accumulate(accumulate: Any, batch_size: int) -> int:
    """Return the number of parts of a batch; refuse one that does not divide it."""
    parts = whole_number("accumulate", accumulate, least=1)
    if batch_size % parts:
        raise EpisodeError(
            f"accumulate is {parts}, but a batch of {batch_size} has no {parts} equal parts: "
            "choose a number that divides batch_size."
        )
    return parts


def warn_of_small_clients(batches: Mapping[int, Batches], batch_size: int) -> None:
    """Warn of clients that have less than one batch."""
    small = [client for client in batches if batches[client].batch_size < batch_size]
    if small:
        names = f"Clients {small} have" if len(small) > 1 else f"Client {small[0]} has"
        warnings.warn(
            f"{names} fewer examples than a batch of {batch_size}: "
            "each trains on all it has at every step.",
            stacklevel=4,
        )
