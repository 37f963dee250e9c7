"""A site in a secure run: it checks who asks for what, and sends nothing that is not masked.

It has two actions: `query.keys` returns a fresh public key, and `train.masked` answers one step of
a round with masked words, and with the public key for the next one. A key is used once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from torch import Tensor

from episode.federation.state import ClientState
from episode.flower.bounds import Bounds
from episode.flower.messages import (
    ARRAYS,
    STATE,
    Answer,
    Ask,
    Rejected,
    buffers_of,
    labelled,
    unpack,
)
from episode.flower.secure.evaluation import write_part
from episode.flower.secure.fixed_point import Words, exponent_of
from episode.flower.secure.form import RangeError, segments_of, write_exponents, write_reply
from episode.flower.secure.keys import KeyShare, RefusedError
from episode.flower.secure.masks import add_masks
from episode.flower.secure.memory import AnsweredError, Memory
from episode.flower.secure.messages import MaskedAsk, share_label, words_record
from episode.flower.secure.rules import Rules
from episode.flower.secure.sketches import sketch_of
from episode.flower.serving import (
    MakeSite,
    answered,
    client_of,
    play,
    site_of,
    worker_of,
)


class CannotAnswer(Exception):  # noqa: N818 - the server asks again
    """The site cannot answer now; the status says what the server must do."""

    def __init__(self, status: str, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


def add_masked_actions(
    app: ClientApp, make_site: MakeSite, threads: int | None, states: Path | None
) -> None:
    """Add `query.keys` and `train.masked` to an app."""
    app.query("keys")(answered(partial(_give_key, states)))
    app.train("masked")(answered(partial(_answer, make_site, states), threads))


def _give_key(states: Path | None, message: Message, context: Context) -> RecordDict:
    client, rules = client_of(context), Rules.of(context, states)
    private, share = KeyShare.new(context.run_id, client, rules.node_key)
    Memory(context, None).hold_key(private, share.public)
    return labelled({"status": "done", "client": client, **share_label(share)})


def _answer(
    make_site: MakeSite, states: Path | None, message: Message, context: Context
) -> RecordDict:
    ask, masked = Ask.of(message.content), MaskedAsk.of(message.content)
    client = client_of(context)
    label = {"client": client, "round": ask.round, "tag": ask.tag}
    try:
        site = _Answering(make_site, states, message, context, ask, masked)
        words = site.words()
    except CannotAnswer as error:
        log(WARNING, "Site %d does not answer: %s", client, error)
        return labelled({**label, "status": error.status, "error": str(error), "kind": error.kind})
    except AnsweredError as error:
        log(WARNING, "Site %d refuses: %s", client, error)
        return labelled({**label, "status": "needs batches", "error": str(error)})
    except RefusedError as error:
        log(WARNING, "Site %d refuses: %s", client, error)
        raise
    private, share = KeyShare.new(context.run_id, client, site.rules.node_key)
    site.memory.hold_key(private, share.public)
    content = labelled({**label, "status": "done", **share_label(share), **site.label})
    content[ARRAYS] = words_record(words)
    return content


class _Answering:
    """One message, and what a site has to answer it."""

    def __init__(
        self,
        make_site: MakeSite,
        states: Path | None,
        message: Message,
        context: Context,
        ask: Ask,
        masked: MaskedAsk,
    ) -> None:
        self.ask, self.masked = ask, masked
        self._sketch: Tensor | None = None
        """What this site's values look like, if they depend on batches."""
        self.label: dict[str, Any] = {}
        """What the reply also says."""
        self.client = client_of(context)
        self.rules = Rules.of(context, states)
        self._make_site = make_site
        self._records = message.content.array_records
        self._context = context

    def words(self) -> Words:
        """Return the masked words; what was sent is remembered by then."""
        context, masked, client = self._context, self.masked, self.client
        if client not in masked.cohort:
            raise RefusedError("This site is not in the cohort that it was asked to be part of.")
        masked.check(self.ask)
        self.rules.check_cohort(context.run_id, client, masked.cohort)
        held = Memory(context, None)
        private = held.take_key(masked.cohort[client].public)
        if private is None:
            raise CannotAnswer(
                "needs key",
                f"the {masked.step} of round {self.ask.round} was asked for with a key that it "
                "does not hold, or has used.",
            )
        worker, examples = worker_of(self.ask, client, self._make_site, context)
        self.worker, self.examples = worker, examples
        self.dtype = worker.objective.x.dtype
        self.memory = Memory.open(context, self.rules.folder, client, self.dtype)
        self.memory.check(masked, self.ask)
        try:
            words = self._clear()
        except RangeError as error:
            raise CannotAnswer("out of range", str(error), error.kind) from None
        self.memory.note(words, masked, self.ask, self._sketch)
        peers = {c: share.public for c, share in masked.cohort.items() if c != client}
        try:
            add_masks(words, client, private, peers, masked.context(context.run_id, self.ask))
        except ValueError:
            raise RefusedError("A key of the cohort is not a key.") from None
        self.memory.save()
        return words

    def _clear(self) -> Words:
        """Return this site's values as words that are not masked."""
        sent = unpack(self._records.get(ARRAYS, ArrayRecord()), self.dtype)
        if self.masked.step == "scale":
            return self._sizes(sent)
        if self.masked.step == "evaluate":
            return self._evaluation(sent)
        state, given = self._start(sent)
        before = ClientState.of(given)
        reply = play(self.worker, self.client, state, self.ask, given, self.masked.repeat)
        kept = replace(state, anchor=None)  # which is the reply's gradient
        self._check(before, Answer(kept, self.ask.tag, reply), given)
        moved = reply.vectors.get("x")
        self._sketch = sketch_of(reply.vectors["gradient"] if moved is None else moved)
        if moved is not None:
            self._sketch -= sketch_of(given["x"])
        share = self.examples / self.masked.total_weight if self.masked.total_weight else 1.0
        buffers = buffers_of(given)
        form = segments_of(self.ask, self.worker.algorithm, self.masked.bits, given["x"], buffers)
        words = write_reply(reply, buffers, share, form, len(self.masked.cohort))
        self._keep(state)
        return words

    def _sizes(self, sent: dict[str, Tensor]) -> Words:
        """Return how large this site's gradient and buffers are at the start, as counts."""
        given = {name: tensor.to(self.worker.objective.x.device) for name, tensor in sent.items()}
        reply = play(self.worker, self.client, ClientState(), self.ask, given, self.masked.repeat)
        after = self.worker.objective.buffers().floats
        sizes = {"gradient": exponent_of(reply.vectors["gradient"]), "floats": exponent_of(after)}
        sizes["examples"] = self.examples.bit_length()
        return write_exponents(sizes, len(self.masked.cohort))

    def _evaluation(self, sent: dict[str, Tensor]) -> Words:
        """Return the sums of losses and right answers on this site's examples."""
        ask, context = self.ask, self._context
        task = site_of(self.client, ask.seed, ask.told, self._make_site, context).task
        part = task.evaluate_part(sent["x"].to(self.worker.objective.x.device), buffers_of(sent))
        names, words = write_part(part, len(self.masked.cohort))
        self.label["names"] = json.dumps(names)
        return words

    def _start(self, sent: dict[str, Tensor]) -> tuple[ClientState, dict[str, Tensor]]:
        """Return the state to start from, and the point."""
        held: dict[str, Tensor] = {}
        if STATE in self._records:
            held = unpack(self._records[STATE], self.dtype)
        elif self.ask.expects:
            if self.ask.expects not in self.memory.states:
                raise CannotAnswer(
                    "lost state",
                    "it has lost its memory or momentum, of which the server has no copy: start "
                    "its SuperNode with --state, a folder that outlives it.",
                )
            held = self.memory.states[self.ask.expects]
        if self.masked.step == "local" and self.worker.algorithm.correction.probes:
            point = self.memory.point(self._point_tag(), self.dtype)
            if point is None:
                raise CannotAnswer("needs state", "it does not have this round's probe.")
            held = {**held, **point}
        device = self.worker.objective.x.device
        given = {name: tensor.to(device) for name, tensor in {**held, **sent}.items()}
        state = ClientState.of(given)
        moments = {name: _copy(getattr(state, name)) for name in ("velocity", "second")}
        return replace(state, **moments), given  # which are changed in place

    def _check(self, before: ClientState, answer: Answer, given: dict[str, Tensor]) -> None:
        """Check this site's own values as a server would check single replies."""
        start = {"x": given["x"], "buffers": buffers_of(given), "G": given.get("G")}
        bounds = Bounds.of(self.ask, start, None, self.masked.max_norm or None)
        try:
            bounds.check(before, answer)
        except Rejected as rejected:
            status = "failed" if rejected.not_finite is None else "not finite"
            raise CannotAnswer(status, f"it would have {rejected}") from None

    def _keep(self, state: ClientState) -> None:
        if state.anchor is not None:
            self.memory.hold_point(self._point_tag(), state.anchor, self._records[ARRAYS])
        elif self.masked.step != "probe":
            self.memory.hold_state(self.ask.expects, self.ask.tag, state.tensors())

    def _point_tag(self) -> str:
        about = [self.masked.session, self.ask.round, self.masked.repeat]
        return f"{about} {hashlib.sha256(self.masked.members).hexdigest()[:16]}"


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
