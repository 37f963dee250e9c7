"""The engine of a Flower server: `average` by messages to sites, added up in client order.

A mean is always over exactly the clients that it was asked for. Where one is lost, the round is
played again without it (`flower.rounds`): who has probed need not probe again, and local steps that
were corrected by a mean with the lost client in it are taken again. So a round's means agree.

The server keeps a copy of what its clients remember: checkpoints are complete, and a site that has
lost its memory is given it back.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.engines.simulation import add_reply
from episode.federation.protocols import Engine, Phase, Reply
from episode.federation.state import ClientState
from episode.flower.exchange import Outcome, Problem
from episode.flower.messages import (
    ARRAYS,
    ASK,
    CONFIG,
    LOCAL,
    PROBE,
    STATE,
    Ask,
    Rejected,
    label_of,
    pack,
    state_arrays,
)
from episode.flower.replies import Answer, Question, check, read
from episode.flower.sites import Sites, warn


@dataclass
class _Kept:
    """The server's copy of a client's state, and the tag by which its site knows it."""

    state: ClientState = field(default_factory=ClientState)
    tag: str = ""


class ClientLost(Exception):  # noqa: N818 - the round goes on
    """The round must be played again, with whoever is left."""


class TooFewReplies(Exception):  # noqa: N818 - the round is tried again
    """Fewer sites than a round must have."""


class FlowerEngine(Engine):
    """Clients at sites, one each."""

    def __init__(
        self, sites: Sites, algorithm: Algorithm, config: ConfigRecord | None = None
    ) -> None:
        super().__init__()
        self.sites = sites
        self.round = -1
        """The round that is being played, or was last."""
        self.absent: dict[int, str] = {}
        """Who sits the round out, and why."""
        self.cohort: list[int] = []
        """Whom the round's rule named."""
        self._attempts_made = 0
        self._algorithm = algorithm
        self._config = dict(config or {})
        self._kept: dict[int, _Kept] = {}
        self._held: dict[int, str] = {}
        """The tag of the state that a node holds, as far as we know."""
        self._answers: dict[tuple[Phase, int], Answer] = {}
        self._point: Tensor | None = None
        """x̄_r, at which those answers were given."""
        self._name = secrets.token_hex(4)
        self._exchanges = 0
        # As in a simulation: a norm must not depend on how many threads share its sum.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """The weighted mean over the cohort, added up in its order."""
        first = bool(broadcast.get("memorise"))
        wanted = [c for c in cohort if not (first and c in self.absent)]
        needed = self._needed(first)
        if len(wanted) < needed:
            raise TooFewReplies
        answers = self._collect(phase, wanted, needed, broadcast)
        if len(answers) < needed:
            raise TooFewReplies
        if len(answers) < len(wanted) and not first:
            raise ClientLost
        shares = dict(zip(cohort, weights, strict=True))
        total = sum(shares[c] for c in sorted(answers))
        mean = Reply({})
        for client in sorted(answers):
            add_reply(mean, answers[client].reply, shares[client] / total)
        if first:
            self._remember_first(answers, cohort, mean.vectors["gradient"])
        elif phase == "local":
            self._commit(answers)
        return mean

    def client_states(self) -> dict[int, ClientState]:
        return {client: kept.state for client, kept in self._kept.items()}

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        for client, state in states.items():
            self._kept[client] = _Kept(state, self._next_tag() if state.tensors() else "")

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)

    def notes(self) -> dict[str, Any]:
        """What the last round's record should say about the sites; nothing if all was well."""
        found: dict[str, Any] = {}
        if missing := {c: self.absent[c] for c in self.cohort if c in self.absent}:
            found["missing"] = {str(c): reason for c, reason in sorted(missing.items())}
        return found | ({"attempts": self._attempts_made} if self._attempts_made > 1 else {})

    def look_around(self, attempt: int, seconds: float) -> None:
        """Who is there for the next attempt at a round; up to `seconds` for all to come."""
        self._attempts_made = attempt + 1
        silent, until, again = list(self.absent), time.monotonic() + seconds, attempt > 0
        while True:
            for node, problem in self.sites.greet(again).items():
                warn(f"Node {node} is not let in: it {problem.reason}")
            missing = set(range(self.sites.num_clients)) - self.sites.connected(silent)
            if not missing or time.monotonic() >= until:
                break
            again = False
            time.sleep(0.1)
        self.absent = dict.fromkeys(sorted(missing), "is not connected")

    def _needed(self, of_all: bool) -> int:
        size = self.sites.num_clients if of_all else len(self.cohort)
        wanted = self.sites.patience.min_replies
        return size if wanted is None else max(1, min(wanted, size))

    def _collect(
        self, phase: Phase, clients: Sequence[int], needed: int, broadcast: Mapping[str, Any]
    ) -> dict[int, Answer]:
        """A good answer from each of these clients that gives one; the others become absent."""
        self.round = broadcast["round"]
        if self._point is not broadcast["x"]:
            self._answers.clear()
            self._point = broadcast["x"]
        answers = {c: self._answers[phase, c] for c in clients if (phase, c) in self._answers}
        odd: dict[int, Answer] = {}
        due = [c for c in clients if c not in answers]
        until = time.monotonic() + self.sites.patience.deadline
        while due:
            question = Question(self._algorithm, phase, self._next_tag(), broadcast)
            outcomes = self._send(question, due, max(0.1, until - time.monotonic()))
            due = [c for c, outcome in outcomes.items() if self._has_lost_memory(c, outcome)]
            for client in sorted(outcomes.keys() - set(due)):
                try:
                    answer = self._read(question, client, outcomes[client])
                    _check_or_keep(answer, self.sites.patience.max_norm, client, odd)
                    answers[client] = answer
                    self._held[self._node(client)] = answer.tag
                    self.absent.pop(client, None)
                except Rejected as rejected:
                    self._lose(client, question, str(rejected))
        if phase == "probe" or not self._algorithm.correction.probes:
            self._answers |= {(phase, c): answer for c, answer in answers.items()}
        if len(answers) < needed <= len(answers) + len(odd):
            # Not a faulty site, but a run that has left the finite numbers: that is its result.
            answers |= odd
        return answers

    def _send(
        self, question: Question, clients: Sequence[int], seconds: float
    ) -> dict[int, Outcome]:
        phase, broadcast = question.phase, question.broadcast
        buffers, G = broadcast["buffers"], broadcast.get("G")
        point = {"x": broadcast["x"], "floats": buffers.floats, "integers": buffers.integers}
        whole, only_G = pack({**point, "G": G}), pack({"G": G})
        contents: dict[int, RecordDict] = {}
        for client in clients:
            kept = self._starting_state(phase, client)
            holds = bool(kept.tag) and self._held.get(self._node(client)) == kept.tag
            has_point = holds and phase == "local" and self._algorithm.correction.probes
            content = self._message(question, kept.tag, only_G if has_point else whole)
            if kept.tag and not holds:
                content[STATE] = state_arrays(kept.state)
            contents[client] = content
        kind = PROBE if phase == "probe" else LOCAL
        return self.sites.ask(contents, kind, broadcast["round"], seconds)

    def _starting_state(self, phase: Phase, client: int) -> _Kept:
        """What the client must start from: its probe of this round, or what it kept last."""
        probe = self._answers.get(("probe", client))
        if phase == "local" and probe is not None and self._algorithm.correction.probes:
            return _Kept(probe.state, probe.tag)
        return self._kept.get(client, _Kept())

    def _message(self, question: Question, expects: str, arrays: ArrayRecord) -> RecordDict:
        given = question.broadcast
        ask = Ask(
            question.phase,
            given["round"],
            question.tag,
            expects,
            self.sites.seed,
            json.dumps(self._algorithm.to_dict()),
            question.memorise,
            eta=float(given.get("eta", 0.0)),
            gamma=float(given.get("gamma", 0.0)),
            G_norm=float(given.get("G_norm", 0.0)),
            local_steps=int(given.get("local_steps", 0)),
        )
        # As Flower's own strategies say it: what the user wants sites to know, and the round.
        config = ConfigRecord({**self._config, "server-round": ask.round + 1})
        return RecordDict({ASK: ask.record(), ARRAYS: arrays, CONFIG: config})

    def _has_lost_memory(self, client: int, outcome: Outcome) -> bool:
        """Whether the site must be asked again, and given the state that it does not hold."""
        if isinstance(outcome, Problem):
            return False
        if label_of(outcome).get("status") != "needs state":
            return False
        return self._held.pop(self._node(client), None) is not None

    def _read(self, question: Question, client: int, outcome: Outcome) -> Answer:
        if isinstance(outcome, Problem):
            raise Rejected(outcome.reason)
        before = self._starting_state(question.phase, client).state
        return read(question, client, outcome, before)

    def _commit(self, answers: Mapping[int, Answer]) -> None:
        """The round's local steps count: what clients remember of them is kept."""
        for client, answer in answers.items():
            self._kept[client] = _Kept(answer.state, answer.tag if answer.state.tensors() else "")

    def _remember_first(
        self, answers: Mapping[int, Answer], cohort: Sequence[int], mean: Tensor
    ) -> None:
        """Memories before the first round; who missed it starts from the others' mean.

        (So the mean over all N memories is what the server holds, and stays so.)
        """
        for client in cohort:
            answer = answers.get(client)
            state = ClientState(memory=mean.clone()) if answer is None else answer.state
            self._kept[client] = _Kept(state, answer.tag if answer else self._next_tag())

    def _lose(self, client: int, question: Question, reason: str) -> None:
        self.absent[client] = f"{reason} in the {question.phase} phase"
        warn(f"Round {question.broadcast['round']}: site {client} {self.absent[client]}")

    def _node(self, client: int) -> int:
        return self.sites.known[client].node

    def _next_tag(self) -> str:
        self._exchanges += 1
        return f"{self._name}.{self._exchanges}"


def _check_or_keep(
    answer: Answer, max_norm: float | None, client: int, odd: dict[int, Answer]
) -> None:
    """Rejects an answer that may not be used; keeps aside one that is only not finite."""
    try:
        check(answer, max_norm)
    except Rejected as rejected:
        if rejected.non_finite:
            odd[client] = answer
        raise
