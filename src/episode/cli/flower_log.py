"""The log of a Flower run while it is played: rounds, metrics and warnings, on stderr."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SHOWN = re.compile(r"\[ROUND \d+|Waiting for sites|WARNING|The run (has|is)")
"""Lines that say how a run goes; the others are Flower's own."""
LEVEL = re.compile(r"^\s*(INFO|WARNING)\s*:\s*")


@contextmanager
def followed(command: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """Show how a run goes, for as long as the context is open.

    Args:
        command: Prints the run's log as it grows, such as `flwr log 17 my-superlink`.
        say: Is given each line that matters.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    )
    reader = threading.Thread(target=_read, args=(process, say), name="episode-flower-log")
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        reader.join()
        process.wait()


def _read(process: subprocess.Popen[str], say: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            plain = COLOURS.sub("", line)
            if SHOWN.search(plain):
                say(LEVEL.sub("", plain).rstrip())
