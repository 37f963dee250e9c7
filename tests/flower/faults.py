"""Ways in which a site's replies can be lost or wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import Array, Error, Message
from local_grid import Fault

Act = Callable[[Message], Message | None]


def label(reply: Message) -> tuple[str, int | None]:
    record = reply.content.config_records.get("episode.answer", {})
    return reply.metadata.message_type.removeprefix("train."), record.get("round")  # type: ignore[return-value]


def at(client: int, phase: str, round: int, act: Callable[[Message], Message | None]) -> Fault:
    """Return a fault that acts on each reply of one client in one phase of one round."""

    def fault(who: int, reply: Message) -> Message | None:
        return act(reply) if who == client and label(reply) == (phase, round) else reply

    return fault


def silence(reply: Message) -> None:
    return None


def crash(reply: Message) -> Message:
    return Message(Error(8, "ClientApp crashed"), reply_to=reply)


def spoil(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], Message]:
    def act(reply: Message) -> Message:
        record = reply.content.array_records["episode.arrays"]
        for name in {"gradient", "x"} & set(record):
            record[name] = Array(change(torch.from_numpy(record[name].numpy())).numpy())
        return reply

    return act


def relabel(**values: Any) -> Callable[[Message], Message]:
    def act(reply: Message) -> Message:
        reply.content.config_records["episode.answer"].update(values)
        return reply

    return act


def one_per_round(client: int, phase: str, acts: Sequence[Act], first: int = 1) -> Fault:
    """Return a fault that spoils a client's reply in another way in each round, from `first`."""

    def fault(who: int, reply: Message) -> Message | None:
        kind, number = label(reply)
        if who != client or kind != phase or number is None:
            return reply
        return acts[number - first](reply) if 0 <= number - first < len(acts) else reply

    return fault
