"""Many runs in one folder: ended ones are skipped, stopped ones go on, diverged ones are results.

Several run at once, each in a process of its own, where there are cores.
"""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from episode.engines.registry import engine_class
from episode.engines.rendezvous import under_torchrun
from episode.errors import ClientError, EpisodeError
from episode.results import store
from episode.runs.config import Experiment
from episode.runs.observers import tracked
from episode.runs.records import Observe, Record
from episode.runs.trainer import prepared, train

LOCK = "sweep.lock"
ENDED = ("finished", "diverged")


@dataclass(frozen=True)
class Outcome:
    """How a run of the sweep ended."""

    name: str
    status: str
    """finished, diverged, failed, or stopped."""
    reason: str = ""
    skipped: bool = False
    """It had ended before this sweep came to it."""


class Display(Protocol):
    """Whoever shows how the sweep is getting on."""

    def begin(self, name: str, experiment: Experiment) -> None:
        """A run starts, or goes on."""

    def round(self, name: str, record: Record) -> None:
        """A round of it was played."""

    def end(self, outcome: Outcome) -> None:
        """It ended; also called for runs that are skipped."""


class Silent:
    """A display that shows nothing."""

    def begin(self, name: str, experiment: Experiment) -> None:
        pass

    def round(self, name: str, record: Record) -> None:
        pass

    def end(self, outcome: Outcome) -> None:
        pass


@dataclass(frozen=True)
class Orders:
    """How a sweep is played."""

    folder: Path
    jobs: int | None = None
    """Runs at once; None for as many as there are cores."""
    track: bool = False
    """Whether each run writes TensorBoard events."""
    stop: Callable[[], bool] | None = None
    axes: dict[str, list[Any]] | None = None
    """What is varied, to be written down once nobody else is at work there."""


def sweep(
    experiments: Sequence[Experiment], orders: Orders, display: Display | None = None
) -> list[Outcome]:
    """Plays all experiments below the folder, in folders of their names, and says how they ended.

    Raises KeyboardInterrupt once `stop()` is true and the rounds under way are saved.
    """
    display = display or Silent()
    with _alone(orders.folder):
        if orders.axes is not None:
            write_plan(orders.folder, orders.axes, experiments)
        outcomes = {}
        pending = []
        for experiment in experiments:
            outcome = None if under_torchrun() else _ended(orders.folder, experiment)
            if outcome is None:
                pending.append(experiment)
            else:
                outcomes[experiment.name] = outcome
                display.end(outcome)
        jobs = min(orders.jobs or os.cpu_count() or 1, len(pending))
        if under_torchrun() or not all(engine_class(e.engine.name).single_process for e in pending):
            jobs = 1  # each run has processes of its own
        if jobs > 1:
            from episode.studies.processes import play_apart

            played = play_apart(pending, orders, jobs, display)
        else:
            played = _play_in_turn(pending, orders, display)
        for outcome in played:
            outcomes[outcome.name] = outcome
        return [outcomes[e.name] for e in experiments]


def play(
    experiment: Experiment, target: Path, observe: Observe | None, stop: Callable[[], bool] | None
) -> Record:
    """Run one experiment, on the engine that its config names, and return its summary."""
    with prepared(lambda: experiment) as (_, job):
        return train(job, target, observe, stop).summary


def play_one(
    experiment: Experiment, orders: Orders, show: Observe, stop: Callable[[], bool] | None
) -> Outcome:
    """One run as an outcome: a client's own failure is one too, a mistake in the config is not."""
    target = orders.folder / experiment.name
    try:
        with tracked(target, orders.track, show) as observe:
            summary = play(experiment, target, observe, stop)
    except ClientError as error:
        return Outcome(experiment.name, "failed", str(error))
    except EpisodeError:
        raise  # a mistake that the user can put right, or a cluster that is gone
    except Exception as error:  # noqa: BLE001 - one run's failure is not the sweep's
        return Outcome(experiment.name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(experiment.name, summary["status"], summary.get("reason", ""))


def write_plan(folder: Path, axes: dict[str, Any], experiments: Sequence[Experiment]) -> None:
    """Leaves a list of the sweep's runs in its folder, for whoever watches or reports."""
    runs = [e.name for e in experiments]
    store.write_text(
        folder / store.SWEEP, store.dumps({"axes": axes, "runs": runs}, indent=2) + "\n"
    )


def _play_in_turn(
    pending: Sequence[Experiment], orders: Orders, display: Display
) -> Iterator[Outcome]:
    for experiment in pending:
        display.begin(experiment.name, experiment)
        show = functools.partial(display.round, experiment.name)
        outcome = play_one(experiment, orders, show, orders.stop)
        display.end(outcome)
        yield outcome


def _ended(folder: Path, experiment: Experiment) -> Outcome | None:
    """The outcome of a run that needs no more work; read from its summary alone."""
    path = folder / experiment.name / store.SUMMARY
    if not path.exists():
        return None
    summary = store.read_json(path)
    if summary.get("status") not in ENDED:
        return None
    return Outcome(experiment.name, summary["status"], summary.get("reason", ""), skipped=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps a second sweep out of the folder."""
    if under_torchrun() and os.environ.get("RANK") != "0":
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise EpisodeError(f"The folder {folder} cannot be written: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EpisodeError(
                f"Another sweep is at work in {folder}: wait for it, or choose another --folder."
            ) from None
        yield
