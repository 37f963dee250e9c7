"""SIGKILL at a moment that the work itself tells."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    """Kills a process as soon as it has come so far, unless it has ended before."""
    deadline = time.monotonic() + 120
    while process.poll() is None and not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
