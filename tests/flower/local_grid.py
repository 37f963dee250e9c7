"""A grid in this process: real messages, serialised both ways, to a real ClientApp; and faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[int, Message], Message | None]
"""Maps a client and its reply to the reply that arrives, or to None if none arrives."""
APP_RAISED, NODE_UNAVAILABLE = 2, 5
_RUNS = itertools.count(1)


@dataclass
class LocalGrid(Grid):
    """Nodes 1000, 1001, … with partition ids 0, 1, …; `fault` may spoil or swallow replies."""

    app: ClientApp
    partitions: list[int]
    num_partitions: int | None = None
    fault: Fault = lambda client, reply: reply
    sent: list[Message] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    """Public keys of nodes; one without is known by its number alone."""

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._ids = itertools.count()
        self._run = next(_RUNS)  # so that workers of another grid are not found in the cache
        self._replies: dict[str, Message] = {}
        self._away: dict[int, int] = {}
        for k, partition in enumerate(self.partitions):
            self.connect(1000 + k, partition)

    def connect(self, node: int, partition: int) -> None:
        config: Any = {"partition-id": partition}
        config["num-partitions"] = self.num_partitions or len(self.partitions)
        self.contexts[node] = Context(self._run, node, config, RecordDict(), {})

    def leave_and_return(self, node: int, partition: int) -> None:
        """Restart a node with another number; the server notices that it was away."""
        self._away[node] = partition
        del self.contexts[node]

    def forget(self, client: int) -> None:
        """Restart a site, which loses its state."""
        self._of(client).state = RecordDict()

    def _of(self, client: int) -> Context:
        return next(c for c in self.contexts.values() if c.node_config["partition-id"] == client)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        here = [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.contexts]
        while self._away:
            self.connect(*self._away.popitem())
        return here

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            self.sent.append(message)
            reply = self._answer(message)
            if reply is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = name
                self._replies[name] = reply
        return ids

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node not in self.contexts:
            error = Message(Error(NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
            error.metadata.__dict__["_src_node_id"] = 1  # as a SuperLink does
            return error
        context = self.contexts[node]
        try:
            reply = serialised(self.app(serialised(message), context))
        except ValueError as error:  # as a SuperNode does
            reply = Message(Error(APP_RAISED, f"ClientAppException: {error}"), reply_to=message)
        return self.fault(int(context.node_config["partition-id"]), reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


def serialised(message: Message) -> Message:
    """Return the message after Flower has serialised it and read it back."""
    if message.has_error():
        return message
    content = message.content
    with no_object_id_recompute():  # as Flower's grid and its SuperNodes do
        parts = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
        whole = content.object_id
    copy = Message(content, reply_to=message)
    copy.__dict__["_metadata"] = message.metadata
    copy.__dict__["_content"] = inflate_object_from_contents(whole, parts)
    return copy
