"""The weights that a run starts from: those of another run, of a file, or of a state dict."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from episode.arguments import shown
from episode.errors import EpisodeError
from episode.results import store
from episode.runs.records import Run

log = logging.getLogger("episode")


def start_from(model: nn.Module, origin: Any) -> None:
    """Copy weights into a model, before a new run begins.

    Args:
        model: The model that will be trained.
        origin: A `Run`, the folder of one, a file of safetensors, or a state dict.

    Raises:
        EpisodeError: There are no such weights, or they do not fit the model.
    """
    state, name = _state_of(origin)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[1:])[:300].rstrip(".")
        raise EpisodeError(f"The weights of {name} do not fit the model: {reason}.") from None
    log.info(
        "Starts from the weights of %s, at round 0: memories and momenta begin empty, and batches "
        "are drawn anew.",
        name,
    )


def _state_of(origin: Any) -> tuple[Mapping[str, Tensor], str]:
    if isinstance(origin, Run) and origin.model is not None:
        return origin.model.state_dict(), "another run"
    if isinstance(origin, Run):
        origin = origin.folder
    if isinstance(origin, (str, Path)):
        return read_weights(Path(origin)), str(origin)
    if isinstance(origin, Mapping):
        return origin, "a state dict"
    raise EpisodeError(
        f"start_from is {shown(origin)}: give a Run, its folder, a .safetensors file, or a state "
        "dict."
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run's folder, or of a file of safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = path / store.MODEL if path.is_dir() else path
    if not file.is_file():
        raise EpisodeError(f"There are no weights in {file}: give a run that has ended.")
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError):
        raise EpisodeError(f"{file} is damaged: it holds no safetensors.") from None
