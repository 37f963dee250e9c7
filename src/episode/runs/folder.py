"""A run's folder while it is written: rounds are appended, other files replaced as a whole."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from episode.errors import EpisodeError, differences
from episode.federation.checkpoint import write_tensors
from episode.federation.protocols import Task
from episode.federation.state import ServerState
from episode.files import is_open_file, lock, naming, open_to_append, refuse_link, write_whole
from episode.results import per_client, store
from episode.results.schema import damaged
from episode.version import __version__

PARAMETERS = "task.parameters."
FROZEN = "frozen"
"""Under this name, the file of a model holds the checksum of parameters that it does not hold."""


class Lines:
    """A file of lines of JSON, to which lines are appended once it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self.checksum = 0
        """Of all lines that this process has written."""

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace the file as a whole."""
        lines = "".join(map(_line, records)).encode()
        write_whole(self._path, lines, only_writer=True)  # the folder is locked
        self.checksum = zlib.crc32(lines)

    def open(self) -> None:
        """Open the file for lines to come."""
        self._file = open_to_append(self._path)

    def is_in_place(self) -> bool:
        """Whether the file that is open, if one is, is still the one in the folder."""
        return self._file is None or is_open_file(self._file, self._path)

    def append(self, record: dict[str, Any]) -> None:
        """Append a line."""
        assert self._file is not None
        line = _line(record)
        with naming(self._path):
            self._file.write(line)
            self._file.flush()
        self.checksum = zlib.crc32(line.encode(), self.checksum)

    def sync(self) -> None:
        """Force appended lines to the disk."""
        if self._file:
            with naming(self._path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, if it is open; a line that could not be written is given up."""
        if self._file:
            with suppress(OSError):  # `append` has raised it
                self._file.close()


def _line(record: dict[str, Any]) -> str:
    return store.dumps(record) + "\n"


