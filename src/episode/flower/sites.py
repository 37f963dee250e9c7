"""The sites of a federation: which are connected, and which have come back.

Flower numbers its nodes at random and lets a server wait for ever. Here the number of a site is its
partition id, every wait has a limit, and errors name the sites that are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from episode.core.algorithm import Algorithm
from episode.errors import ClusterError, EpisodeError
from episode.federation.job import MOST_EXAMPLES, EngineSettings
from episode.flower.checks import Rejected
from episode.flower.exchange import Failure, Outcome, exchange, nodes_of, pull, push
from episode.flower.introductions import Agreement, Introduction as Introduction
from episode.flower.owners import Owners

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
    """A gradient with a larger norm is rejected, and what only larger ones can lead to."""
    allow_takeover: bool = False
    """Whether another node may take the place of a site, and be sent its state."""
    max_examples: int = MOST_EXAMPLES
    """A site that claims more examples is refused."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name, least in (("min_replies", 1), ("retries", 0), ("max_examples", 1)):
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
        names = ("min_replies", "retries", "max_norm", "allow_takeover", "max_examples")
        given = {name: getattr(engine, name) for name in names}
        seconds = engine.timeout_seconds
        return cls(deadline=seconds, start_seconds=seconds, **given)


Check = Callable[[Introduction], str | None]
"""Returns why a site must not take part, such as "has another model", or None."""


