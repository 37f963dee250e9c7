"""Rounds as a run plays them, with the monitor watching or without: what it costs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from episode.core.vectors import Vector
from episode.engines.simulation import Simulation
from episode.federation.rounds import Rounds
from episode.federation.state import ServerState
from episode.runs.config import Experiment
from episode.runs.monitor import Monitor
from episode.runs.records import make_record
from episode.runs.trainer import job_of

ROUNDS = 3
"""Rounds in a call: the monitor looks at steps of one round in three."""


class TimedMonitor(Monitor):
    """A monitor that counts the CPU seconds spent in its own code (and in counting them)."""

    seconds = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        """As the monitor's own, timed."""
        started = time.thread_time()
        super().__call__(record)
        self.seconds += time.thread_time() - started

    def _look(self, gradient: Vector, shift: Vector) -> None:
        started = time.thread_time()
        super()._look(gradient, shift)
        self.seconds += time.thread_time() - started


class DigitsRounds:
    """The digits network on one worker, at the demo's settings; each round makes its record."""

    def __init__(self, algorithm: str, watched: bool) -> None:
        values = {"task": {"name": "digits"}, "algorithm": {"name": algorithm}}
        job = job_of(Experiment.from_dict(values))
        self.monitor = TimedMonitor(say=lambda _: None) if watched else None
        if self.monitor:
            job = self.monitor.watch(job)
        self.engine = Simulation(job.task, job.plan.algorithm, 1)
        self.server = ServerState(*job.task.initial())
        # Small steps: both sides, and all rounds, then do the same work.
        schedule = replace(job.plan.schedule, eta=1e-3, gamma=1e-4)
        self.rounds = Rounds(replace(job.plan, schedule=schedule), job.task, self.engine)

    def __call__(self) -> int:
        """A few rounds; returns how many gradients they took."""
        before = self.server.counts.gradients
        for _ in range(ROUNDS):
            record = make_record(self.rounds.play(self.server), self.server)
            if self.monitor:
                self.monitor(record)
        return self.server.counts.gradients - before

    def share(self) -> float:
        """The monitor's CPU time in a few rounds, in percent of what the rounds took without it."""
        assert self.monitor
        before, started = self.monitor.seconds, time.process_time()
        self()
        own = self.monitor.seconds - before
        return 100 * own / (time.process_time() - started - own)

    def close(self) -> None:
        """Ends the engine's threads."""
        self.engine.close()
