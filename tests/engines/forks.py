"""Start runs in milliseconds: a helper process forks them, and its imports are done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import ENVIRONMENT, PROGRAMS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Player:
    """A run that has been started."""

    pid: int
    log: Path

    def wait_until_stopped(self, seconds: float = 60) -> None:
        """Wait for SIGSTOP to have stopped it."""
        until = time.monotonic() + seconds
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.01)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Forks:
    """The helper; one run at a time. Leaving the context ends it."""

    def __enter__(self) -> Forks:
        paths = [HERE, HERE.parent / "flower"]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        self._helper = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "forks.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._helper.pid, signal.SIGKILL)
        self._helper.communicate(timeout=30)

    def start(self, engine: str, folder: Path, strike: dict[str, Any] | None = None) -> Player:
        log = folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        order = {"engine": engine, "folder": str(folder), "strike": strike, "log": str(log)}
        assert self._helper.stdin is not None
        self._helper.stdin.write(json.dumps(order) + "\n")
        self._helper.stdin.flush()
        return Player(self._answer(), log)

    def wait(self) -> int:
        """Return the exit code of the run that was started last; negative for a signal."""
        return self._answer()

    def play(
        self, engine: str, folder: Path, strike: dict[str, Any] | None = None
    ) -> tuple[int, str]:
        """Play a run to its end; return its exit code and what it has printed."""
        player = self.start(engine, folder, strike)
        return self.wait(), player.log.read_text()

    def _answer(self) -> int:
        assert self._helper.stdout is not None
        return int(self._helper.stdout.readline())
