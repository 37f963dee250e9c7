"""One masked exchange, seen from the server: keys, messages, and the sum of the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from episode.flower.checks import Rejected, check_label, view_array
from episode.flower.exchange import Failure, Outcome
from episode.flower.messages import ARRAYS, Ask, label_of
from episode.flower.secure.fixed_point import Words, add_up
from episode.flower.secure.keys import KeyShare
from episode.flower.secure.messages import WORDS, read_share
from episode.flower.sites import Sites
from episode.flower.texts import one_line

AGAIN = ("needs key", "needs state", "needs batches", "out of range")
"""Statuses of a site that can answer if it is asked in another way."""
_MOST_WORDS = 2**40


@dataclass
class Found:
    """What came back from the sites of an exchange."""

    words: dict[int, Words] = field(default_factory=dict)
    """Masked answers."""
    labels: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    """Sites that are to be left out, and why."""
    not_finite: dict[int, str] = field(default_factory=dict)
    """Sites whose values have left the finite numbers."""
    again: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Sites that can answer if they are asked in another way, and what they say."""

    @property
    def is_whole(self) -> bool:
        """Whether every site has answered, so that masks cancel."""
        return not (self.lost or self.not_finite or self.again)

    def total(self) -> Words:
        """Return the sum of the answers, in which masks have cancelled."""
        return add_up(list(self.words.values()))


class Keys:
    """The public keys that sites have given, each for one exchange."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self.shares: dict[int, KeyShare] = {}

    def collect(self, clients: Sequence[int], round: int, seconds: float) -> dict[int, str]:
        """Ask for the keys that are not here; return who gave none, and why."""
        missing = [client for client in clients if client not in self.shares]
        content = RecordDict({"config": ConfigRecord({"seed": self._sites.seed})})
        contents = dict.fromkeys(missing, content)
        outcomes = self._sites.ask(contents, "query.keys", round, seconds) if missing else {}
        failed: dict[int, str] = {}
        for client, outcome in outcomes.items():
            try:
                label = _label(outcome)
                check_label(label, {"status": "done", "client": client})
                self.take(client, label)
            except Rejected as rejected:
                failed[client] = f"{rejected} when it was asked for a key"
        return failed

    def take(self, client: int, label: Mapping[str, Any]) -> None:
        """Keep the key that a site has sent for the next exchange.

        Raises:
            Rejected: It is no key, or signed by another key than the node is registered with.
        """
        share = read_share(label)
        identity = self._sites.identity_of(client)
        signed_by = hashlib.sha256(share.signer).hexdigest()
        if share.signer and len(identity) == len(signed_by) and identity != signed_by:
            raise Rejected("signs its keys with another key than the one that it is registered by")
        self.shares[client] = share

    def spend(self, clients: Sequence[int]) -> dict[int, KeyShare]:
        """Return the keys of a cohort and forget them."""
        return {client: self.shares.pop(client) for client in sorted(clients)}


def read_answers(outcomes: Mapping[int, Outcome], ask: Ask, keys: Keys, size: int | None) -> Found:
    """Sort what came back from a cohort.

    Args:
        outcomes: The replies or failures, by client.
        ask: What was asked.
        keys: Where the keys for the next exchange go.
        size: Number of words of an answer; None if any answer tells.
    """
    found = Found()
    for client, outcome in sorted(outcomes.items()):
        try:
            label = _label(outcome)
            about = {"client": client, "round": ask.round, "tag": ask.tag}
            check_label(label, about)
            status, said = label.get("status"), one_line(str(label.get("error", "")))
            if status in AGAIN:
                found.again[client] = {"status": status, "error": said, "kind": label.get("kind")}
            elif status == "not finite":
                found.not_finite[client] = said
            elif status != "done":
                raise Rejected(f"did not answer: {said}")
            else:
                found.words[client] = _words(outcome, size)
                found.labels[client] = label
                keys.take(client, label)
        except Rejected as rejected:
            found.lost[client] = str(rejected)
    sizes = {len(words) for words in found.words.values()}
    if len(sizes) > 1:
        found.lost |= dict.fromkeys(found.words, "sent another number of words than others")
    return found


def _label(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        raise Rejected(outcome.reason)
    return label_of(outcome)


def _words(outcome: Outcome, size: int | None) -> Words:
    assert not isinstance(outcome, Failure)
    record = outcome.array_records.get(ARRAYS, ArrayRecord())
    if set(record) != {WORDS}:
        raise Rejected(f"sent the arrays {sorted(record)} instead of ['{WORDS}']")
    shape = (size,) if size is not None else tuple(record[WORDS].shape)
    if len(shape) != 1 or shape[0] > _MOST_WORDS:
        raise Rejected(f"sent words of the shape {list(shape)}")
    return view_array(WORDS, record[WORDS], shape, "int64").view(np.uint64)
