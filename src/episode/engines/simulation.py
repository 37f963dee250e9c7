"""Clients in this process, on worker threads: fast, exact, and the same for any number of workers.

Each worker has its own replica and serves one client at a time with one intra-op thread; replies
are added up in client order. So the result does not depend on which worker served which client, and
memory is a few vectors per worker plus what clients must hold between messages.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ClassVar

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.engines.allocator import keep_freed_memory
from episode.errors import ClientError, EpisodeError
from episode.federation.client_states import ClientStates, states_for
from episode.federation.job import Job
from episode.federation.mean import OrderedSum
from episode.federation.protocols import Engine, Phase, Reply, Task
from episode.federation.state import ClientState
from episode.federation.worker import Worker


class Simulation(Engine):
    """The engine of one process.

    Args:
        task: The task, with the data of all clients.
        algorithm: The algorithm that workers follow.
        workers: Number of threads; None for one per core (one on a GPU).
        states: Where the clients' states are kept; by default in memory.
    """

    single_process: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        workers: int | None = None,
        states: ClientStates | None = None,
    ) -> None:
        super().__init__()
        if workers is not None and workers < 1:
            raise EpisodeError(f"workers is {workers}: it must be 1 or more.")
        keep_freed_memory()
        self._states = ClientStates(range(task.num_clients)) if states is None else states
        self._first = Worker(task.objective(), algorithm)
        limit = _most_workers(task, self._first)
        self.workers = min(workers or limit, limit, task.num_clients)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._idle.put(self._first)
        for _ in range(self.workers - 1):
            self._idle.put(Worker(task.objective(), algorithm))
        # One intra-op thread each: workers would compete for cores, and a sum would depend on how
        # many threads share it. This thread adds up the server's sums, so it is limited too.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(
            self.workers, "episode-worker", initializer=torch.set_num_threads, initargs=(1,)
        )

    @classmethod
    def make(cls, job: Job) -> Simulation:
        states = states_for(job, range(job.task.num_clients))
        return cls(job.task, job.plan.algorithm, job.engine.workers, states)

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the weighted mean over the cohort, added up in its order."""
        total = sum(weights)
        return self.add_up(phase, cohort, [w / total for w in weights], broadcast)

    def add_up(
        self,
        phase: Phase,
        clients: Sequence[int],
        shares: Sequence[float],
        broadcast: Mapping[str, Any],
    ) -> Reply:
        """Return the sum of these clients' replies, each times its share; empty without clients."""
        total = OrderedSum(shares)
        if self.workers == 1:  # no threads to hand over to
            for place, client in enumerate(clients):
                total.add(place, self._serve(self._first, phase, client, broadcast))
            return total.reply
        due: deque[Future[None]] = deque()
        try:
            for place, client in enumerate(clients):
                if len(due) == 2 * self.workers:  # so that few replies wait for their turn
                    due.popleft().result()
                due.append(
                    self._pool.submit(self._serve_on_thread, total, place, phase, client, broadcast)
                )
            while due:
                due.popleft().result()
        finally:
            for future in due:
                future.cancel()
        return total.reply

    def client_states(self) -> Mapping[int, ClientState]:
        return self._states

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        self._states.load(states)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._states.close()
        torch.set_num_threads(self._threads_before)

    def _serve_on_thread(
        self, total: OrderedSum, place: int, phase: Phase, client: int, broadcast: Mapping[str, Any]
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
            state = self._states.take(client, phase)
            reply = serve(client, state, **broadcast)
            self._states.keep(client, state)
        except Exception as error:
            known = isinstance(error, EpisodeError)
            what = str(error) if known else f"{type(error).__name__}: {error}"
            place = f"Client {client} failed in the {phase} phase of round {broadcast['round']}"
            raise ClientError(f"{place}: {what}") from error
        reply.metrics = {
            name: value.item() if isinstance(value, Tensor) else value
            for name, value in reply.metrics.items()
        }
        return reply


def usable_cores() -> int:
    """Return the number of cores that this process may use; the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _most_workers(task: Task, worker: Worker) -> int:
    """Return one per core on a CPU; one if the device or torch's generator cannot be shared.

    That generator belongs to the process: what threads draw from it at the same time cannot be
    repeated, unless they take turns.
    """
    shared = worker.objective.x.device.type != "cpu"
    alone = task.draws_random_numbers and not task.takes_turns
    return 1 if shared or alone else max(1, usable_cores())
