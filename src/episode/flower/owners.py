"""Which node a partition belongs to: the one with the key that it was first seen with.

A site's state (its memory is a raw mean gradient) must not be sent to whoever claims its number, so
another node takes a partition over only if the operator allows it. With a folder the owners are
stored beside the run, because a run that is started again sends states from its checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from episode.errors import EpisodeError
from episode.files import parse_json, read_regular, write_whole

FILE = "sites.json"
"""In the run's folder: the identity of each site's node, by the site's number."""


@dataclass
class Owners:
    """The identities of the nodes to which partitions belong, by the client's number."""

    allow_takeover: bool = False
    path: Path | None = None
    """File that holds them between two starts of a run; None for nowhere."""
    known: dict[int, str] = field(default_factory=dict)
    _stored: bool = False

    @classmethod
    def of(cls, folder: Path | None, allow_takeover: bool) -> Owners:
        """Return the owners that a run's folder names; none if there is no folder yet.

        Raises:
            EpisodeError: The file is damaged.
        """
        path = None if folder is None else folder / FILE
        if path is None or not path.exists():
            return cls(allow_takeover, path)
        try:
            found = parse_json(read_regular(path))
            known = {int(client): identity for client, identity in found.items()}
            if not all(isinstance(identity, str) for identity in known.values()):
                raise TypeError
        except (AttributeError, TypeError, ValueError, OSError):
            raise EpisodeError(
                f"{path} is damaged: put back a copy of it, or remove it to let the nodes that "
                "are connected at the next start have the sites that they name."
            ) from None
        return cls(allow_takeover, path, known)

    def objection(self, client: int, identity: str) -> str | None:
        """Return why a node must not be this client's site, or None if it may."""
        owner = self.known.get(client)
        if owner is None or owner == identity or self.allow_takeover:
            return None
        return (
            f"claims partition-id {client}, which belongs to another node: start that site with "
            "the node key that it had, or allow this with allow_takeover"
        )

    def add(self, client: int, identity: str) -> None:
        """Let a partition belong to a node."""
        if self.known.get(client) != identity:
            self.known[client] = identity
            if self._stored:
                self.store()

    def store(self) -> None:
        """Write the owners, now and whenever they change; the folder must be this run's."""
        self._stored = True
        if self.path is not None:
            owners = {str(client): self.known[client] for client in sorted(self.known)}
            text = json.dumps(owners, indent=2) + "\n"
            write_whole(self.path, text.encode(), only_writer=True)
