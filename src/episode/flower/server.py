"""The engine of a Flower server: `average` by messages to sites, added up in client order.

A mean is always over exactly the clients that it was asked for. If one is lost, the round is
attempted again without it: clients that have probed need not probe again, but local steps that were
corrected by a mean over the lost client, too, are repeated. So all means of a round agree.

The server keeps a copy of clients' states, for checkpoints and for sites that have lost theirs.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore import log
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.errors import ClusterError
from episode.federation.mean import mean_of
from episode.federation.protocols import (
    AttemptFailed,
    Engine,
    Evaluation,
    Phase,
    Reply,
    Request,
    Task,
)
from episode.federation.rounds import Plan
from episode.federation.state import Buffers, ClientState
from episode.flower.attendance import Attendance
from episode.flower.bounds import Bounds
from episode.flower.evaluation import evaluate_at_sites
from episode.flower.exchange import Failure, Outcome, read_answer
from episode.flower.messages import ARRAYS, ASK, STATE, Answer, Ask, Held, Rejected, label_of, pack
from episode.flower.sites import Sites


class FlowerEngine(Engine):
    """Clients at sites, one each.

    Args:
        sites: The sites, which have been met.
        algorithm: The algorithm that sites follow.
        config: Settings that every message to a site carries, for the site's own code.
        plan: The plan of the run, by which it is known how long the steps after a probe will be.
    """

    def __init__(
        self,
        sites: Sites,
        algorithm: Algorithm,
        config: ConfigRecord | None = None,
        plan: Plan | None = None,
    ) -> None:
        super().__init__()
        self.sites = sites
        sites.owners.store()
        self.attendance = Attendance()
        self._algorithm = algorithm
        self._plan = plan
        self._config = dict(config or {})
        self._too_few = False
        self._kept: dict[int, Held] = {}
        self._tag_at_node: dict[int, str] = {}
        """Tag of the state that a node holds, as far as the server knows."""
        self._answers: dict[tuple[Phase, int], Answer] = {}
        self._point: Tensor | None = None
        """x̄_r, at which those answers were given."""
        self._name = secrets.token_hex(4)
        self._exchanges = 0
        # One thread, as in a simulation: a norm must not depend on how many share its sum.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)

    def attempts(self, round: int, cohort: Sequence[int]) -> Iterator[list[int]]:
        """Yield the clients that are connected, fewer after each loss.

        If too few are left, another attempt begins with a wait for sites to come back.
        """
        self.attendance = Attendance(list(cohort), self.attendance.absent)
        limits = self.sites.limits
        for attempt in range(1 + limits.retries):
            self.attendance.attempts = attempt + 1
            self._look_for_sites(attempt > 0, limits.start_seconds if attempt else 0.0)
            self._too_few = False
            while not self._too_few:
                yield self.attendance.present()
        raise ClusterError(self.attendance.complaint(round, self._needed(len(cohort))))

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the weighted mean over the cohort, added up in the order of clients."""
        first = bool(broadcast.get("memorise"))
        wanted = [c for c in cohort if not (first and c in self.attendance.absent)]
        needed = self._needed(self.sites.num_clients if first else len(self.attendance.cohort))
        answers: dict[int, Answer] = {}
        if len(wanted) >= needed:
            answers = self._collect(phase, wanted, needed, broadcast)
        self._too_few = len(answers) < needed
        if self._too_few or (len(answers) < len(wanted) and not first):
            raise AttemptFailed
        by_client = dict(zip(cohort, weights, strict=True))
        clients = sorted(answers)
        mean = mean_of([answers[c].reply for c in clients], [by_client[c] for c in clients])
        if first:
            self._keep_first_memories(answers, cohort, mean.vectors["gradient"])
        elif phase == "local":
            for client, answer in answers.items():
                tag = answer.tag if answer.state.tensors() else ""
                self._kept[client] = Held(answer.state, tag)
        return mean

    def evaluate(
        self, task: Task, x: Tensor, buffers: Buffers, clients: Sequence[int] = ()
    ) -> Evaluation:
        """Let sites evaluate their own data, unless the server has them, and combine the parts."""
        if task.clients:
            return super().evaluate(task, x, buffers, clients)
        return evaluate_at_sites(self.sites, self._next_tag(), task, x, buffers, clients)

    def client_states(self) -> dict[int, ClientState]:
        return {client: held.state for client, held in self._kept.items()}

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        for client, state in states.items():
            self._kept[client] = Held(state, self._next_tag() if state.tensors() else "")

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)

    def requests(self) -> Request:
        """Ask for a checkpoint after every round: an exchange costs far more than one."""
        return self.own_requests() | Request.CHECKPOINT

    def notes(self) -> dict[str, Any]:
        """Return who was missing or unusual in the last round, and its attempts if several."""
        return self.attendance.notes()

    def _look_for_sites(self, again: bool, seconds: float) -> None:
        """Find out which sites are connected; give them up to `seconds` to come back."""
        silent, until = list(self.attendance.absent), time.monotonic() + seconds
        refused: dict[int, str] = {}
        while True:
            for node, failure in self.sites.greet(again).items():
                log(WARNING, "Node %d is not admitted: it %s", node, failure.reason)
                refused[failure.client] = f", and node {node} {failure.reason}"
            missing = set(range(self.sites.num_clients)) - self.sites.connected(silent)
            if not missing or time.monotonic() >= until:
                break
            again = False
            time.sleep(0.1)
        why = {client: f"is not connected{refused.get(client, '')}" for client in sorted(missing)}
        self.attendance.absent = why

    def _needed(self, size: int) -> int:
        """Return how many clients of a cohort of this size must take part."""
        least = self.sites.limits.min_replies
        return size if least is None else max(1, min(least, size))

    def _collect(
        self, phase: Phase, clients: Sequence[int], needed: int, broadcast: Mapping[str, Any]
    ) -> dict[int, Answer]:
        """Return the good answers of these clients; the other clients become absent."""
        if self._point is not broadcast["x"]:
            self._answers.clear()
            self._point = broadcast["x"]
        answers = {c: self._answers[phase, c] for c in clients if (phase, c) in self._answers}
        not_finite: dict[int, Answer] = {}
        due = [c for c in clients if c not in answers]
        until = time.monotonic() + self.sites.limits.deadline
        while due:
            algorithm = json.dumps(self._algorithm.to_dict())
            ask = Ask(phase, self._next_tag(), self.sites.seed, algorithm).about(broadcast)
            outcomes = self._send(ask, broadcast, due, max(0.1, until - time.monotonic()))
            due = [c for c, outcome in outcomes.items() if self._has_lost_state(c, outcome)]
            bounds = Bounds.of(ask, broadcast, self._plan, self.sites.limits.max_norm)
            for client in sorted(outcomes.keys() - set(due)):
                try:
                    before = self._starting_state(phase, client).state
                    answer = read_answer(
                        outcomes[client], ask, client, before, broadcast, bounds.check
                    )
                except Rejected as rejected:
                    if rejected.not_finite is not None:
                        not_finite[client] = rejected.not_finite
                    reason = f"{rejected} in the {phase} phase"
                    self.attendance.leave_out(client, reason, ask.round)
                    continue
                answers[client] = answer
                self.sites.believe(client)
                self._tag_at_node[self._node(client)] = answer.tag
                self.attendance.absent.pop(client, None)
            if not due:
                self._judge(answers, bounds, ask)
        if phase == "probe" or not self._algorithm.correction.probes:
            self._answers |= {(phase, c): answer for c, answer in answers.items()}
        if len(answers) < needed <= len(answers) + len(not_finite) and (
            self.sites.limits.min_replies is None or len(not_finite) > len(answers)
        ):
            # Not a faulty site, but a run that has left the finite numbers: that is its result.
            answers |= not_finite
        return answers

    def _judge(self, answers: dict[int, Answer], bounds: Bounds, ask: Ask) -> None:
        """Leave out answers that are far out of the ordinary, unless every site is needed.

        Honest numbers may be of any size. So a run that needs every site uses them, as a simulation
        would, and says so.
        """
        for client, reason in bounds.outliers(answers).items():
            what = f"{reason} in the {ask.phase} phase"
            if self.sites.limits.min_replies is None:
                self.attendance.remark(client, what, ask.round)
            else:
                del answers[client]
                self.attendance.leave_out(client, what, ask.round)

    def _send(
        self, ask: Ask, broadcast: Mapping[str, Any], clients: Sequence[int], seconds: float
    ) -> dict[int, Outcome]:
        only_G = pack({"G": broadcast.get("G")})
        point = pack({"x": broadcast["x"], **vars(broadcast["buffers"])})
        whole = ArrayRecord({**point, **only_G})
        # Like Flower's own strategies: the user's settings for sites, and the round.
        config = ConfigRecord({**self._config, "server-round": ask.round + 1})
        contents: dict[int, RecordDict] = {}
        for client in clients:
            start = self._starting_state(ask.phase, client)
            there = bool(start.tag) and self._tag_at_node.get(self._node(client)) == start.tag
            has_point = there and ask.phase == "local" and self._algorithm.correction.probes
            arrays = only_G if has_point else whole
            asked = replace(ask, told=self.sites.told(client)).record(start.tag)
            content = RecordDict({ASK: asked, ARRAYS: arrays, "config": config})
            if start.tag and not there:
                content[STATE] = pack(vars(start.state))
            contents[client] = content
        return self.sites.ask(contents, f"train.{ask.phase}", ask.round, seconds)

    def _starting_state(self, phase: str, client: int) -> Held:
        """Return what the client must start from: this round's probe, or its last state."""
        probe = self._answers.get(("probe", client))
        if phase == "local" and probe is not None and self._algorithm.correction.probes:
            return probe
        return self._kept.get(client, Held())

    def _has_lost_state(self, client: int, outcome: Outcome) -> bool:
        """Whether the site must be asked again, and be given the state that it does not hold."""
        if isinstance(outcome, Failure) or label_of(outcome).get("status") != "needs state":
            return False
        return self._tag_at_node.pop(self._node(client), None) is not None

    def _keep_first_memories(
        self, answers: Mapping[int, Answer], cohort: Sequence[int], mean: Tensor
    ) -> None:
        """Keep the memories before the first round; absent clients start from the others' mean.

        So the mean over all N memories is what the server holds, now and later.
        """
        for client in cohort:
            answer = answers.get(client)
            state = ClientState(memory=mean.clone()) if answer is None else answer.state
            self._kept[client] = Held(state, answer.tag if answer else self._next_tag())

    def _node(self, client: int) -> int:
        return self.sites.known[client].node

    def _next_tag(self) -> str:
        self._exchanges += 1
        return f"{self._name}.{self._exchanges}"
