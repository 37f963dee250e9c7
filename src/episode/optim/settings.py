"""The optimizer's arguments, checked before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from episode.arguments import number, positive, shown
from episode.core.adamw import AdamW
from episode.core.algorithm import Algorithm
from episode.core.clipping import Unclipped
from episode.core.server_step import SERVER_STEPS, ServerStep
from episode.core.vectors import as_real
from episode.errors import EpisodeError


def algorithm_of(
    algorithm: str | Algorithm,
    momentum: float,
    nesterov: bool,
    outer: ServerStep | str | Mapping[str, Any] | None = None,
) -> Algorithm:
    """Return the algorithm, with this momentum if it is given by name, and with this outer step.

    Raises:
        EpisodeError: There is no such algorithm, or it has what the optimizer cannot follow.
    """
    if outer is not None:
        named = isinstance(outer, (str, Mapping))
        step: Any = SERVER_STEPS.build(outer, "outer") if named else outer
        return replace(algorithm_of(algorithm, momentum, nesterov), server=step)
    if isinstance(algorithm, str):
        algorithm = Algorithm.named(algorithm, momentum=momentum, nesterov=nesterov)
    elif momentum or nesterov:
        raise EpisodeError("Give momentum in the Algorithm's own Descent, not beside it.")
    algorithm = Algorithm.named(algorithm)
    if algorithm.descent.weight_decay and not isinstance(algorithm.descent, AdamW):
        raise EpisodeError("Give weight_decay to the optimizer, which has it by parameter group.")
    if algorithm.probe_batches != 1 or algorithm.weighting != "uniform":
        raise EpisodeError("probe_batches and weighting are for the engines, not the optimizer.")
    return algorithm


def length_of_clipped_steps(gamma: Any, lr: float, algorithm: Algorithm) -> float:
    """Return γ; if the algorithm does not clip and none is given, any will do.

    Raises:
        EpisodeError: The algorithm clips, and γ is missing or out of range.
    """
    if gamma is None and isinstance(algorithm.clipping, Unclipped):
        return lr
    return positive("gamma", gamma)


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse a parameter group with settings that are wrong, or that are for all groups."""
    if "gamma" in group or "momentum" in group:
        raise EpisodeError(
            "A parameter group may set lr and weight_decay; gamma and momentum are for all."
        )
    for name in ("lr", "weight_decay"):
        value = number(name, group[name])
        if not 0 <= value < math.inf:
            raise EpisodeError(f"{name} is {value}: it must be 0 or more.")


def averaged_buffers(buffers: Iterable[Tensor]) -> list[Tensor]:
    """Return the buffers that are averaged, as real tensors that share their memory.

    Raises:
        EpisodeError: These are not buffers.
    """
    found = list(buffers) if isinstance(buffers, Iterable) else [None]
    if isinstance(buffers, Tensor) or not all(isinstance(b, Tensor) for b in found):
        raise EpisodeError(f"buffers is {shown(buffers)}: give model.buffers().")
    floats = [b for b in found if b.is_floating_point() or b.is_complex()]
    return [as_real(b.detach()) for b in floats]


def check_parameter(p: Tensor, first: Tensor, name: str) -> None:
    """Refuse a parameter that cannot be part of one real, dense vector with the first one."""
    if p.is_complex():
        raise EpisodeError(f"{name} is complex: real parameters are needed.")
    if p.is_sparse:
        raise EpisodeError(f"{name} is sparse: dense parameters are needed.")
    if (p.dtype, p.device) != (first.dtype, first.device):
        raise EpisodeError(
            f"{name} is {p.dtype} on {p.device}, others are {first.dtype} on "
            f"{first.device}: all must form one vector."
        )
