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
from episode.runs.folder import FROZEN
from episode.runs.records import Run
from episode.tasks.weights import load_trained

log = logging.getLogger("episode")


def start_from(model: nn.Module, origin: Any) -> None:
    """Copy weights into a model, before a new run begins.

    Args:
        model: The model that will be trained.
        origin: A `Run`, the folder of one, a file of safetensors, or a state dict.

    Raises:
        EpisodeError: There are no such weights, or they do not fit the model.
    """
    state, frozen, name = _state_of(origin)
    load_trained(model, state, frozen, name)
    log.info(
        "Starts from the weights of %s, at round 0: memories and momenta begin empty, and batches "
        "are drawn anew.",
        name,
    )


def _state_of(origin: Any) -> tuple[Mapping[str, Tensor], str, str]:
    """Return weights, the checksum of what was frozen beside them, and what they are."""
    if isinstance(origin, Run) and origin.model is not None:
        return origin.model.state_dict(), "", "another run"
    if isinstance(origin, Run):
        origin = origin.folder
    if isinstance(origin, (str, Path)):
        return *read_weights(Path(origin)), str(origin)
    if isinstance(origin, Mapping):
        return origin, "", "a state dict"
    raise EpisodeError(
        f"start_from is {shown(origin)}: give a Run, its folder, a .safetensors file, or a state "
        "dict."
    )


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read the weights of a run's folder, or of a file of safetensors.

    Returns:
        The weights, and the checksum of what was frozen beside them; empty if it is not known.
    """
    from safetensors import SafetensorError, safe_open

    file = path / store.MODEL if path.is_dir() else path
    if not file.is_file():
        raise EpisodeError(f"There are no weights in {file}: give a run that has ended.")
    try:
        with safe_open(file, framework="pt") as opened:
            frozen = (opened.metadata() or {}).get(FROZEN, "")
            return {name: opened.get_tensor(name) for name in opened.keys()}, frozen  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise EpisodeError(f"{file} is damaged: it holds no safetensors.") from None
