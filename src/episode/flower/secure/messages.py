"""What a site is told about a sum that it is to be part of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from episode.flower.checks import Rejected
from episode.flower.messages import Ask
from episode.flower.secure.fixed_point import HEAD, Words, buffer_of
from episode.flower.secure.keys import KeyShare, RefusedError

SECURE = "episode.secure"
SUM = "sum"
WORDS = "words"
"""Name of the array of a masked answer."""
Step = Literal["scale", "memorise", "probe", "local", "evaluate"]
"""What is added up: sizes of values, first memories, gradients, models or evaluations."""
_PHASES = {"scale": "probe", "memorise": "probe", "probe": "probe"}
"""The phase of each step, where it has another name."""
_LONGEST_SIGNER = 4000
_MOST = 2**20
"""Rounds, steps and repeats: the batches of no two repeats are the same (see `worker.REPEAT`)."""


@dataclass(frozen=True)
class MaskedAsk:
    """Which sum a site is asked to be part of, with whom, and in which fixed-point numbers."""

    session: str
    """Name of the server's session."""
    number: int
    """Number of this exchange in the session; it grows."""
    step: Step
    cohort: Mapping[int, KeyShare]
    """The sites of the sum, each with its key."""
    repeat: int = 0
    """How often the step has been repeated with fresh batches."""
    bits: Mapping[str, int] = field(default_factory=dict)
    """Binary places of each kind of values."""
    total_weight: int = 0
    """What a site's number of examples is divided by to be its weight; 0 if all weigh the same."""
    max_norm: float = 0.0
    """The operator's limit on gradients; 0 for none."""

    def record(self) -> ConfigRecord:
        """Return the record that a message carries: one text, because Flower reads each value."""
        shares = {client: vars(share).values() for client, share in self.cohort.items()}
        listed = [[client, *(part.hex() for part in share)] for client, share in shares.items()]
        return ConfigRecord({SUM: json.dumps({**vars(self), "cohort": listed})})

    @classmethod
    def of(cls, content: RecordDict) -> MaskedAsk:
        """Read the record of a message."""
        values: dict[str, Any] = json.loads(str(content.config_records[SECURE][SUM]))
        listed = values["cohort"]
        cohort = {int(client): KeyShare(*map(bytes.fromhex, share)) for client, *share in listed}
        if len(cohort) < len(listed):
            raise Rejected("named a site twice in a cohort")
        return cls(**{**values, "cohort": cohort})

    def check(self, ask: Ask) -> None:
        """Refuse a question that could be another one under a second name, and so be had twice.

        Raises:
            RefusedError: The step does not go with the phase, or a number is none of a run.
        """
        phase = _PHASES.get(self.step, self.step)
        of_step = phase, self.step == "memorise"
        if self.step not in get_args(Step) or of_step != (ask.phase, ask.memorise):
            raise RefusedError(
                f"The message asks for a {ask.phase} phase as a {self.step!r} step, which is not "
                "one of this protocol's."
            )
        counts = {"round": ask.round, "repeat": self.repeat, "local_steps": ask.local_steps}
        for name, value in {**counts, "seed": ask.seed}.items():
            if type(value) is not int or (name in counts and not 0 <= value < _MOST):
                raise RefusedError(f"The message's {name} is {value!r}, as in no run.")

    @property
    def members(self) -> bytes:
        """A short hash of who is in the sum."""
        return _hash(sorted(self.cohort))[:8]

    @property
    def kind(self) -> str:
        """What is computed: first memories are the gradients of a probe."""
        return "probe" if self.step == "memorise" else self.step

    def question(self, ask: Ask) -> bytes:
        """A short hash of what decides a site's values: not the point, which can be moved a bit."""
        return _hash(["question", ask.seed, ask.round, self.kind, self.repeat])[:8]

    def subject(self, ask: Ask) -> bytes:
        """A short hash of what a site's values are about, whatever the batches."""
        return _hash(["subject", ask.seed, ask.round, self.kind])[:8]

    def context(self, run: int, ask: Ask) -> bytes:
        """What the masks of this exchange are for."""
        keys = {str(client): share.public.hex() for client, share in sorted(self.cohort.items())}
        about = [run, self.session, self.number, self.step, ask.round, self.repeat]
        return _hash([*about, keys, sorted(self.bits.items()), self.total_weight])


def words_record(words: Words) -> ArrayRecord:
    """Return the record of an answer: words of `new_words`, sent from where they are."""
    start, data = BytesIO(), buffer_of(words)
    about = {"descr": "<i8", "fortran_order": False, "shape": words.shape}
    np.lib.format.write_array_header_1_0(start, about)
    assert start.tell() == HEAD
    data[:HEAD] = start.getvalue()
    array = Array("int64", words.shape, "numpy.ndarray", b"")
    # Flower only reads it, and a copy would cost as much as a mask.
    array.data = data  # type: ignore[assignment]
    record = ArrayRecord()
    record[WORDS] = array
    return record


def share_label(share: KeyShare) -> dict[str, bytes]:
    """Return a key share as part of a reply's label."""
    return {"public": share.public, "signer": share.signer, "signature": share.signature}


def read_share(label: Mapping[str, Any]) -> KeyShare:
    """Read the key share of a reply.

    Raises:
        Rejected: It is not one.
    """
    public, signer, signature = (label.get(n) for n in ("public", "signer", "signature"))
    if not isinstance(public, bytes) or len(public) != 32:
        raise Rejected("sent no key")
    if not isinstance(signer, bytes) or not isinstance(signature, bytes):
        raise Rejected("sent a key with a signature that makes no sense")
    if max(len(signer), len(signature)) > _LONGEST_SIGNER:
        raise Rejected("sent a key with a signature that is too long")
    return KeyShare(public, signer, signature)


def _hash(values: list[Any]) -> bytes:
    return hashlib.sha256(json.dumps(values).encode()).digest()
