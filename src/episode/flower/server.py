"""The engine of a Flower server: `average` by messages to sites, added up in client order.

A mean is always over exactly the clients that it was asked for. If one is lost, the round is
attempted again without it: clients that have probed need not probe again, but local steps that were
corrected by a mean over the lost client, too, are repeated. So all means of a round agree.

The server keeps a copy of its clients' states. So checkpoints are complete, and a site that has
lost its state gets it back.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.errors import ClusterError
from episode.federation.job import Job
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
from episode.flower.evaluation import evaluate_at_sites
from episode.flower.exchange import Failure, Outcome
from episode.flower.messages import ARRAYS, ASK, STATE, Answer, Ask, Held, Rejected, label_of, pack
from episode.flower.sites import Introduction, Limits, Sites
from episode.runs.observers import progress_line
from episode.runs.records import Observe, Record


class FlowerEngine(Engine):
    """Clients at sites, one each.

    Args:
        sites: The sites, which have been met.
        algorithm: The algorithm that sites follow.
        config: Settings that every message to a site carries, for the site's own code.
    """

    def __init__(
        self, sites: Sites, algorithm: Algorithm, config: ConfigRecord | None = None
    ) -> None:
        super().__init__()
        self.sites = sites
        self.absent: dict[int, str] = {}
        """Clients that sit the round out, and why."""
        self.cohort: list[int] = []
        """The clients that were chosen for the round."""
        self._algorithm = algorithm
        self._config = dict(config or {})
        self._attempts_made = 0
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
        self.cohort = list(cohort)
        limits = self.sites.limits
        for attempt in range(1 + limits.retries):
            self._attempts_made = attempt + 1
            self._look_for_sites(attempt > 0, limits.start_seconds if attempt else 0.0)
            self._too_few = False
            while not self._too_few:
                yield [c for c in self.cohort if c not in self.absent]
        raise ClusterError(self._who_is_missing(round))

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the weighted mean over the cohort, added up in the order of clients."""
        first = bool(broadcast.get("memorise"))
        wanted = [c for c in cohort if not (first and c in self.absent)]
        needed = self._needed(self.sites.num_clients if first else len(self.cohort))
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
        """Return who was missing in the last round, and its attempts if there were several."""
        found: dict[str, Any] = {}
        if missing := self._missing():
            found["missing"] = {str(client): reason for client, reason in missing.items()}
        attempts = self._attempts_made
        return found | ({"attempts": attempts} if attempts > 1 else {})

    def _missing(self) -> dict[int, str]:
        """Return the clients of the cohort that sit the round out, and why."""
        return {c: self.absent[c] for c in sorted(self.cohort) if c in self.absent}

    def _look_for_sites(self, again: bool, seconds: float) -> None:
        """Find out which sites are connected; give them up to `seconds` to come back."""
        silent, until = list(self.absent), time.monotonic() + seconds
        while True:
            for node, failure in self.sites.greet(again).items():
                log(WARNING, "Node %d is not admitted: it %s", node, failure.reason)
            missing = set(range(self.sites.num_clients)) - self.sites.connected(silent)
            if not missing or time.monotonic() >= until:
                break
            again = False
            time.sleep(0.1)
        self.absent = dict.fromkeys(sorted(missing), "is not connected")

    def _needed(self, size: int) -> int:
        """Return how many clients of a cohort of this size must take part."""
        least = self.sites.limits.min_replies
        return size if least is None else max(1, min(least, size))

    def _who_is_missing(self, round: int) -> str:
        missing = [f"site {client} {reason}" for client, reason in self._missing().items()]
        size = len(self.cohort)
        return (
            f"Round {round} was tried {self._attempts_made} times, and {size - len(missing)} of "
            f"{size} sites took part where {self._needed(size)} are needed: {'; '.join(missing)}. "
            "Resume the run once they are back."
        )

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
            for client in sorted(outcomes.keys() - set(due)):
                try:
                    answer = self._read(ask, broadcast, client, outcomes[client])
                except Rejected as rejected:
                    if rejected.not_finite is not None:
                        not_finite[client] = rejected.not_finite
                    self.absent[client] = f"{rejected} in the {phase} phase"
                    log(WARNING, "Round %d: site %d %s", ask.round, client, self.absent[client])
                    continue
                answers[client] = answer
                self._tag_at_node[self._node(client)] = answer.tag
                self.absent.pop(client, None)
        if phase == "probe" or not self._algorithm.correction.probes:
            self._answers |= {(phase, c): answer for c, answer in answers.items()}
        if len(answers) < needed <= len(answers) + len(not_finite):
            # Not a faulty site, but a run that has left the finite numbers: that is its result.
            answers |= not_finite
        return answers

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

    def _read(
        self, ask: Ask, broadcast: Mapping[str, Any], client: int, outcome: Outcome
    ) -> Answer:
        if isinstance(outcome, Failure):
            raise Rejected(outcome.reason)
        before = self._starting_state(ask.phase, client).state
        answer = Answer.read(outcome, ask, client, before, broadcast)
        answer.check(self.sites.limits.max_norm)
        return answer

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


def engine_on_sites(
    job: Job, grid: Grid, told: Callable[[int], str] = lambda _: ""
) -> closing[FlowerEngine]:
    """Meet the sites of a job, and return an engine on them to open.

    Args:
        job: What to play; its task may have no data.
        grid: Flower's connection to the nodes.
        told: What each client is told of the sites' agreement, as JSON.
    """
    x, _ = job.task.initial()

    def objection(site: Introduction) -> str | None:
        if (site.size, site.dtype) != (x.numel(), str(x.dtype)):
            return f"trains {site.size} numbers of {site.dtype}, not {x.numel()} of {x.dtype}"
        return None

    sites = Sites(grid, Limits.of(job.engine), job.plan.seed, objection, job.plan.algorithm, told)
    sites.meet(job.task.num_clients)
    return closing(FlowerEngine(sites, job.plan.algorithm))


def round_logger(plan: Plan) -> Observe:
    """Return an observer that writes a line about each round to the run's log."""

    def observe(record: Record) -> None:
        here, total = record["round"] + 1, plan.rounds_to_play
        log(INFO, "[ROUND %d/%d] %s", here, total, progress_line(record))

    return observe
