"""Reads what a site answered; rejects, with a reason, what may not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    Form,
    Rejected,
    buffers_of,
    check_finite,
    form_of,
    label_of,
    metrics_of,
    unpack,
)


@dataclass(frozen=True)
class Question:
    """What was asked of a cohort: all that a reply must agree with."""

    algorithm: Algorithm
    phase: Phase
    tag: str
    broadcast: Mapping[str, Any]

    @property
    def memorise(self) -> bool:
        return bool(self.broadcast.get("memorise"))


@dataclass
class Answer:
    """A reply that has the right form."""

    reply: Reply
    state: ClientState
    """The client's state after it."""
    tag: str
    """The exchange that it belongs to, by which the site knows its state."""


def read(question: Question, client: int, content: RecordDict, before: ClientState) -> Answer:
    """The answer of a client whose state was `before`; rejected unless it is to this question."""
    label, r = label_of(content), question.broadcast["round"]
    expected = {"status": "done", "client": client, "round": r, "tag": question.tag}
    for name, value in expected.items():
        if label.get(name) != value:
            raise Rejected(f"replied about {name} {label.get(name)!r} instead of {value!r}")
    form = ReplyForm.of(question.algorithm, question.phase, question.memorise)
    record = content.array_records.get(ARRAYS, ArrayRecord())
    tensors = unpack(record, _arrays_of(question, form))
    buffers = buffers_of(tensors) if form.has_buffers else None
    metrics = metrics_of(content, form.metrics)
    if question.phase == "probe":
        gradient = tensors["gradient"]
        kept = {"memory": gradient} if question.memorise else {"anchor": gradient}
        reply = Reply({"gradient": gradient}, buffers, metrics)
        return Answer(reply, replace(before, **kept), question.tag)
    after = ClientState(None, tensors.get("memory"), tensors.get("velocity"))
    vectors = {"x": tensors["x"]}
    if after.memory is not None:
        old = before.memory
        vectors["change"] = after.memory if old is None else after.memory - old
    return Answer(Reply(vectors, buffers, metrics), after, question.tag)


def check(answer: Answer, max_norm: float | None) -> None:
    """Rejects what is not finite, and a gradient that is too large."""
    vectors = answer.reply.vectors | answer.state.tensors()
    check_finite(vectors, {n: v for n, v in answer.reply.metrics.items() if v is not None})
    for name in sorted({"gradient", "memory"} & vectors.keys()):
        size = float(norm(vectors[name]))
        if max_norm is not None and size > max_norm:
            raise Rejected(f"sent a {name} of norm {size:.3g}, above max_norm = {max_norm:g}")


def _arrays_of(question: Question, form: ReplyForm) -> Form:
    """Which arrays the reply must have, of which shape and type."""
    x, buffers = question.broadcast["x"], question.broadcast["buffers"]
    # A client sends its memory itself, and the server, which has the old one, takes the change.
    tensors: dict[str, Tensor] = {
        ("memory" if name == "change" else name): x for name in form.vectors
    }
    if question.phase == "local" and question.algorithm.descent.has_velocity:
        tensors["velocity"] = x
    if form.has_buffers:
        tensors |= {"floats": buffers.floats, "integers": buffers.integers}
    return form_of(tensors)
