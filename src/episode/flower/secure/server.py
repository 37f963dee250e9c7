"""The engine of a Flower server that learns sums only.

A mean is over a cohort that answered whole: masks cancel in no part of it. If a site is lost, the
round is attempted again among those that are left, with fresh keys and fresh batches. The states of
sites stay there; a checkpoint has their tags, and the range of the fixed-point numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore import log
from torch import Tensor

from episode.errors import ClusterError, EpisodeError
from episode.federation.protocols import AttemptFailed, Evaluation, Phase, Reply, Task
from episode.federation.state import Buffers, ClientState
from episode.flower.attendance import Attendance
from episode.flower.bounds import Bounds
from episode.flower.checks import Rejected
from episode.flower.facts import parsed
from episode.flower.messages import ARRAYS, ASK, STATE, Answer, Ask, pack
from episode.flower.secure.evaluation import evaluation_form, read_part
from episode.flower.secure.exchange import Found, Keys, read_answers
from episode.flower.secure.fixed_point import OutOfRangeError
from episode.flower.secure.form import SCALE_FORM, Segment, read_reply, read_values, segments_of
from episode.flower.secure.messages import SECURE, MaskedAsk, Step
from episode.flower.secure.repeats import Repeats
from episode.flower.secure.rules import MIN_COHORT
from episode.flower.secure.scale import Scale
from episode.flower.server import FlowerEngine

_MOST_TRIES = 12
"""How often a round is tried in another way, with nobody lost, before the run stops."""


@dataclass
class Kept:
    """The name of a client's state at its site."""

    tag: str = ""
    given: Tensor | None = None
    """The memory that the site is to be given first, if it missed the exchange of first ones."""


