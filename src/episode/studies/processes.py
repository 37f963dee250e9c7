"""Runs in processes of their own, several at once; one that dies takes nobody with it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from episode.errors import EpisodeError
from episode.runs.config import Experiment
from episode.runs.records import Record
from episode.studies.child_process import start_apart
from episode.studies.sweep import Display, Orders, Outcome, play_one

SPOKEN_EVERY = 0.1
"""Seconds between two rounds that a process tells of."""


@dataclass
class _Seat:
    """A process, the line to it, and what it is playing."""

    process: BaseProcess
    line: Connection
    playing: str | None = None


def play_apart(
    pending: Sequence[Experiment], orders: Orders, jobs: int, display: Display
) -> Iterator[Outcome]:
    """Plays the experiments over `jobs` processes, and yields how each ended, as it ends."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    waiting = deque(pending)
    seats = [_sit_down(orders, threads) for _ in range(jobs)]
    try:
        stopping = False
        while True:
            for seat in seats:
                if seat.playing is None and waiting and not stopping:
                    _hand_over(seat, waiting.popleft(), display)
            busy = [s for s in seats if s.playing is not None]
            if not busy:
                break
            for line in wait([s.line for s in busy], timeout=0.2):
                seat = next(s for s in busy if s.line is line)
                outcome = _listen(seat, display)
                if outcome is not None:
                    yield outcome
                    if not seat.process.is_alive():
                        seats[seats.index(seat)] = _sit_down(orders, threads)
            if not stopping and orders.stop is not None and orders.stop():
                stopping = True
                for seat in busy:
                    with contextlib.suppress(OSError):
                        seat.line.send(None)
        if stopping:
            raise KeyboardInterrupt
    finally:
        _clear(seats)


def _sit_down(orders: Orders, threads: int) -> _Seat:
    return _Seat(*start_apart(_serve, replace(orders, stop=None), threads))


def _hand_over(seat: _Seat, experiment: Experiment, display: Display) -> None:
    seat.playing = experiment.name
    display.begin(experiment.name, experiment)
    with contextlib.suppress(OSError):  # it has died: that is found out by listening
        seat.line.send(experiment.to_dict())


def _listen(seat: _Seat, display: Display) -> Outcome | None:
    """One message: a round, an outcome, or the end of the line, where the process has died."""
    assert seat.playing is not None
    try:
        kind, content = seat.line.recv()
    except (EOFError, OSError):
        seat.process.join(timeout=10)
        reason = f"its process ended with code {seat.process.exitcode}; it goes on in the next try"
        kind, content = "outcome", Outcome(seat.playing, "failed", reason)
    if kind == "round":
        display.round(seat.playing, content)
        return None
    if kind == "mistake":
        raise EpisodeError(content)
    seat.playing = None
    assert isinstance(content, Outcome)
    display.end(content)
    return content


def _clear(seats: Sequence[_Seat]) -> None:
    """Nobody stays behind: whoever does not leave at the end of the line is ended."""
    for seat in seats:
        seat.line.close()
    for seat in seats:
        seat.process.join(timeout=2)
        if seat.process.is_alive():
            seat.process.terminate()
            seat.process.join(timeout=10)


def _serve(line: Connection, orders: Orders, threads: int) -> None:
    """A process of the sweep: plays what it is sent, until the line ends or it is told to stop."""
    while True:
        try:
            values = line.recv()
        except (EOFError, OSError):
            return
        if values is None:
            return
        # Whatever is on the line while a run is played, or its end, means: stop.
        message = _play_order(values, orders, line, threads)
        try:
            line.send(message)
        except OSError:
            return


def _play_order(
    values: dict[str, Any], orders: Orders, line: Connection, threads: int
) -> tuple[str, Any]:
    experiment = Experiment.from_dict(values)
    if experiment.engine.workers is None:
        engine = replace(experiment.engine, workers=threads)
        experiment = replace(experiment, engine=engine)
    spoken_at = 0.0

    def show(record: Record) -> None:
        nonlocal spoken_at
        if time.monotonic() - spoken_at >= SPOKEN_EVERY:
            spoken_at = time.monotonic()
            with contextlib.suppress(OSError):
                line.send(("round", record))

    try:
        return "outcome", play_one(experiment, orders, show, line.poll)
    except KeyboardInterrupt:
        return "outcome", Outcome(experiment.name, "stopped")
    except EpisodeError as error:
        return "mistake", str(error)