@dataclass
class Sites:
    """The sites of a federation, by their client's number.

    Before the first round they must agree on the model. If every site is needed, one that does not
    ends the run, which names it. With `min_replies` it is left out, and so is any that the majority
    does not agree with.
    """

    grid: Grid
    limits: Limits
    seed: int
    check: Check = lambda _: None
    algorithm: Algorithm | None = None
    """If given, sites are asked whether they know all pieces of it."""
    owners: Owners = field(default_factory=Owners)
    told: Callable[[int], str] = lambda _: ""
    """What each client is told of the sites' agreement, as JSON; empty if there is none."""
    secure: bool = False
    """Whether sites answer in masked sums only."""
    num_clients: int = 0
    known: dict[int, Introduction] = field(default_factory=dict)
    agreement: Agreement | None = None
    """What all sites agree on, once they have been met."""
    _due: dict[str, int] = field(default_factory=dict)
    """Nodes, by message, that were asked to introduce themselves and have not answered."""
    _greeted: set[int] = field(default_factory=set)
    _nodes: dict[int, str] = field(default_factory=dict)
    """The nodes that were last seen, with their identities."""
    _replacements: dict[int, Introduction] = field(default_factory=dict)
    """Nodes with the number of a site that still seems connected; it may have been restarted."""
    _rivals: dict[int, Introduction] = field(default_factory=dict)
    """Nodes that claimed a site's number before the first round, when it belonged to nobody yet."""
    _refused: dict[int, Failure] = field(default_factory=dict)
    """Nodes that were refused at the start, and why."""
    _number_is_given: bool = False
    """Whether `num_clients` is known in advance, and not by what sites say."""
    round: int = -1
    """The round that sites were last asked about."""

    def meet(self, num_clients: int | None = None) -> None:
        """Wait until all sites have connected, or enough of them when time runs out.

        Raises:
            EpisodeError: A site cannot take part, and every site is needed.
            ClusterError: Too few sites have connected.
        """
        until = time.monotonic() + self.limits.start_seconds
        announced = complete = False
        self.num_clients, self._number_is_given = num_clients or 0, bool(num_clients)
        while time.monotonic() < until and (self._due or not complete):
            for node, failure in self.greet().items():
                self._refuse(node, failure)
            if self.known and not num_clients:
                self.num_clients = Agreement.of(self.known.values()).partitions
            wanted = max(self.num_clients, self.limits.min_replies or 1)
            if not complete and self.num_clients and wanted <= len(self.known):
                complete, until = True, min(until, time.monotonic() + _GRACE)
            if not announced and not complete:
                log(INFO, "Waiting for sites: %d of %s", len(self.known), self.num_clients or "?")
                announced = True
            time.sleep(0.05)
        self._settle()
        self.num_clients = self.num_clients or len(self.known)
        self._check_start()

    def greet(self, again: bool = False) -> dict[int, Failure]:
        """Ask new nodes to introduce themselves, and read the answers so far, without waiting.

        Args:
            again: Whether to ask nodes once more that have not answered.

        Returns:
            The nodes that cannot take part, and why.
        """
        self._nodes = nodes_of(self.grid)
        nodes = self._nodes.keys()
        if again:
            kept = (self.known, self._replacements, self._rivals)
            answered = [site for sites in kept for site in sites.values()]
            self._greeted &= {i.node for i in answered}
        self._greeted &= nodes
        new = nodes - self._greeted
        # A new node's number is not known yet; its introduction is the same for any.
        config = ConfigRecord({"seed": self.seed, "told": self.told(0)})
        if self.secure:
            config["secure"] = True
        if self.algorithm is not None:
            config["algorithm"] = json.dumps(self.algorithm.to_dict())
        contents = dict.fromkeys(new, RecordDict({"config": config}))
        self._due |= push(self.grid, contents, "query.episode", _HELLO_SECONDS, "hello")
        self._greeted |= new
        outcomes = pull(self.grid, self._due)
        failures = {node: self._admit(node, outcomes[node]) for node in sorted(outcomes)}
        return {node: failure for node, failure in failures.items() if failure is not None}

    def connected(self, silent: Iterable[int] = ()) -> set[int]:
        """Return the clients whose sites are connected.

        A reconnected node replaces one that stopped answering, if it may.
        """
        self._nodes = nodes_of(self.grid)
        self._greeted &= self._nodes.keys()
        for client, site in (*self._replacements.items(), *self._rivals.items()):
            if client in silent or self.known[client].node not in self._nodes:
                self._replacements.pop(client, None)
                self._rivals.pop(client, None)
                if site.node in self._nodes:
                    self._take_in(site)
                    log(INFO, "Site %d is now node %d", client, site.node)
        return {client for client, site in self.known.items() if site.node in self._nodes}

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, round: int, seconds: float
    ) -> dict[int, Outcome]:
        """Send one message to each of these clients; return each one's reply or failure."""
        if 0 <= self.round < round:  # whoever took part in the first round keeps its number
            self._rivals.clear()
        self.round = round
        nodes = {client: self.known[client].node for client in contents}
        sent = {nodes[client]: content for client, content in contents.items()}
        replies = exchange(self.grid, sent, kind, seconds, str(round))
        return {client: replies[node] for client, node in nodes.items()}

    def believe(self, client: int) -> None:
        """Let a site keep its number for good: its reply was good, so no rival takes its place."""
        self._rivals.pop(client, None)

    def identity_of(self, client: int) -> str:
        """Return what identifies a site's node: the hash of its key, if it has one."""
        return self._identity(self.known[client])

    def _admit(self, node: int, outcome: Outcome) -> Failure | None:
        """Read a node's introduction; return why it is not used as a site, or None if it is."""
        if isinstance(outcome, Failure):
            if "No query function" in outcome.reason:
                return Failure(
                    "does not know the messages of episode: call attach(app, ...) in its ClientApp"
                )
            return outcome
        client = -1
        try:
            found = Introduction.of(node, outcome, self.limits.max_examples)
            client = found.client
            reason = self._objection(found) or self._place(found)
        except Rejected as rejected:
            reason = str(rejected)
        except Exception as error:  # noqa: BLE001 - whatever it says, it must not end the run
            reason = f"introduced itself in an unknown way ({type(error).__name__})"
        return None if reason is None else Failure(reason, client)

    def _objection(self, found: Introduction) -> str | None:
        """Return why a node cannot be a site, whoever else is there."""
        is_decided = self._number_is_given or not self._is_open()
        if is_decided and 0 < self.num_clients <= found.client:
            return (
                f"has partition-id {found.client}, but there are {self.num_clients} sites: "
                f"number them from 0 to {self.num_clients - 1}"
            )
        for client, site in self.known.items():
            if site.node == found.node and client != found.client:
                return f"is site {client} already, and cannot be site {found.client} as well"
        if reason := self.check(found):
            return reason
        agreement = self.agreement
        if agreement is None and self.known and not self._is_open():
            agreement = Agreement.of(self.known.values())
        return agreement.objection(found, not self._number_is_given) if agreement else None

    def _place(self, found: Introduction) -> str | None:
        """Let a node be the site whose number it has, or return why it cannot be."""
        before = self.known.get(found.client)
        objection = self.owners.objection(found.client, self._identity(found))
        if before is None or before.node == found.node or before.node not in self._nodes:
            if objection is None:
                self._take_in(found)
            return objection
        if objection is None:
            self._replacements[found.client] = found
        return f"has the partition-id of node {before.node}: give each site its own"

    def _take_in(self, site: Introduction) -> None:
        """Let a node be a site; from the first round on its partition belongs to it."""
        self.known[site.client] = site
        if self.agreement is not None:
            self.owners.add(site.client, self._identity(site))

    def _identity(self, site: Introduction) -> str:
        return self._nodes.get(site.node, f"node {site.node}")

    def _is_open(self) -> bool:
        """Whether it is still to be decided what sites must agree on."""
        return self.agreement is None and self.limits.min_replies is not None

    def _refuse(self, node: int, failure: Failure) -> None:
        """Leave a node out at the start, or end the run if every site is needed."""
        if failure.gone:
            return
        site = f"site {failure.client} (node {node})"
        who = site if failure.client >= 0 else f"node {node}"
        if self.limits.min_replies is None:
            raise EpisodeError(f"{_AT_START} {who} cannot take part: it {failure.reason}")
        self._refused[node] = failure
        log(WARNING, "%s %s is left out: it %s", _AT_START, who, failure.reason)

    def _settle(self) -> None:
        """Leave out sites that the majority does not agree with; the others have their places."""
        if not self.known:
            return
        agreement = Agreement.of(self.known.values())
        for client, site in sorted(self.known.items()):
            reason = agreement.objection(site, not self._number_is_given)
            if reason is None and 0 < self.num_clients <= client:
                reason = f"has partition-id {client}, but there are {self.num_clients} sites"
            if reason is not None:
                del self.known[client]
                self._refuse(site.node, Failure(reason, client))
        waiting, self._replacements = self._replacements, {}
        for client, site in sorted(waiting.items()):
            if agreement.objection(site, not self._number_is_given):
                continue
            if client not in self.known:
                self.known[client] = site
            else:
                kept = self._replacements if self.limits.allow_takeover else self._rivals
                kept[client] = site
        self.agreement = agreement
        for site in self.known.values():
            self._take_in(site)

    def _check_start(self) -> None:
        wanted = self.limits.min_replies or self.num_clients
        if 0 < self.num_clients < wanted:
            raise EpisodeError(
                f"min_replies is {wanted}, but there are {self.num_clients} sites: lower it."
            )
        if len(self.known) < max(1, wanted):
            missing = sorted(set(range(self.num_clients)) - self.known.keys())
            who = f" (missing: {', '.join(f'site {c}' for c in missing)})" if missing else ""
            refused = "".join(f"; node {n} {f.reason}" for n, f in self._refused.items())
            raise ClusterError(
                f"{_AT_START} {max(1, wanted)} sites are needed, but {len(self.known)} came within "
                f"{self.limits.start_seconds:g} s{who}: are their SuperNodes running?{refused}"
            )
