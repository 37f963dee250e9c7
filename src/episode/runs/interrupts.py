"""Ctrl-C during a run: the round under way is finished and saved; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = "Stopping after this round (Ctrl-C again stops at once) ..."


@contextmanager
def asked_to_stop(say: Callable[[str], None], alone: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed.

    Outside the main thread, where Python delivers no signals, nobody is ever asked.

    Args:
        say: Is told that the run will stop.
        alone: Whether this is the only process. torchrun passes on a Ctrl-C that its processes
            have already received from the terminal, so that they ignore a second one.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: object) -> None:
        if asked and alone:
            raise KeyboardInterrupt
        if not asked and alone:
            say(STOPPING)
        asked.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
