"""Messages to nodes and their replies, with a deadline for each.

Replies are pulled one by one. A reply that Flower cannot read is then the failure of the node that
sent it, and of no other; and whose reply it is, is known by the message that was asked for, not by
what the reply says.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import HEARTBEAT_INTERVAL_INF
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from episode.errors import ClusterError
from episode.federation.state import ClientState
from episode.flower.messages import Answer, Ask, Rejected, label_of
from episode.flower.texts import last_line, one_line

T = TypeVar("T")
SUPERLINK_SECONDS = 60.0
"""How long the SuperLink may be out of reach. In a phase it has at least as long as the sites have,
because sending a large model takes time."""


@dataclass(frozen=True)
class Failure:
    """Why a node gave no usable reply; the reason continues a sentence about the site."""

    reason: str
    client: int = -1
    """The client concerned, or -1 if it is not known."""
    gone: bool = False
    """Whether the SuperLink no longer knows the node."""

    def __post_init__(self) -> None:
        """Make the reason fit for a log: part of it may be the site's own words."""
        object.__setattr__(self, "reason", one_line(self.reason))


Outcome = RecordDict | Failure
SIMULATED = "simulated"
_GONE = (3, 4, 5)
"""Flower's error codes for a message, a reply or a node that is not available."""


def exchange(
    grid: Grid, contents: Mapping[int, RecordDict], kind: str, seconds: float, group: str
) -> dict[int, Outcome]:
    """Send one message to each node; return each node's reply or failure."""
    limit = max(seconds, SUPERLINK_SECONDS)
    due = push(grid, contents, kind, seconds, group, limit)
    replies: dict[int, Outcome] = {}
    until, pause = time.monotonic() + seconds, 0.01
    while due and time.monotonic() < until:
        replies |= pull(grid, due, limit)
        if due:
            time.sleep(pause)
            pause = min(1.3 * pause, 0.25)
    silent = Failure(f"did not reply within {seconds:.3g} s")
    return {node: replies.get(node, silent) for node in contents}


def nodes_of(grid: Grid) -> dict[int, str]:
    """Return the nodes that the SuperLink lists as connected, each with what identifies it.

    A node is identified by its public key: with node keys it is the same after a restart, even of
    the SuperLink. A SuperNode that is started without a key makes one for itself, so it is another
    node after a restart. Simulated nodes are this machine's own, and count as one and the same.
    """
    return {
        info.node_id: _identity(info)
        for info in within(SUPERLINK_SECONDS, lambda: list(grid.get_nodes()))
    }


def _identity(node: NodeInfo) -> str:
    if node.heartbeat_interval >= HEARTBEAT_INTERVAL_INF:  # real nodes are not allowed such a value
        return SIMULATED
    if not node.public_key:
        return f"node {node.node_id}"
    return hashlib.sha256(node.public_key).hexdigest()


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what a call to the SuperLink returns, or raise a ClusterError if it takes too long.

    Flower never gives up on a SuperLink that is gone. So the call runs on a thread of its own, and
    this thread, which waits, holds none of Flower's locks when a signal ends the process.
    """
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            answer.set_exception(error)

    Thread(target=call, name="episode-superlink", daemon=True).start()
    until = time.monotonic() + seconds
    while not answer.done() and time.monotonic() < until:
        wait([answer], timeout=0.5)  # signals are handled between two waits
    if not answer.done():
        raise ClusterError(f"The SuperLink did not answer within {seconds:.3g} s.")
    return answer.result()


def push(
    grid: Grid,
    contents: Mapping[int, RecordDict],
    kind: str,
    seconds: float,
    group: str,
    limit: float = SUPERLINK_SECONDS,
) -> dict[str, int]:
    """Send a message to each node; return the nodes by the id of their message."""
    due: dict[str, int] = {}
    for node, content in contents.items():
        message = Message(content, node, kind, ttl=seconds + 5.0, group_id=group)
        ids = within(limit, partial(grid.push_messages, [message]))
        due |= {message_id: node for message_id in ids if message_id}
    return due


def pull(grid: Grid, due: dict[str, int], limit: float = SUPERLINK_SECONDS) -> dict[int, Outcome]:
    """Return the replies that have arrived, and remove their messages from `due`."""
    if not due:
        return {}
    waiting = list(due)
    found = within(limit, lambda: {message: _pull_one(grid, message) for message in waiting})
    return {due.pop(message): outcome for message, outcome in found.items() if outcome is not None}


def _pull_one(grid: Grid, message: str) -> Outcome | None:
    """Return the reply to a message, or None if it has not arrived."""
    try:
        replies = list(grid.pull_messages([message]))
        return _outcome(replies[0]) if replies else None
    except (httpx.HTTPError, OSError):  # the SuperLink's
        raise
    except Exception as error:  # noqa: BLE001 - whatever a site's bytes can raise in a parser
        return Failure(f"sent a reply that cannot be read ({type(error).__name__})")


def _outcome(reply: Message) -> Outcome:
    if reply.has_error():
        reason = last_line(reply.error.reason or "", 200) or "no reason given"
        code = reply.error.code
        return Failure(f"was lost (Flower's error {code}: {reason})", gone=code in _GONE)
    label = label_of(reply.content)
    if label.get("status") == "failed":
        client, error = label.get("client", -1), one_line(label.get("error"))
        return Failure(f"failed: {error}", client if type(client) is int else -1)
    return reply.content


def read_answer(
    outcome: Outcome,
    ask: Ask,
    client: int,
    before: ClientState,
    broadcast: Mapping[str, Any],
    check: Callable[[ClientState, Answer], None],
) -> Answer:
    """Return a client's answer; whatever is wrong with its reply, it is `Rejected`.

    Args:
        outcome: What came back from the client.
        ask: What it was asked.
        client: The client.
        before: Its state when it was asked.
        broadcast: What it was sent.
        check: Rejects an answer that is out of bounds.
    """
    if isinstance(outcome, Failure):
        raise Rejected(outcome.reason)
    try:
        answer = Answer.read(outcome, ask, client, before, broadcast)
        check(before, answer)
    except Rejected:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise Rejected(f"sent a reply that cannot be read ({kind})") from error
    return answer
