"""A run's checkpoint file: written by one process, or part by part by all of a cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from episode.engines.cluster import Cluster
from episode.federation import checkpoint
from episode.federation.state import ClientState, ServerState

State = tuple[ServerState, Mapping[int, ClientState]]


class Saves:
    """Where a run's state is kept between rounds; `round` is the last one that is there."""

    def __init__(self, path: Path, identity: str, device: str, cluster: Cluster | None) -> None:
        self.round = 0
        self._path = path
        self._identity = identity
        self._device = device
        self._cluster = cluster

    def read(self) -> State | None:
        """The state that was saved last, or None; on a cluster, of this rank's clients only."""
        if self._cluster is not None:
            found = self._read_together(self._cluster)
        elif self._path.exists():
            found = checkpoint.load(self._path, self._identity, self._device)
        else:
            return None
        self.round = found[0].round if found else 0
        return found

    def write(self, server: ServerState, clients: Mapping[int, ClientState]) -> None:
        """Makes this state the one to go on from."""
        if self._cluster is None:
            checkpoint.save(self._path, server, clients, self._identity)
            checkpoint.keep_parts(self._path.parent, [])
        else:
            self._write_together(self._cluster, server, clients)
        self.round = server.round

    def _read_together(self, cluster: Cluster) -> State | None:
        """The server's file comes from the first rank, clients from where their owner wrote them.

        (So hosts need not share a disk, as long as each comes back in its old place.)
        """
        data = None
        if cluster.writes:
            data = self._path.read_bytes() if self._path.exists() else b""
        data = cluster.from_first(data)
        if not data:
            return None
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / self._path.name
            copy.write_bytes(data)
            return checkpoint.load(
                copy,
                self._identity,
                self._device,
                parts_in=self._path.parent,
                place=(cluster.rank, cluster.size),
            )

    def _write_together(
        self, cluster: Cluster, server: ServerState, clients: Mapping[int, ClientState]
    ) -> None:
        """Every owner writes its clients; once all have, the first rank writes the server's file.

        Until that is there, the last checkpoint stands.
        """
        cluster.enter(f"at the checkpoint after round {server.round - 1}")
        subject = f"part-{server.round}"
        part = checkpoint.save_part(
            self._path.parent,
            clients,
            self._identity,
            round=server.round,
            rank=cluster.rank,
            ranks=cluster.size,
            previous=self.round,
        )
        cluster.tell(subject, part)
        if cluster.writes:
            heard = [cluster.hear(subject, rank) for rank in range(cluster.size)]
            parts = [name for name in heard if name]
            checkpoint.save(self._path, server, {}, self._identity, parts)
            checkpoint.keep_parts(self._path.parent, parts)
