"""Processes of our own, each with a line to it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


def start_apart(target: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
    """A process that runs `target(line, *args)`, and our end of its line; it ends with us.

    Ctrl-C is not for it, from its first moment on: so it cannot be hit while it still imports.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args), daemon=True)
    resource_tracker.ensure_running()  # its start, at the first process's, would undo the next line
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it inherits
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return process, ours
