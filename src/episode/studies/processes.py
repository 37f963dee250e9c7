"""Play the runs of a sweep in several worker processes; one that dies fails only its own run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from episode.errors import EpisodeError
from episode.runs.config import Experiment
from episode.runs.records import Record
from episode.studies.sweep import RunOutcome, SweepOptions, SweepProgress, play_as_outcome

REPORT_SECONDS = 0.1
"""Shortest time between two rounds that a worker process reports."""


@dataclass
class _Worker:
    """A worker process, the pipe to it, and the name of the run that it is playing."""

    process: BaseProcess
    pipe: Connection
    run: str | None = None


def play_in_processes(
    pending: Sequence[Experiment], options: SweepOptions, jobs: int, progress: SweepProgress
) -> Iterator[RunOutcome]:
    """Play the experiments in `jobs` processes, and yield the outcome of each as it ends.

    Raises:
        KeyboardInterrupt: `options.stop()` became true; the rounds under way have been saved.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    waiting = deque(pending)
    workers = [_start_worker(options, threads) for _ in range(jobs)]
    try:
        stopping = False
        while True:
            for worker in workers:
                if worker.run is None and waiting and not stopping:
                    _assign(worker, waiting.popleft(), progress)
            busy = {w.pipe: w for w in workers if w.run is not None}
            if not busy:
                break
            for pipe in wait(list(busy), timeout=0.2):
                worker = busy[pipe]  # type: ignore[index]  # `wait` returns what it was given
                outcome = _receive(worker, progress)
                if outcome is not None:
                    yield outcome
                    if not worker.process.is_alive():
                        workers[workers.index(worker)] = _start_worker(options, threads)
            if not stopping and options.stop is not None and options.stop():
                stopping = True
                for pipe in busy:
                    with contextlib.suppress(OSError):
                        pipe.send(None)
        if stopping:
            raise KeyboardInterrupt
    finally:
        _stop_workers(workers)


def _start_worker(options: SweepOptions, threads: int) -> _Worker:
    """Start a daemon process that runs `_work`, connected to this one by a pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, replace(options, stop=None), threads)
    process = context.Process(target=_work, args=arguments, daemon=True)
    # Ctrl-C must not reach the worker, not even while it imports: it inherits a mask. The resource
    # tracker must run already, because starting it would remove the mask again.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return _Worker(process, ours)


def _assign(worker: _Worker, experiment: Experiment, progress: SweepProgress) -> None:
    worker.run = experiment.name
    progress.begin(experiment.name, experiment)
    with contextlib.suppress(OSError):  # if the worker has died, `_receive` finds out
        worker.pipe.send(experiment.to_dict())


def _receive(worker: _Worker, progress: SweepProgress) -> RunOutcome | None:
    """Handle one message of a worker; returns an outcome if its run has ended.

    Raises:
        EpisodeError: the worker reports a mistake that concerns the whole sweep.
    """
    assert worker.run is not None
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(timeout=10)
        reason = f"its process ended with code {worker.process.exitcode}; sweep again to resume it"
        kind, content = "outcome", RunOutcome(worker.run, "failed", reason)
    if kind == "round":
        progress.round(worker.run, content)
        return None
    if kind == "mistake":
        raise EpisodeError(content)
    worker.run = None
    assert isinstance(content, RunOutcome)
    progress.end(content)
    return content


def _stop_workers(workers: Sequence[_Worker]) -> None:
    """Close all pipes, and terminate the workers that do not end because of that."""
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(timeout=2)
        if worker.process.is_alive():
            worker.process.terminate()
            worker.process.join(timeout=10)


def _work(pipe: Connection, options: SweepOptions, threads: int) -> None:
    """Play what the pipe delivers, in a worker process, until it is closed or delivers None."""
    with contextlib.suppress(EOFError, OSError):
        while (values := pipe.recv()) is not None:
            pipe.send(_play(values, options, pipe, threads))


def _play(
    values: dict[str, Any], options: SweepOptions, pipe: Connection, threads: int
) -> tuple[str, Any]:
    """Play one run; any message that arrives meanwhile, or a closed pipe, asks it to stop."""
    values["engine"].setdefault("workers", threads)
    experiment = Experiment.from_dict(values)
    reported_at = 0.0

    def report(record: Record) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= REPORT_SECONDS:
            reported_at = time.monotonic()
            with contextlib.suppress(OSError):
                pipe.send(("round", record))

    try:
        return "outcome", play_as_outcome(experiment, options, report, pipe.poll)
    except KeyboardInterrupt:
        return "outcome", RunOutcome(experiment.name, "stopped")
    except EpisodeError as error:
        return "mistake", str(error)
