"""Rounds as a run plays and writes them, with records of each client or without: what they cost."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.runs.folder import RunFolder
from episode.runs.records import History, client_line, make_record
from episode.tasks.neural import NeuralTask
from workloads import Workload, loss

CLIENTS, LOCAL_STEPS = 8, 8


class WrittenRounds:
    """Rounds of EPISODE on one worker, written to a folder; a record is synced after each."""

    def __init__(self, workload: Workload, per_client: bool) -> None:
        torch.manual_seed(0)
        self.per_client = per_client
        task = NeuralTask(
            workload.make_model(),
            workload.clients(CLIENTS, LOCAL_STEPS),
            loss,
            batch_size=workload.batch_size,
        )
        algorithm = ALGORITHMS["episode"]
        plan = Plan(algorithm, Schedule(1e-3, 1e-3), 10**9, LOCAL_STEPS)
        self.engine = Simulation(task, algorithm, 1)
        self.server = ServerState(*task.initial())
        self.rounds = Rounds(plan, task, self.engine)
        self.history = History()
        self._place = tempfile.TemporaryDirectory()
        config = {"task": {"name": workload.name}, "algorithm": {"name": "episode"}}
        self.folder = RunFolder(Path(self._place.name) / "run", config, "bench")
        self.folder.__enter__()
        self.folder.keep_rounds(0)
        self.folder.keep_clients(0, per_client)
        self.seconds = 0.0
        """CPU time spent on records of each client."""

    def __call__(self) -> int:
        """One round with its records; returns how many gradients it took."""
        before = self.server.counts.gradients
        telemetry = self.rounds.play(self.server)
        record = make_record(telemetry, self.server)
        self.history.append(record)
        self.folder.append(record)
        started = time.thread_time()
        if self.per_client:
            line = client_line(telemetry, {})
            self.history.client_lines.append(line)
            self.folder.append_clients(line)
        self.seconds += time.thread_time() - started
        self.folder.sync()
        return self.server.counts.gradients - before

    def share(self) -> float:
        """CPU time of the records of each client, in percent of the rest of the round."""
        before, started = self.seconds, time.process_time()
        self()
        own = self.seconds - before
        return 100 * own / (time.process_time() - started - own)

    def close(self) -> None:
        """Ends the engine's threads and removes the folder."""
        self.engine.close()
        self.folder.__exit__()
        self._place.cleanup()