class SecureEngine(FlowerEngine):
    """Clients at sites, one each, of which only sums are seen. Arguments are `FlowerEngine`'s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keys = Keys(self.sites)
        self._scale: Scale | None = None
        self._names: dict[int, Kept] = {}
        self._repeats = Repeats()
        self._tries = 0

    def attempts(self, round: int, cohort: Sequence[int]) -> Iterator[list[int]]:
        """Yield the clients that are connected, fewer after each loss."""
        self._repeats, self._tries = Repeats(), 0
        yield from super().attempts(round, cohort)

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the mean over the cohort; a site weighs itself, if means are weighted."""
        first = bool(broadcast.get("memorise"))
        if self._scale is None:
            self._agree_on_scale(broadcast)
        wanted = [c for c in cohort if not (first and c in self.attendance.absent)]
        size = self.sites.num_clients if first else len(self.attendance.cohort or cohort)
        step: Step = "memorise" if first else phase
        ask = self._ask_for(phase, broadcast)
        form = self._form(ask, broadcast)
        found = self._exchange(step, ask, wanted, self._least(size), form, broadcast)
        if found is None:
            return self._not_finite(ask, broadcast, len(wanted))
        mean = self._read(found, ask, form, broadcast)
        for client in wanted:
            tag = self._names.get(client, Kept()).tag
            stateful = phase == "local" or first
            self._names[client] = Kept(ask.tag if stateful and self._has_states else tag)
        if first:
            for client in set(cohort) - set(wanted):
                self._names[client] = Kept("", mean.vectors["gradient"].clone())
        return mean

    def evaluate(
        self, task: Task, x: Tensor, buffers: Buffers, clients: Sequence[int] = ()
    ) -> Evaluation:
        """Let sites evaluate their own data, unless the server has them, and add up the parts."""
        if task.clients:
            return super().evaluate(task, x, buffers)
        before, here = self.attendance, sorted(self.sites.connected())
        broadcast = {"x": x, "buffers": buffers, "round": self.sites.round}
        ask = replace(self._ask_for("probe", broadcast), phase="evaluate")
        self.attendance = Attendance(here)
        try:
            found = self._exchange("evaluate", ask, here, MIN_COHORT, None, broadcast)
            return Evaluation(self._combined(found, task))
        except (AttemptFailed, ClusterError, OutOfRangeError, ValueError) as error:
            why = "; ".join(self.attendance.absent.values()) or str(error) or "too few sites"
            log(WARNING, "Round %d was not evaluated: %s", self.sites.round, why)
        finally:
            self.attendance = before
        return Evaluation()

    def client_states(self) -> dict[int, ClientState]:
        """Return, for each client, the name of its state as bytes of JSON in place of the state."""
        if self._scale is None:
            return {}
        found: dict[int, ClientState] = {}
        for client, kept in self._names.items():
            text = json.dumps({"tag": kept.tag, **vars(self._scale)}, sort_keys=True)
            found[client] = ClientState(
                memory=torch.tensor(list(text.encode()), dtype=torch.uint8), velocity=kept.given
            )
        return found

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        for client, state in states.items():
            if state.memory is None or state.memory.dtype != torch.uint8:
                raise EpisodeError(
                    "The checkpoint is that of a run that was not secure: go on without secure, "
                    "or choose another folder."
                )
            values = json.loads(bytes(state.memory.tolist()))
            self._names[client] = Kept(values.pop("tag"), state.velocity)
            self._scale = Scale(**values)

    def sent_bytes(self, reply: Reply) -> int:
        """Return the bytes of one client's words: eight for each number."""
        buffers = reply.buffers or Buffers()
        vectors = sum(vector.numel() for vector in reply.vectors.values())
        return 8 * (vectors + buffers.floats.numel() + buffers.integers.numel())

    @property
    def _has_states(self) -> bool:
        """Whether sites keep anything from round to round."""
        return self._algorithm.correction.remembers or bool(self._algorithm.descent.kept)

    def _least(self, size: int) -> int:
        return max(MIN_COHORT, self._needed(size))

    def _ask_for(self, phase: Phase, broadcast: Mapping[str, Any]) -> Ask:
        algorithm = json.dumps(self._algorithm.to_dict())
        return Ask(phase, self._next_tag(), self.sites.seed, algorithm).about(broadcast)

    def _bits(self) -> dict[str, int]:
        return self._scale.bits(self.sites.num_clients) if self._scale else {}

    def _form(self, ask: Ask, broadcast: Mapping[str, Any]) -> list[Segment]:
        start = broadcast["x"], broadcast["buffers"]
        return segments_of(ask, self._algorithm, self._bits(), *start)

    def _agree_on_scale(self, broadcast: Mapping[str, Any]) -> None:
        """Find out how large values are: each site counts under its own size, in a masked sum.

        Sites answer this once. If one is lost meanwhile, the scale is a guess.
        """
        ask = replace(self._ask_for("probe", broadcast), memorise=False)
        everyone = [c for c in range(self.sites.num_clients) if c not in self.attendance.absent]
        least, start = self._least(self.sites.num_clients), (broadcast["x"], broadcast["buffers"])
        self._scale = Scale.guessed(start[0], start[1].floats)
        found = self._exchange("scale", ask, everyone, least, SCALE_FORM, broadcast)
        if found is not None:
            sums = read_values(found.total(), SCALE_FORM)
            self._scale = Scale.of(sums, start[0], start[1].floats)
        log(INFO, "Sites agree on fixed-point numbers: %s", self._scale)

    def _exchange(
        self,
        step: Step,
        ask: Ask,
        clients: Sequence[int],
        needed: int,
        form: Sequence[Segment] | None,
        broadcast: Mapping[str, Any],
    ) -> Found | None:
        """Return the answers of a whole cohort; None if they have left the finite numbers.

        Raises:
            AttemptFailed: A site is lost, or must be asked in another way.
        """
        self._too_few = len(clients) < needed
        if self._too_few:
            raise AttemptFailed
        seconds = self.sites.limits.deadline
        failed = self._keys.collect(clients, ask.round, seconds)
        if not failed:
            masked = self._masked(step, clients)
            contents = self._contents(ask, masked, broadcast)
            outcomes = self.sites.ask(contents, "train.masked", ask.round, seconds)
            size = None if form is None else sum(segment.size for segment in form)
            found = read_answers(outcomes, ask, self._keys, size)
            if found.is_whole:
                return found
            if self._has_diverged(found, needed):
                return None
            failed = {**found.lost, **found.not_finite}
            self._ask_otherwise(found, step, clients)
        self._keys.shares.clear()  # an attempt that failed is followed by fresh keys
        for client, reason in failed.items():
            self.attendance.leave_out(client, f"{reason} in the {step} phase", ask.round)
        self._too_few = len(clients) - len(failed) < needed
        if not failed:
            self._count_try(f"The {step} of round {ask.round}", found)
        raise AttemptFailed

    def _has_diverged(self, found: Found, needed: int) -> bool:
        """Whether so many values are not finite that this is the run's result, and no fault."""
        good, bad = len(found.words), len(found.not_finite)
        every = self.sites.limits.min_replies is None
        return good < needed <= good + bad and (every or bad > good)

    def _masked(self, step: Step, clients: Sequence[int]) -> MaskedAsk:
        weighted = self._algorithm.weighting == "examples" and self._scale is not None
        self._exchanges += 1
        return MaskedAsk(
            self._name,
            self._exchanges,
            step,
            self._keys.spend(clients),
            self._repeats.number(step, clients),
            self._bits(),
            2**self._scale.examples if weighted and self._scale else 0,
            self.sites.limits.max_norm or 0.0,
        )

    def _contents(
        self, ask: Ask, masked: MaskedAsk, broadcast: Mapping[str, Any]
    ) -> dict[int, RecordDict]:
        only_G = pack({"G": broadcast.get("G")})
        point = pack({"x": broadcast["x"], **vars(broadcast["buffers"])})
        has_point = masked.step == "local" and self._algorithm.correction.probes
        arrays = only_G if has_point else ArrayRecord({**point, **only_G})
        record = masked.record()
        config = ConfigRecord({**self._config, "server-round": ask.round + 1})
        contents: dict[int, RecordDict] = {}
        for client in masked.cohort:
            kept = self._names.get(client, Kept())
            asked = replace(ask, told=self.sites.told(client)).record(kept.tag)
            content = RecordDict({ASK: asked, SECURE: record, ARRAYS: arrays, "config": config})
            if kept.given is not None:
                content[STATE] = pack({"memory": kept.given})
            contents[client] = content
        return contents

    def _ask_otherwise(self, found: Found, step: Step, clients: Sequence[int]) -> None:
        """Prepare another attempt for sites that can then answer."""
        for client, said in found.again.items():
            log(INFO, "Site %d: %s", client, said["error"])
        statuses = {said["status"] for said in found.again.values()}
        if "needs batches" in statuses:
            self._repeats.renew(step, clients)
        for kind in {s["kind"] for s in found.again.values() if s["status"] == "out of range"}:
            assert self._scale is not None
            self._scale.widen(kind)
            log(WARNING, "Values do not fit; the range is now: %s", self._scale)

    def _count_try(self, what: str, found: Found) -> None:
        """Stop a run that asks in vain, although nobody is lost."""
        self._tries += 1
        if self._tries > _MOST_TRIES:
            said = [f"site {client}: {s['error']}" for client, s in found.again.items()]
            raise ClusterError(f"{what} was asked for {self._tries} times in vain: {said[0]}")

    def _read(
        self, found: Found, ask: Ask, form: Sequence[Segment], broadcast: Mapping[str, Any]
    ) -> Reply:
        """Return the mean; a sum that no honest cohort can have sent is not used."""
        x, buffers = broadcast["x"], broadcast["buffers"]
        try:
            sums = read_values(found.total(), form)
            mean = read_reply(sums, ask, self._algorithm, x, buffers, len(found.words))
            bounds = Bounds.of(ask, broadcast, self._plan, None)
            bounds.check(ClientState(), Answer(reply=replace(mean, metrics={})))
        except (OutOfRangeError, Rejected) as error:
            reason = f"the sum cannot be used ({error}), and whose fault it is cannot be seen"
            log(WARNING, "Round %d: %s", ask.round, reason)
            self._keys.shares.clear()
            self._count_try(f"The {ask.phase} of round {ask.round}", _unusable(found, reason))
            raise AttemptFailed from None
        return mean

    def _not_finite(self, ask: Ask, broadcast: Mapping[str, Any], count: int) -> Reply:
        """Return the result of a run that has left the finite numbers."""
        form = ask.form(self._algorithm)
        nothing = torch.full_like(broadcast["x"], math.nan)
        vectors = {name: nothing.clone() for name in form.vectors}
        metrics = {name: [math.nan] * count for name in form.metrics}
        return Reply(vectors, broadcast["buffers"] if form.has_buffers else None, metrics)

    def _combined(self, found: Found | None, task: Task) -> dict[str, float]:
        """Return the metrics of all sites' sums."""
        assert found is not None
        named = {str(label.get("names")) for label in found.labels.values()}
        names = parsed(named.pop()) if len(named) == 1 else None
        if not isinstance(names, list):
            raise ValueError("sites have measured different things")
        return task.combine([read_part(read_values(found.total(), evaluation_form(names)))])


def _unusable(found: Found, reason: str) -> Found:
    return Found(again={client: {"error": reason} for client in found.words})