class RunFolder:
    """The folder of one run; it is locked while open.

    Before anything is written, it must still be the folder that was locked: one that was removed
    and used again belongs to another run.
    """

    def __init__(self, path: Path, config: dict[str, Any], identity: str) -> None:
        self.path = path
        self.identity = identity
        self._config = config
        self._lock: IO[str] | None = None
        self._rounds = Lines(path / store.ROUNDS)
        self._clients = Lines(path / per_client.CLIENTS)
        self.expected: Mapping[str, int] = {}
        """Checksums that records must have, by the name of their file; see `sync`."""

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.path / store.LOCK)
        except OSError as error:
            raise EpisodeError(
                f"The folder {self.path} cannot be written: {error.strerror}."
            ) from None
        if self._lock is None:
            raise EpisodeError(
                f"Another process is writing to {self.path}: wait for it, or choose another folder."
            )
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._rounds.close()
        self._clients.close()
        if self._lock:
            self._lock.close()

    def check(self) -> None:
        """Raise an error unless this is still the folder that was locked, with no links in it."""
        assert self._lock is not None
        mine = is_open_file(self._lock, self.path / store.LOCK)
        if not (mine and self._rounds.is_in_place() and self._clients.is_in_place()):
            raise EpisodeError(
                f"The folder {self.path} was removed or replaced during this run, which therefore "
                "stops: start it again, in a folder of its own."
            )
        refuse_link(self.path / Path(store.CHECKPOINT).parent)

    def rounds(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the records of the first rounds, or of all if the run has ended."""
        path = self.path / store.ROUNDS
        found = store.read_rounds(path)
        store.check_agreement(self.path, found, self.summary() or {})
        kept = found[:count]
        if count is not None and len(kept) != count:
            raise EpisodeError(
                f"{path} has {len(kept)} rounds, but the checkpoint was written after {count}: "
                "remove the folder to start afresh."
            )
        if not self._is_as_written(store.ROUNDS, kept):
            what = "it was changed after the checkpoint was written"
            raise damaged(path, what)
        return kept

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a run that has ended, else None."""
        return store.read_summary(self.path) or None

    def forget_failure(self) -> None:
        """Remove the summary of a failed run, because the run goes on."""
        ended = self.summary()
        if ended is not None and ended["status"] == "failed":
            self.check()
            (self.path / store.SUMMARY).unlink()

    def keep_rounds(self, count: int) -> list[dict[str, Any]]:
        """Drop rounds written after the checkpoint, and open the file for those that follow."""
        kept = self.rounds(count)
        self.check()
        self._rounds.rewrite(kept)
        self._rounds.open()
        return kept

    def clients(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the records of each client in the first rounds, or in all.

        The user may have deleted them.
        """
        path = self.path / per_client.CLIENTS
        found = per_client.read_lines(self.path)
        kept = [line for line in found if count is None or line["round"] < count]
        if path.exists() and not self._is_as_written(per_client.CLIENTS, kept):
            raise EpisodeError(
                f"{path} was changed after the checkpoint was written: delete this file to go on "
                "without the records of each client."
            )
        return kept

    def check_summary(self, summary: Mapping[str, Any], names: Sequence[str]) -> None:
        """Refuse a summary that is not that of the records of each client, if there are any."""
        clients = per_client.summarise(self.clients(), names)
        if clients and store.dumps(clients) != store.dumps(summary.get(per_client.PER_CLIENT)):
            what = f"{per_client.PER_CLIENT} is not what {per_client.CLIENTS} says"
            raise damaged(self.path / store.SUMMARY, what)

    def _is_as_written(self, name: str, records: Iterable[dict[str, Any]]) -> bool:
        lines = "".join(map(_line, records)).encode()
        return self.expected.get(name) in (None, zlib.crc32(lines))

    def keep_clients(self, count: int, goes_on: bool) -> list[dict[str, Any]]:
        """Drop what was written of clients after the checkpoint.

        Args:
            count: Rounds of the checkpoint. Some may be missing, if the records were off.
            goes_on: Whether records of the rounds that follow are appended.
        """
        kept = self.clients(count)
        self.check()
        if goes_on or (self.path / per_client.CLIENTS).exists():
            self._clients.rewrite(kept)
        if goes_on:
            self._clients.open()
        return kept

    def append(self, record: dict[str, Any]) -> None:
        """Append a line to rounds.jsonl."""
        self.check()
        self._rounds.append(record)

    def append_clients(self, line: dict[str, Any]) -> None:
        """Append a line to clients.jsonl."""
        self._clients.append(line)

    def sync(self) -> dict[str, int]:
        """Force appended rounds to the disk, before a checkpoint counts on them.

        Returns:
            Checksums of all records, by the name of their file, for the checkpoint to hold.
        """
        self._rounds.sync()
        self._clients.sync()
        return {store.ROUNDS: self._rounds.checksum, per_client.CLIENTS: self._clients.checksum}

    def finish(
        self, summary: dict[str, Any], task: Task | None = None, server: ServerState | None = None
    ) -> None:
        """Write the task's model at x̄, then the summary: a folder with a summary is complete."""
        model = task.state_dict(server.x, server.buffers) if task and server else None
        if task is not None and model is not None:
            tensors = {name: t for name, t in model.items() if isinstance(t, Tensor)}
            copies = {name: _storable(t) for name, t in tensors.items()}
            self._check_place(store.MODEL)
            frozen = task.frozen_checksum
            metadata = {FROZEN: frozen} if frozen else None
            write_tensors(self.path / store.MODEL, copies, metadata)
        self._write(store.SUMMARY, store.dumps(summary, indent=2) + "\n")

    def write_label_counts(self, counts: store.LabelCounts | None) -> None:
        """Store who has which labels, for reports."""
        if counts is not None:
            self._write(store.PARTITION, store.dumps(dataclasses.asdict(counts)) + "\n")

    def write_client_names(self, names: Sequence[str]) -> None:
        """Store the names of the clients, for tables and reports."""
        self._write(per_client.CLIENT_NAMES, store.dumps([*names]) + "\n")

    def _claim(self) -> None:
        """Claim the folder for this run, or raise an error if it holds another."""
        path = self.path / store.CONFIG
        if not path.exists():
            self._write(store.ENVIRONMENT, store.dumps(environment(), indent=2) + "\n")
            values = {**self._config, "id": self.identity}
            self._write(store.CONFIG, store.dumps(values, indent=2) + "\n")
            return
        found = store.read_config(self.path)
        if found.get("id") != self.identity:
            config = store.loads(store.dumps(self._config))
            keys = differences(found, config)
            differing = [key for key in keys if key not in (*store.NOT_DECIDING, "id")]
            where = f" (they differ in {', '.join(differing)})" if differing else ""
            if shapes := [key for key in differing if key.startswith(PARAMETERS)]:
                where = f" ({_difference_in(shapes[0], *keys[shapes[0]])})"
            raise EpisodeError(
                f"The folder {self.path} holds a run of another configuration{where}: "
                f"choose another folder, or remove this one{hint(differing)}."
            )

    def _check_place(self, name: str) -> None:
        """Raise an error if the folder is not this run's any more, or has a folder of this name."""
        self.check()
        if (self.path / name).is_dir():
            raise damaged(self.path / name, "it is a folder")

    def _write(self, name: str, text: str) -> None:
        self._check_place(name)
        write_whole(self.path / name, text.encode(), only_writer=True)  # we hold the lock


def _difference_in(key: str, old: list[int] | None, new: list[int] | None) -> str:
    """Say in which parameter two models differ, which may differ in hundreds of them."""
    name = key.removeprefix(PARAMETERS)
    if old is None or new is None:
        return f"{'it' if new is None else 'this model'} trains {name}, and the other does not"
    return f"it trains {name} of the shape {old}, and this model has {new}"


def _storable(tensor: Tensor) -> Tensor:
    """Return a copy that safetensors can store; complex128 become pairs, sparse tensors dense."""
    values = tensor.detach().cpu()
    if values.layout != torch.strided:
        values = values.to_dense()
    if values.dtype == torch.complex128:
        values = torch.view_as_real(values.resolve_conj())
    return values.clone(memory_format=torch.contiguous_format)


def hint(differing: list[str]) -> str:
    """Say how a model gets the initial weights that it had before, if only they differ."""
    if differing != ["task.initial_state"]:
        return ""
    return "; to go on with it, build the model as before, after the same torch.manual_seed"


def environment() -> dict[str, Any]:
    """Return the versions, the machine and the command of this run."""
    return {
        "episode": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
