"""Read a run from its folder, as `fit` would return it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from episode.arguments import folder_path
from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.state import ServerState
from episode.results import per_client, store
from episode.runs.records import History, Run
from episode.runs.start import start_from


def load_run(folder: str | Path, model: nn.Module | None = None) -> Run:
    """Read a run from its folder, whether or not it has ended; no code that it names is run.

    Args:
        folder: The run's folder.
        model: A model of the same shape, which is given the run's weights; frozen parameters, which
            are not in the folder, must be those of the run. Without a model, the weights are in
            `run.x`, and in model.safetensors of the folder.

    Returns:
        The run, with the status "running" if it has not ended: it may have been stopped.

    Raises:
        EpisodeError: It is not the folder of a run, a file is damaged, or the model does not fit.

    Example:
        >>> import tempfile
        >>> import episode, torch
        >>> data, place = (torch.randn(8, 2), torch.randn(8, 1)), tempfile.mkdtemp()
        >>> loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
        >>> run = episode.fit(torch.nn.Linear(2, 1), [data, data], loss, eta=0.1, gamma=1.0,
        ...                   local_steps=2, rounds=3, batch_size=4, folder=place)
        >>> again = episode.load_run(place)
        >>> again.status, len(again.history), torch.equal(again.x, run.x)
        ('finished', 3, True)
    """
    path = folder_path("folder", folder)
    stored = store.read_run(path)
    status = stored.status if stored.status in ("finished", "diverged", "failed") else "running"
    names = per_client.read_names(path) or []
    history = History(stored.rounds, names)
    history.client_lines = per_client.read_lines(path)
    server = _state(path, str(stored.config.get("id", "")), status)
    run = Run(
        status,  # type: ignore[arg-type]  # one of the four
        history, stored.summary, server.x, server.buffers, path, None, names, read_back=True,
    )  # fmt: skip
    if model is not None:
        start_from(model, path)
        run.model = model
    return run


def _state(folder: Path, identity: str, status: str) -> ServerState:
    """Return the state of the last checkpoint; an empty one if none was written."""
    path = folder / (store.LAST_FINITE if status == "diverged" else store.CHECKPOINT)
    if not path.exists():
        if status in ("finished", "diverged"):
            raise EpisodeError(f"{folder} has a summary but no checkpoint.")
        return ServerState(torch.empty(0))
    return checkpoint.load(path, identity, "cpu")[0]
