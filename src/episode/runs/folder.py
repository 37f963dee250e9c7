"""A run's folder, while it is being written: append-only, and never half a file."""

from __future__ import annotations

import fcntl
import os
import platform
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
from torch import Tensor

from episode.errors import EpisodeError, differences
from episode.federation.checkpoint import write_tensors
from episode.files import write_whole
from episode.results import store
from episode.version import __version__


class RunFolder:
    """Where one run is written; holds a lock on the folder while open."""

    def __init__(self, path: Path, config: dict[str, Any], identity: str) -> None:
        self.path = path
        self.identity = identity
        self._config = config
        self._lock: IO[str] | None = None
        self._rounds: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise EpisodeError(
                f"The folder {self.path} cannot be written: {error.strerror}."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise EpisodeError(
                f"Another process is writing to {self.path}: wait for it, or choose another folder."
            ) from None
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._rounds:
            self._rounds.close()
        if self._lock:
            self._lock.close()

    def rounds(self) -> list[dict[str, Any]]:
        """All rounds written."""
        return store.read_rounds(self.path / store.ROUNDS)

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended, else None."""
        path = self.path / store.SUMMARY
        return store.read_json(path) if path.exists() else None

    def forget_failure(self) -> None:
        """A run that failed goes on: its summary is no longer true."""
        ended = self.summary()
        if ended is not None and ended["status"] == "failed":
            (self.path / store.SUMMARY).unlink()

    def keep_rounds(self, count: int) -> list[dict[str, Any]]:
        """Drops what was written after the checkpoint, and opens the file for what comes next."""
        path = self.path / store.ROUNDS
        kept = [r for r in self.rounds() if r["round"] < count]
        if len(kept) != count:
            raise EpisodeError(
                f"{path} has {len(kept)} rounds, but the checkpoint was written after {count}: "
                "remove the folder to start afresh."
            )
        self._write(store.ROUNDS, "".join(store.dumps(r) + "\n" for r in kept))
        self._rounds = path.open("a")
        return kept

    def append(self, record: dict[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        assert self._rounds is not None
        self._rounds.write(store.dumps(record) + "\n")
        self._rounds.flush()

    def sync(self) -> None:
        """What was appended is on the disk, before a checkpoint says so."""
        assert self._rounds is not None
        os.fsync(self._rounds.fileno())

    def finish(self, summary: dict[str, Any], model: dict[str, Tensor] | None = None) -> None:
        """Writes the model, then the summary: a folder with a summary is complete."""
        if model is not None:
            copies = {name: t.detach().cpu().clone() for name, t in model.items()}
            write_tensors(self.path / store.MODEL, copies)
        self._write(store.SUMMARY, store.dumps(summary, indent=2) + "\n")

    def _claim(self) -> None:
        """Makes the folder this run's, or refuses one that is another's."""
        path = self.path / store.CONFIG
        if not path.exists():
            self._write(store.ENVIRONMENT, store.dumps(environment(), indent=2) + "\n")
            values = {**self._config, "id": self.identity}
            self._write(store.CONFIG, store.dumps(values, indent=2) + "\n")
            return
        found = store.read_json(path)
        if not isinstance(found, dict) or found.get("id") != self.identity:
            config = store.loads(store.dumps(self._config))
            keys = differences(found, config) if isinstance(found, dict) else {}
            differing = [key for key in keys if key not in _HARMLESS]
            where = f" (they differ in {', '.join(differing)})" if differing else ""
            raise EpisodeError(
                f"The folder {self.path} holds a run of another configuration{where}: "
                "choose another folder, or remove this one."
            )

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode(), only_writer=True)  # we hold the lock


def environment() -> dict[str, Any]:
    """What the run ran on."""
    return {
        "episode": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


_HARMLESS = {
    "id",
    "engine.name",
    "engine.workers",
    "engine.timeout_seconds",
    "engine.min_replies",
    "engine.retries",
    "record.checkpoint_seconds",
}
