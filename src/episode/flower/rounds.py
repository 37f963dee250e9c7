"""Rounds with sites that may be lost: played without them, or tried again, and never for ever."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from episode.errors import ClusterError
from episode.federation.protocols import Task
from episode.federation.rounds import Plan, Rounds, Telemetry
from episode.federation.sampling import Cohorts
from episode.federation.state import ServerState
from episode.flower.server import ClientLost, FlowerEngine, TooFewReplies


@dataclass(frozen=True)
class _Present:
    """A rule's cohort, without those who sit the round out."""

    rule: Cohorts
    engine: FlowerEngine

    def check(self, num_clients: int) -> None:
        self.rule.check(num_clients)

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        self.engine.cohort = self.rule.at(round, num_clients, seed)
        return [c for c in self.engine.cohort if c not in self.engine.absent]


class SiteRounds(Rounds):
    """Rounds with whoever is there; too few are waited for, a bounded number of times."""

    def __init__(self, plan: Plan, task: Task, engine: FlowerEngine) -> None:
        present = dataclasses.replace(plan, cohorts=_Present(plan.cohorts, engine))
        super().__init__(present, task, engine)
        self._sites = engine

    def play(self, server: ServerState) -> Telemetry:
        patience = self._sites.sites.patience
        for attempt in range(1 + patience.retries):
            self._sites.look_around(attempt, patience.start_seconds if attempt else 0.0)
            try:
                return self._with_whoever_stays(server)
            except TooFewReplies:
                continue
        raise ClusterError(self._who_is_missing(server.round))

    def _with_whoever_stays(self, server: ServerState) -> Telemetry:
        """The round, with fewer clients each time that one is lost.

        What is counted is what the round exchanged that counts, not what was lost with a site.
        """
        while True:
            counts = dataclasses.replace(server.counts)
            try:
                return super().play(server)
            except ClientLost:
                server.counts = counts
            except TooFewReplies:
                server.counts = counts
                raise

    def _who_is_missing(self, round: int) -> str:
        engine, patience = self._sites, self._sites.sites.patience
        missing = [f"site {c} {engine.absent[c]}" for c in engine.cohort if c in engine.absent]
        size = len(engine.cohort)
        needed = size if patience.min_replies is None else min(patience.min_replies, size)
        return (
            f"Round {round} was tried {patience.retries + 1} times, and {size - len(missing)} of "
            f"{size} sites took part where {needed} are needed: {'; '.join(missing)}. "
            "Resume the run once they are back."
        )
