"""What a site is told about a sum that it is to be part of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flwr.app import ConfigRecord, RecordDict

from episode.flower.checks import Rejected
from episode.flower.messages import Ask
from episode.flower.secure.keys import KeyShare

SECURE = "episode.secure"
WORDS = "words"
"""Name of the array of a masked answer."""
Step = Literal["scale", "memorise", "probe", "local", "evaluate"]
"""What is added up: sizes of values, first memories, gradients, models or evaluations."""
_LONGEST_SIGNER = 4000


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
        """Return the record that a message carries."""
        shares = self.cohort.values()
        return ConfigRecord(
            {
                "session": self.session,
                "number": self.number,
                "step": self.step,
                "repeat": self.repeat,
                "clients": list(self.cohort),
                "publics": [share.public for share in shares],
                "signers": [share.signer for share in shares],
                "signatures": [share.signature for share in shares],
                "bits": json.dumps(dict(self.bits), sort_keys=True),
                "total_weight": self.total_weight,
                "max_norm": self.max_norm,
            }
        )

    @classmethod
    def of(cls, content: RecordDict) -> MaskedAsk:
        """Read the record of a message."""
        values: dict[str, Any] = dict(content.config_records[SECURE])
        lists = [values.pop(name) for name in ("clients", "publics", "signers", "signatures")]
        if len({len(each) for each in lists}) != 1 or len(set(lists[0])) < len(lists[0]):
            raise Rejected("named a cohort that makes no sense")
        cohort = {client: KeyShare(*share) for client, *share in zip(*lists, strict=True)}
        return cls(**{**values, "cohort": cohort, "bits": json.loads(values["bits"])})

    @property
    def members(self) -> bytes:
        """A short hash of who is in the sum."""
        return _hash(sorted(self.cohort))[:8]

    def question(self, ask: Ask) -> bytes:
        """A short hash of what decides a site's values: not the point, which can be moved a bit."""
        return _hash(["question", ask.seed, ask.round, self.step, self.repeat])[:8]

    def subject(self, ask: Ask) -> bytes:
        """A short hash of what a site's values are about, whatever the batches."""
        return _hash(["subject", ask.seed, ask.round, self.step])[:8]

    def context(self, run: int, ask: Ask) -> bytes:
        """What the masks of this exchange are for."""
        keys = {str(client): share.public.hex() for client, share in sorted(self.cohort.items())}
        about = [run, self.session, self.number, self.step, ask.round, self.repeat]
        return _hash([*about, keys, sorted(self.bits.items()), self.total_weight])


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
