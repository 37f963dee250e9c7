"""Messages to nodes and their replies, with a deadline: nobody is waited for longer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from episode.engines.flower_wire import label_of


@dataclass(frozen=True)
class Problem:
    """Why there is no reply that can be used."""

    reason: str
    client: int = -1
    """Whose reply it would be, where it says so."""
    gone: bool = False
    """Whether the node is not there, as far as the SuperLink knows."""


Outcome = RecordDict | Problem
_GONE = (3, 4, 5)
"""Flower's codes for a message or a reply that is not available, and for a node that is not."""


def exchange(
    grid: Grid, contents: Mapping[int, RecordDict], kind: str, seconds: float, group: str
) -> dict[int, Outcome]:
    """One message to each node, and its reply, or what is wrong, from each of them."""
    due = push(grid, contents, kind, seconds, group)
    replies: dict[int, Outcome] = {}
    until, pause = time.monotonic() + seconds, 0.01
    while due and time.monotonic() < until:
        replies |= pull(grid, due)
        if due:
            time.sleep(pause)
            pause = min(1.3 * pause, 0.25)
    silent = Problem(f"did not reply within {seconds:.3g} s")
    return {node: replies.get(node, silent) for node in contents}


def push(
    grid: Grid, contents: Mapping[int, RecordDict], kind: str, seconds: float, group: str
) -> dict[str, int]:
    """Sends a message to each node; returns the nodes by their message's id."""
    due: dict[str, int] = {}
    for node, content in contents.items():
        message = Message(content, node, kind, ttl=seconds + 5.0, group_id=group)
        due |= {i: node for i in grid.push_messages([message]) if i}
    return due


def pull(grid: Grid, due: dict[str, int]) -> dict[int, Outcome]:
    """The replies that have come, which are then no longer due."""
    replies: dict[int, Outcome] = {}
    for reply in grid.pull_messages(list(due)) if due else ():
        # An error that the SuperLink makes for a dead node does not carry that node's number.
        node = due.pop(reply.metadata.reply_to_message_id, None)
        if node is not None:
            replies[node] = _outcome(reply)
    return replies


def _outcome(reply: Message) -> Outcome:
    if reply.has_error():
        reason = (reply.error.reason or "").strip() or "no reason given"
        last = reason.splitlines()[-1][:200]
        code = reply.error.code
        return Problem(f"was lost (Flower's error {code}: {last})", gone=code in _GONE)
    answer = label_of(reply.content)
    if answer.get("status") == "failed":
        client = answer.get("client", -1)
        return Problem(f"failed: {answer.get('error')}", client if type(client) is int else -1)
    return reply.content
