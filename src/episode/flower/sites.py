"""The sites of a federation: who they are, who has come, who has come back.

Flower knows nodes by random numbers, and lets a server wait for ever. Here a site is known by its
client's number (its partition id), and whoever is not there is known by name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from episode.errors import ClusterError, EpisodeError
from episode.federation.state import Buffers
from episode.flower.exchange import Outcome, Problem, exchange, nodes_of, pull, push
from episode.flower.layout import Layout
from episode.flower.messages import ANSWER, ARRAYS, HELLO, buffers_of, unpack_any

_GRACE = 2.0
"""Seconds in which a second node of one partition id is noticed at the start."""
_HELLO_SECONDS = 3600.0
_AT_START = "At the start, before round 0:"


@dataclass(frozen=True)
class Patience:
    """How long a server waits, and for how many."""

    min_replies: int | None = None
    """Sites that must take part in a round; None for all that were asked."""
    deadline: float = 600.0
    """Seconds that a site has for one phase."""
    retries: int = 2
    """Times that a round with too few replies is tried again."""
    start_seconds: float = 60.0
    """Seconds that sites have to connect, at the start and before a round is tried again."""
    max_norm: float | None = None
    """A gradient of a larger norm is rejected."""

    def __post_init__(self) -> None:
        """Refuses values that have no meaning."""
        if self.min_replies is not None and self.min_replies < 1:
            raise EpisodeError(f"min_replies is {self.min_replies}: it must be 1 or more.")
        for name in ("deadline", "start_seconds", "max_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise EpisodeError(f"{name} is {value}: it must be more than 0.")
        if self.retries < 0:
            raise EpisodeError(f"retries is {self.retries}: it must be 0 or more.")


@dataclass(frozen=True)
class Introduction:
    """What a site said about itself."""

    node: int
    client: int
    partitions: int
    examples: int
    size: int
    dtype: str
    layout: Layout | None
    evaluates: bool
    buffers: Buffers

    @classmethod
    def of(cls, node: int, content: RecordDict) -> Introduction:
        answer: dict[str, Any] = dict(content.config_records[ANSWER])
        dtype = getattr(torch, str(answer["dtype"]).removeprefix("torch."))
        layout = json.loads(answer["layout"]) if answer["layout"] else None
        return cls(
            node,
            int(answer["client"]),
            int(answer["partitions"]),
            int(answer["examples"]),
            int(answer["size"]),
            str(answer["dtype"]),
            Layout.from_dict(layout) if layout else None,
            bool(answer["evaluates"]),
            buffers_of(unpack_any(content.array_records[ARRAYS], dtype)),
        )


Check = Callable[[Introduction], str | None]
"""Why a site may not take part, if it may not: «has another model»."""


@dataclass
class Sites:
    """The sites of a federation, by their client's number."""

    grid: Grid
    patience: Patience
    seed: int
    check: Check = lambda _: None
    algorithm: str = ""
    """As JSON, so that a site that lacks one of its pieces says so before the first round."""
    num_clients: int = 0
    known: dict[int, Introduction] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)
    """Who was asked for an introduction and has not answered."""
    _greeted: set[int] = field(default_factory=set)
    _heirs: dict[int, Introduction] = field(default_factory=dict)
    """Who has the number of a site that seems to be there: it may have been restarted."""

    def meet(self, num_clients: int | None = None) -> None:
        """Waits until all have connected, or the time is over and enough have.

        A site that cannot take part stops the run here, before any work.
        """
        until = time.monotonic() + self.patience.start_seconds
        said = complete = False
        self.num_clients = num_clients or 0
        while time.monotonic() < until and not (complete and not self._due):
            for node, problem in self.greet().items():
                if problem.gone:
                    continue
                site = f"site {problem.client} (node {node})"
                who = site if problem.client >= 0 else f"node {node}"
                raise EpisodeError(f"{_AT_START} {who} cannot take part: it {problem.reason}")
            partitions = max((i.partitions for i in self.known.values()), default=0)
            self.num_clients = num_clients or partitions
            if not complete and 0 < self.num_clients <= len(self.known):
                complete, until = True, min(until, time.monotonic() + _GRACE)
            if not said and not complete:
                log(INFO, "Waiting for sites: %d of %s", len(self.known), self.num_clients or "?")
                said = True
            time.sleep(0.05)
        self.num_clients = self.num_clients or len(self.known)
        self._check_start()

    def greet(self, again: bool = False) -> dict[int, Problem]:
        """Asks nodes that are new who they are, and reads what has come; waits for nobody.

        Returns those that cannot take part, and why. `again` asks those too who have not answered.
        """
        nodes = nodes_of(self.grid)
        if again:
            answered = (*self.known.values(), *self._heirs.values())
            self._greeted &= {i.node for i in answered}
        self._greeted &= nodes
        new = nodes - self._greeted
        content = RecordDict(
            {"config": ConfigRecord({"seed": self.seed, "algorithm": self.algorithm})}
        )
        self._due |= push(self.grid, dict.fromkeys(new, content), HELLO, _HELLO_SECONDS, "hello")
        self._greeted |= new
        outcomes = pull(self.grid, self._due)
        problems = {node: self._let_in(node, outcomes[node], nodes) for node in sorted(outcomes)}
        return {node: problem for node, problem in problems.items() if problem is not None}

    def connected(self, silent: Iterable[int] = ()) -> set[int]:
        """The clients whose sites are there; an heir takes the place of one that was silent."""
        here = nodes_of(self.grid)
        for client, heir in list(self._heirs.items()):
            if client in silent or self.known[client].node not in here:
                self.known[client] = self._heirs.pop(client)
                log(INFO, "Site %d is now node %d", client, heir.node)
        return {client for client, site in self.known.items() if site.node in here}

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, round: int, seconds: float
    ) -> dict[int, Outcome]:
        """One message to each of these clients; a reply, or what is wrong, from each of them."""
        nodes = {client: self.known[client].node for client in contents}
        sent = {nodes[client]: content for client, content in contents.items()}
        replies = exchange(self.grid, sent, kind, seconds, str(round))
        return {client: replies[node] for client, node in nodes.items()}

    def _let_in(self, node: int, outcome: Outcome, nodes: set[int]) -> Problem | None:
        if isinstance(outcome, Problem):
            if "No query function" in outcome.reason:
                return Problem("does not know our messages: call attach(app, ...) in its ClientApp")
            return outcome
        try:
            found = Introduction.of(node, outcome)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return Problem(f"introduced itself in a way that we do not know ({error!r})")
        if self.num_clients and found.client >= self.num_clients:
            return Problem(
                f"has partition-id {found.client}, but there are {self.num_clients} sites: "
                f"number them from 0 to {self.num_clients - 1}",
                found.client,
            )
        if reason := self.check(found):
            return Problem(reason, found.client)
        before = self.known.get(found.client)
        if before is None or before.node not in nodes:
            self.known[found.client] = found
            return None
        self._heirs[found.client] = found
        return Problem(
            f"has the partition-id of node {before.node}: give each site its own", found.client
        )

    def _check_start(self) -> None:
        wanted = self.patience.min_replies or self.num_clients
        if 0 < self.num_clients < wanted:
            raise EpisodeError(
                f"min_replies is {wanted}, but there are {self.num_clients} sites: lower it."
            )
        if len(self.known) < max(1, wanted):
            missing = sorted(set(range(self.num_clients)) - self.known.keys())
            who = f" (missing: {', '.join(f'site {c}' for c in missing)})" if missing else ""
            raise ClusterError(
                f"{_AT_START} {max(1, wanted)} sites are needed, but {len(self.known)} came within "
                f"{self.patience.start_seconds:g} s{who}: are their SuperNodes running?"
            )


def warn(text: str) -> None:
    """A line in the run's log."""
    log(WARNING, text)
