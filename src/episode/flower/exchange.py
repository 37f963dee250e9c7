"""Messages to nodes and their replies, with a deadline for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from episode.errors import ClusterError
from episode.flower.messages import label_of

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


Outcome = RecordDict | Failure
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


def nodes_of(grid: Grid) -> set[int]:
    """Return the nodes that the SuperLink lists as connected."""
    return within(SUPERLINK_SECONDS, lambda: set(grid.get_node_ids()))


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
    replies: dict[int, Outcome] = {}
    for reply in within(limit, lambda: list(grid.pull_messages(list(due)))):
        # An error that the SuperLink reports for a dead node does not carry that node's id.
        node = due.pop(reply.metadata.reply_to_message_id, None)
        if node is not None:
            replies[node] = _outcome(reply)
    return replies


def _outcome(reply: Message) -> Outcome:
    if reply.has_error():
        reason = (reply.error.reason or "").strip() or "no reason given"
        last = reason.splitlines()[-1][:200]
        code = reply.error.code
        return Failure(f"was lost (Flower's error {code}: {last})", gone=code in _GONE)
    label = label_of(reply.content)
    if label.get("status") == "failed":
        client = label.get("client", -1)
        return Failure(f"failed: {label.get('error')}", client if type(client) is int else -1)
    return reply.content
