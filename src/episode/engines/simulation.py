"""Clients in this process, on worker threads. Fast, exact, and the same for any number of workers.

Each worker has its own replica and serves one client at a time with one intra-op thread; replies
are added up in client order as they become due. So the result does not depend on who ran what, and
memory is a few vectors per worker plus what clients must hold between messages.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.engines.allocator import keep_freed_memory
from episode.errors import ClientError, EpisodeError
from episode.federation.protocols import Engine, Phase, Reply, Task
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import Worker


class Simulation(Engine):
    """The engine of one process; `workers=None` takes one thread per core (one on a GPU)."""

    def __init__(self, task: Task, algorithm: Algorithm, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise EpisodeError(f"workers is {workers}: it must be 1 or more.")
        super().__init__()
        keep_freed_memory()
        self._states = [ClientState() for _ in range(task.num_clients)]
        self._first = Worker(task.objective(), algorithm)
        limit = _most_workers(task, self._first)
        self.workers = min(workers or limit, limit, task.num_clients)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._idle.put(self._first)
        for _ in range(self.workers - 1):
            self._idle.put(Worker(task.objective(), algorithm))
        # One inner thread each: workers would compete for cores, and a sum would depend on how many
        # threads share it. The server's own sums are made in this thread, so it is set here too.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(
            self.workers, "episode-worker", initializer=torch.set_num_threads, initargs=(1,)
        )

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """The weighted mean over the cohort, added up in its order."""
        total = sum(weights)
        return self.add_up(phase, cohort, [w / total for w in weights], broadcast)

    def add_up(
        self,
        phase: Phase,
        clients: Sequence[int],
        shares: Sequence[float],
        broadcast: Mapping[str, Any],
    ) -> Reply:
        """What these clients contribute to the mean, each with its share; nothing for nobody."""
        total = _Sum(shares)
        if self.workers == 1:  # no threads to hand over to
            for place, client in enumerate(clients):
                total.add(place, self._serve(self._first, phase, client, broadcast))
            return total.reply
        due: deque[Future[None]] = deque()
        try:
            for place, client in enumerate(clients):
                if len(due) == 2 * self.workers:  # so few are waiting for their turn
                    due.popleft().result()
                due.append(
                    self._pool.submit(self._serve_apart, total, place, phase, client, broadcast)
                )
            while due:
                due.popleft().result()
        finally:
            for future in due:
                future.cancel()
        return total.reply

    def client_states(self) -> dict[int, ClientState]:
        return dict(enumerate(self._states))

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        for client, state in states.items():
            self._states[client] = state

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def _serve_apart(
        self, total: _Sum, place: int, phase: Phase, client: int, broadcast: Mapping[str, Any]
    ) -> None:
        worker = self._idle.get()
        try:
            total.add(place, self._serve(worker, phase, client, broadcast))
        finally:
            self._idle.put(worker)

    def _serve(
        self, worker: Worker, phase: Phase, client: int, broadcast: Mapping[str, Any]
    ) -> Reply:
        serve = worker.probe if phase == "probe" else worker.local
        try:
            reply = serve(client, self._states[client], **broadcast)
        except Exception as error:
            what = (
                str(error)
                if isinstance(error, EpisodeError)
                else f"{type(error).__name__}: {error}"
            )
            place = f"Client {client} failed in the {phase} phase of round {broadcast['round']}"
            raise ClientError(f"{place}: {what}") from error
        reply.metrics = {name: _plain(value) for name, value in reply.metrics.items()}
        return reply


class _Sum:
    """Replies with their shares, added up in order, by whichever thread brings the next one.

    (It has the vector in its cache. A reply that comes before its turn waits, as a copy.)
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self.reply = Reply({}, metrics={})
        self._shares = shares
        self._early: dict[int, Reply] = {}
        self._next = 0
        self._lock = Lock()

    def add(self, place: int, reply: Reply) -> None:
        with self._lock:
            if place != self._next:
                if "x" in reply.vectors:  # the worker's own, who goes on to another client
                    reply.vectors["x"] = reply.vectors["x"].clone()
                self._early[place] = reply
                return
            while True:
                add_reply(self.reply, reply, self._shares[self._next])
                self._next += 1
                if self._next not in self._early:
                    return
                reply = self._early.pop(self._next)


def usable_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _most_workers(task: Task, worker: Worker) -> int:
    """One per core on a CPU; one where the device is shared, or the model draws random numbers.

    (torch's generator belongs to the process: threads that draw from it at the same time could not
    be repeated.)
    """
    shared = worker.objective.x.device.type != "cpu"
    return 1 if shared or task.draws_random_numbers else max(1, usable_cores())


def add_reply(mean: Reply, reply: Reply, weight: float) -> None:
    """mean ← mean + weight · reply: vectors and float buffers; integers are the maximum."""
    for name, vector in reply.vectors.items():
        if name in mean.vectors:
            mean.vectors[name].add_(vector, alpha=weight)
        else:
            mean.vectors[name] = vector * weight
    if reply.buffers is not None:
        mean.buffers = _add_buffers(mean.buffers, reply.buffers, weight)
    for name, value in reply.metrics.items():
        mean.metrics.setdefault(name, []).append(value)


def _add_buffers(mean: Buffers | None, buffers: Buffers, weight: float) -> Buffers:
    if mean is None:
        return Buffers(buffers.floats * weight, buffers.integers)
    return Buffers(
        mean.floats.add_(buffers.floats, alpha=weight),
        torch.maximum(mean.integers, buffers.integers),
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
