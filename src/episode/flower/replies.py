"""Read the replies of sites, and reject with a reason what must not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.vectors import norm
from episode.federation.protocols import Phase, Reply
from episode.federation.state import ClientState
from episode.federation.worker import ReplyForm
from episode.flower.messages import (
    ARRAYS,
    Ask,
    Form,
    Rejected,
    buffers_of,
    check_finite,
    form_of,
    label_of,
    metrics_of,
    unpack,
)


@dataclass
class Held:
    """A client's state, and the tag by which its site knows it."""

    state: ClientState = field(default_factory=ClientState)
    tag: str = ""


@dataclass
class Answer(Held):
    """A reply of the right form, with the client's state after it."""

    reply: Reply = field(default_factory=lambda: Reply({}))


def read(
    ask: Ask, broadcast: Mapping[str, Any], client: int, content: RecordDict, before: ClientState
) -> Answer:
    """Read the answer of a client whose state was `before`; reject one to another question."""
    label = label_of(content)
    expected = {"status": "done", "client": client, "round": ask.round, "tag": ask.tag}
    for name, value in expected.items():
        if label.get(name) != value:
            raise Rejected(f"replied about {name} {label.get(name)!r} instead of {value!r}")
    algorithm = ask.built()
    form = ReplyForm.of(algorithm, ask.phase, ask.memorise, ask.measure_every)
    record = content.array_records.get(ARRAYS, ArrayRecord())
    tensors = unpack(record, _arrays_of(ask.phase, algorithm, form, broadcast))
    buffers = buffers_of(tensors) if form.has_buffers else None
    metrics = metrics_of(content, form.metrics)
    if ask.phase == "probe":
        gradient = tensors["gradient"]
        kept = {"memory": gradient} if ask.memorise else {"anchor": gradient}
        reply = Reply({"gradient": gradient}, buffers, metrics)
        return Answer(replace(before, **kept), ask.tag, reply)
    after = ClientState(None, tensors.get("memory"), tensors.get("velocity"))
    vectors = {"x": tensors["x"]}
    if after.memory is not None:
        old = before.memory
        vectors["change"] = after.memory if old is None else after.memory - old
    return Answer(after, ask.tag, Reply(vectors, buffers, metrics))


def check(answer: Answer, max_norm: float | None) -> None:
    """Reject values that are not finite, and gradients that are too large."""
    vectors = answer.reply.vectors | answer.state.tensors()
    check_finite(vectors, {n: v for n, v in answer.reply.metrics.items() if v is not None})
    for name in sorted({"gradient", "memory"} & vectors.keys()):
        size = float(norm(vectors[name]))
        if max_norm is not None and size > max_norm:
            raise Rejected(f"sent a {name} of norm {size:.3g}, above max_norm = {max_norm:g}")


def _arrays_of(
    phase: Phase, algorithm: Algorithm, form: ReplyForm, broadcast: Mapping[str, Any]
) -> Form:
    """Return the names, shapes and types of the arrays that a reply must have."""
    x, buffers = broadcast["x"], broadcast["buffers"]
    # A client sends its memory, and the server, which has the old one, computes the change.
    tensors: dict[str, Tensor] = {
        ("memory" if name == "change" else name): x for name in form.vectors
    }
    if phase == "local" and algorithm.descent.has_velocity:
        tensors["velocity"] = x
    if form.has_buffers:
        tensors |= {"floats": buffers.floats, "integers": buffers.integers}
    return form_of(tensors)
