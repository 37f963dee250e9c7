"""Runs that a fault may strike: of the command line in one process, and of a Flower server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from strikes import Strike, install

from episode.cli.main import _fail, main
from episode.errors import EpisodeError
from federation import ROUNDS, grid, on_flower

SETTINGS = [
    "task=digits", "task.num_clients=3", "task.hidden=4", "task.time_steps=4",
    "algorithm=episode", "algorithm.momentum=0.5", "budget.local_steps=2",
    f"budget.rounds={ROUNDS}", "record.checkpoint_seconds=0", "engine.workers=1",
]  # fmt: skip


def play(engine: str, folder: str, strike: dict[str, Any] | None = None) -> None:
    """Play a run, or go on with it, and be struck on the way."""
    path = Path(folder)
    if strike is not None:
        install(Strike(**strike, folder=path, mark=path.with_suffix(".struck")))
    if engine == "simulation":
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        sys.argv = ["episode", "run", *sets, "--folder", folder, "--resume"]
        main()
    torch.set_num_threads(1)
    try:
        on_flower("episode", folder=path, grid=grid(), deadline=20.0)
    except EpisodeError as error:  # as the command line prints it
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}", 1)
