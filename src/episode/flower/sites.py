"""The sites of a federation: which are connected, and which have come back.

Flower numbers its nodes at random and lets a server wait for ever. Here the number of a site is its
partition id, every wait has a limit, and errors name the sites that are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO

import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from episode.core.algorithm import Algorithm
from episode.errors import ClusterError, EpisodeError
from episode.federation.job import EngineSettings
from episode.federation.state import Buffers
from episode.flower.exchange import Failure, Outcome, exchange, nodes_of, pull, push
from episode.flower.layout import Layout
from episode.flower.messages import ARRAYS, buffers_of, label_of, unpack

_GRACE = 2.0
"""Seconds at the start in which a second node with the same partition id can show up."""
_HELLO_SECONDS = 3600.0
_AT_START = "At the start, before round 0:"


@dataclass(frozen=True)
class Limits:
    """How long a server waits, for how many sites, and how large a reply may be."""

    min_replies: int | None = None
    """Number of sites that must take part in a round; None for the whole cohort."""
    deadline: float = 600.0
    """Seconds that a site has for one phase."""
    retries: int = 2
    """How often a round with too few replies is attempted again."""
    start_seconds: float = 60.0
    """Seconds that sites have to connect, at the start and before another attempt."""
    max_norm: float | None = None
    """A gradient with a larger norm is rejected."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name, least in (("min_replies", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise EpisodeError(f"{name} is {value}: it must be {least} or more.")
        for name in ("deadline", "start_seconds", "max_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise EpisodeError(f"{name} is {value}: it must be more than 0.")

    @classmethod
    def of(cls, engine: EngineSettings) -> Limits:
        """Return the limits that a config sets."""
        seconds = engine.timeout_seconds
        return cls(engine.min_replies, seconds, engine.retries, seconds, engine.max_norm)


@dataclass(frozen=True)
class Introduction:
    """What a site has said about itself."""

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
        label = label_of(content)
        dtype = getattr(torch, str(label["dtype"]).removeprefix("torch."))
        numbers = {name: int(label[name]) for name in ("client", "partitions", "examples", "size")}
        return cls(
            node,
            **numbers,
            dtype=str(label["dtype"]),
            layout=Layout(**json.loads(label["layout"])) if label["layout"] else None,
            evaluates=bool(label["evaluates"]),
            buffers=buffers_of(unpack(content.array_records[ARRAYS], dtype)),
        )


Check = Callable[[Introduction], str | None]
"""Returns why a site must not take part, such as "has another model", or None."""


@dataclass
class Sites:
    """The sites of a federation, by their client's number."""

    grid: Grid
    limits: Limits
    seed: int
    check: Check = lambda _: None
    algorithm: Algorithm | None = None
    """If given, sites are asked whether they know all pieces of it."""
    told: Callable[[int], str] = lambda _: ""
    """What each client is told of the sites' agreement, as JSON; empty if there is none."""
    num_clients: int = 0
    known: dict[int, Introduction] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)
    """Nodes, by message, that were asked to introduce themselves and have not answered."""
    _greeted: set[int] = field(default_factory=set)
    _replacements: dict[int, Introduction] = field(default_factory=dict)
    """Nodes with the number of a site that still seems connected; it may have been restarted."""
    round: int = -1
    """The round that sites were last asked about."""

    def meet(self, num_clients: int | None = None) -> None:
        """Wait until all sites have connected, or enough of them when time runs out.

        Raises:
            EpisodeError: A site cannot take part.
            ClusterError: Too few sites have connected.
        """
        until = time.monotonic() + self.limits.start_seconds
        announced = complete = False
        self.num_clients = num_clients or 0
        while time.monotonic() < until and (self._due or not complete):
            for node, failure in self.greet().items():
                if failure.gone:
                    continue
                site = f"site {failure.client} (node {node})"
                who = site if failure.client >= 0 else f"node {node}"
                raise EpisodeError(f"{_AT_START} {who} cannot take part: it {failure.reason}")
            partitions = max((i.partitions for i in self.known.values()), default=0)
            self.num_clients = num_clients or partitions
            if not complete and 0 < self.num_clients <= len(self.known):
                complete, until = True, min(until, time.monotonic() + _GRACE)
            if not announced and not complete:
                log(INFO, "Waiting for sites: %d of %s", len(self.known), self.num_clients or "?")
                announced = True
            time.sleep(0.05)
        self.num_clients = self.num_clients or len(self.known)
        self._check_start()

    def greet(self, again: bool = False) -> dict[int, Failure]:
        """Ask new nodes to introduce themselves, and read the answers so far, without waiting.

        Args:
            again: Whether to ask nodes once more that have not answered.

        Returns:
            The nodes that cannot take part, and why.
        """
        nodes = nodes_of(self.grid)
        if again:
            answered = (*self.known.values(), *self._replacements.values())
            self._greeted &= {i.node for i in answered}
        self._greeted &= nodes
        new = nodes - self._greeted
        # A new node's number is not known yet; its introduction is the same for any.
        config = ConfigRecord({"seed": self.seed, "told": self.told(0)})
        if self.algorithm is not None:
            config["algorithm"] = json.dumps(self.algorithm.to_dict())
        contents = dict.fromkeys(new, RecordDict({"config": config}))
        self._due |= push(self.grid, contents, "query.episode", _HELLO_SECONDS, "hello")
        self._greeted |= new
        outcomes = pull(self.grid, self._due)
        failures = {node: self._admit(node, outcomes[node], nodes) for node in sorted(outcomes)}
        return {node: failure for node, failure in failures.items() if failure is not None}

    def connected(self, silent: Iterable[int] = ()) -> set[int]:
        """Return the clients whose sites are connected.

        A reconnected node replaces one that stopped answering.
        """
        here = nodes_of(self.grid)
        for client, site in list(self._replacements.items()):
            if client in silent or self.known[client].node not in here:
                self.known[client] = self._replacements.pop(client)
                log(INFO, "Site %d is now node %d", client, site.node)
        return {client for client, site in self.known.items() if site.node in here}

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, round: int, seconds: float
    ) -> dict[int, Outcome]:
        """Send one message to each of these clients; return each one's reply or failure."""
        self.round = round
        nodes = {client: self.known[client].node for client in contents}
        sent = {nodes[client]: content for client, content in contents.items()}
        replies = exchange(self.grid, sent, kind, seconds, str(round))
        return {client: replies[node] for client, node in nodes.items()}

    def _admit(self, node: int, outcome: Outcome, nodes: set[int]) -> Failure | None:
        """Read a node's introduction; return why it is not used as a site, or None if it is."""
        if isinstance(outcome, Failure):
            if "No query function" in outcome.reason:
                return Failure(
                    "does not know the messages of episode: call attach(app, ...) in its ClientApp"
                )
            return outcome
        try:
            found = Introduction.of(node, outcome)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return Failure(f"introduced itself in an unknown way ({error!r})")
        reason = self._objection(found)
        if reason is None:
            before = self.known.get(found.client)
            if before is None or before.node not in nodes:
                self.known[found.client] = found
                return None
            self._replacements[found.client] = found
            reason = f"has the partition-id of node {before.node}: give each site its own"
        return Failure(reason, found.client)

    def _objection(self, found: Introduction) -> str | None:
        if self.num_clients and found.client >= self.num_clients:
            return (
                f"has partition-id {found.client}, but there are {self.num_clients} sites: "
                f"number them from 0 to {self.num_clients - 1}"
            )
        if reason := self.check(found):
            return reason
        if any(site.layout != found.layout for site in self.known.values()):
            return "trains other parameters, or in another order, than the first site"
        return None

    def _check_start(self) -> None:
        wanted = self.limits.min_replies or self.num_clients
        if 0 < self.num_clients < wanted:
            raise EpisodeError(
                f"min_replies is {wanted}, but there are {self.num_clients} sites: lower it."
            )
        if len(self.known) < max(1, wanted):
            missing = sorted(set(range(self.num_clients)) - self.known.keys())
            who = f" (missing: {', '.join(f'site {c}' for c in missing)})" if missing else ""
            raise ClusterError(
                f"{_AT_START} {max(1, wanted)} sites are needed, but {len(self.known)} came within "
                f"{self.limits.start_seconds:g} s{who}: are their SuperNodes running?"
            )
