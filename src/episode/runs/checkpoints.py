"""The checkpoint of a run: one file, or on a cluster one file and a part from each process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.job import Job
from episode.federation.state import ClientState, ServerState
from episode.files import read_regular, refuse_link
from episode.runs.config import identity_of

State = tuple[ServerState, Mapping[int, ClientState]]


class Checkpoints:
    """Reads and writes a run's state between rounds.

    Args:
        path: The server's file.
        job: The run.
        check: Called before the server's file is written; raises an error if it must not be.
    """

    def __init__(self, path: Path, job: Job, check: Callable[[], None] = lambda: None) -> None:
        self.round = 0
        """Rounds played by the state that was last read or written."""
        self.records: Mapping[str, int] = {}
        """Checksums of the records that had been written when the state that was read was."""
        self._was_there = False
        self._path = path
        self._check = check
        self._identity = identity_of(job.config)
        self._device = job.engine.device
        self._processes = job.processes
        self._owners = job.owners.checksum if job.owners else None

    def read(self) -> State | None:
        """Return the state that was saved last, or None; on a cluster, of this rank's clients.

        The first process sends the server's file to all; clients are read where their owner wrote
        them. So hosts need not share a disk, as long as each comes back with its old rank.
        """
        processes = self._processes
        exists = processes.writes and self._path.exists()
        if processes.size == 1:
            found = self._load(self._path) if exists else None
        else:
            data = processes.from_first(read_regular(self._path) if exists else b"")
            found = self._load_copy(data) if data else None
        self.round = found[0].round if found else 0
        self.records = checkpoint.records_of(self._path) if exists else {}
        return found

    def write(
        self,
        server: ServerState,
        clients: Mapping[int, ClientState],
        records: Mapping[str, int] | None = None,
    ) -> None:
        """Make this state the one to go on from, with the checksums of the records until then.

        On a cluster every process writes its own clients; once all have, the first writes the
        server's file. Until that is done, the last checkpoint remains valid.
        """
        folder = self._path.parent
        self._require(folder)
        refuse_link(folder)
        if not (self._processes.writes or self._was_there):  # it may be on another host
            folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write(folder, server, clients, records)
        except OSError as error:
            self._require(folder)  # if it was removed meanwhile, that is the reason
            if isinstance(error, FileNotFoundError):  # its files are being removed
                raise _removed(folder) from None
            raise
        self.round = server.round
        self._was_there = folder.exists()  # a rank without client states makes none

    def _write(
        self,
        folder: Path,
        server: ServerState,
        clients: Mapping[int, ClientState],
        records: Mapping[str, int] | None,
    ) -> None:
        processes = self._processes
        parts: list[str] = []
        files = [checkpoint.file_beside(clients, folder)]
        if processes.size > 1:
            processes.enter(f"at the checkpoint after round {server.round - 1}")
            last, place = self.round, (processes.rank, processes.size)
            name = checkpoint.save_part(folder, clients, self._identity, place, server.round, last)
            told = processes.gather(f"part-{server.round}", f"{name}/{files[0]}")
            parts = [name for name, _, _ in (text.partition("/") for text in told) if name]
            files = [name for _, _, name in (text.partition("/") for text in told)]
            clients = {}
        if processes.writes:
            self._check()
            checkpoint.save(
                self._path, server, clients, self._identity, parts, self._owners, records
            )
            checkpoint.keep_only(folder, [*parts, *files])

    def _require(self, folder: Path) -> None:
        """Raise an error if the folder was removed since the last checkpoint."""
        if folder.exists():
            return
        self._check()
        if self._was_there:
            raise _removed(folder)

    def _load_copy(self, data: bytes) -> State:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / self._path.name
            copy.write_bytes(data)
            return self._load(copy)

    def _load(self, path: Path) -> State:
        place = (self._processes.rank, self._processes.size)
        return checkpoint.load(
            path,
            self._identity,
            self._device,
            parts_in=self._path.parent,
            place=place,
            owners=self._owners,
        )


def _removed(folder: Path) -> EpisodeError:
    return EpisodeError(
        f"The folder {folder} was removed during this run, which therefore stops: start it again, "
        "in a folder of its own."
    )
