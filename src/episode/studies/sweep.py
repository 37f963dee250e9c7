"""Play many runs in one folder, several at once where there are cores.

Runs that have ended are skipped, stopped runs are resumed, and a diverged run is a result.
"""

from __future__ import annotations

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
from episode.files import lock, refuse_link
from episode.results import store
from episode.runs.config import Experiment
from episode.runs.observers import tracked
from episode.runs.records import Observe, Record
from episode.runs.trainer import prepared, train

LOCK = "sweep.lock"

Stop = Callable[[], bool]
"""Asked after every round: whether to save the run and stop."""
Watch = Callable[[str, Experiment], Observe | None]
"""Called with the name and experiment of a run that begins; returns an observer, or None."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run of a sweep ended."""

    name: str
    status: str
    """finished, diverged, failed, or stopped."""
    reason: str = ""
    skipped: bool = False
    """Whether it had ended before the sweep started."""


class SweepProgress(Protocol):
    """Shows the progress of a sweep; a subclass overrides what it needs."""

    def begin(self, name: str, experiment: Experiment) -> None:
        """A run starts or is resumed."""
        return

    def round(self, name: str, record: Record) -> None:
        """A run has played a round."""
        return

    def end(self, outcome: RunOutcome) -> None:
        """A run has ended, or is skipped."""
        return


class NoProgress(SweepProgress):
    """Shows nothing."""


@dataclass(frozen=True)
class SweepOptions:
    """Where and how a sweep is played."""

    folder: Path
    jobs: int | None = None
    """Runs at the same time; None for one per core."""
    track: bool = False
    """Whether each run writes TensorBoard events."""
    stop: Stop | None = None
    axes: dict[str, list[Any]] | None = None
    """The settings that vary, which are written to the folder once it is locked."""


def sweep(
    experiments: Sequence[Experiment], options: SweepOptions, progress: SweepProgress | None = None
) -> list[RunOutcome]:
    """Play all experiments, each in a folder of its own below `options.folder`.

    Returns:
        The outcome of each experiment, in the same order.

    Raises:
        KeyboardInterrupt: `options.stop()` became true; the rounds under way have been saved.
        EpisodeError: another sweep is using the folder, or a config has a mistake.
    """
    progress = progress or NoProgress()
    with _locked(options.folder):
        if options.axes is not None:
            write_plan(options.folder, options.axes, experiments)
        outcomes = {}
        pending = []
        for experiment in experiments:
            outcome = None if under_torchrun() else _earlier_outcome(options.folder, experiment)
            if outcome is None:
                pending.append(experiment)
            else:
                outcomes[experiment.name] = outcome
                progress.end(outcome)
        jobs = min(options.jobs or os.cpu_count() or 1, len(pending))
        if under_torchrun() or not all(engine_class(e.engine.name).single_process for e in pending):
            jobs = 1  # each run has processes of its own
        if jobs > 1:
            from episode.studies.processes import play_in_processes

            played = play_in_processes(pending, options, jobs, progress)
        else:
            played = _play_in_this_process(pending, options, progress)
        for outcome in played:
            outcomes[outcome.name] = outcome
        return [outcomes[e.name] for e in experiments]


def play(
    experiment: Experiment, folder: Path, observe: Observe | None, stop: Stop | None
) -> Record:
    """Play or resume one run on the engine that its config names, and return its summary.

    Every run of a sweep, a study, the demo and a recipe starts here.
    """
    refuse_link(folder)
    with prepared(lambda: experiment) as (_, job):
        return train(job, folder, observe, stop).summary


def play_as_outcome(
    experiment: Experiment, options: SweepOptions, show: Observe, stop: Stop | None
) -> RunOutcome:
    """Play one run of a sweep; a failure of the run becomes its outcome.

    Raises:
        EpisodeError: the config has a mistake, or the cluster is lost: this ends the sweep.
    """
    folder = options.folder / experiment.name
    try:
        with tracked(folder, options.track, show) as observe:
            summary = play(experiment, folder, observe, stop)
    except ClientError as error:
        return RunOutcome(experiment.name, "failed", str(error))
    except EpisodeError:
        raise
    except Exception as error:  # noqa: BLE001 - one run's failure must not end the sweep
        return RunOutcome(experiment.name, "failed", f"{type(error).__name__}: {error}")
    return RunOutcome(experiment.name, summary["status"], summary.get("reason", ""))


def write_plan(folder: Path, axes: dict[str, Any], experiments: Sequence[Experiment]) -> None:
    """Write the sweep's axes and runs to its folder, for `episode watch` and `report`."""
    plan = {"axes": axes, "runs": [e.name for e in experiments]}
    store.write_text(folder / store.SWEEP, store.dumps(plan, indent=2) + "\n")


def _play_in_this_process(
    pending: Sequence[Experiment], options: SweepOptions, progress: SweepProgress
) -> Iterator[RunOutcome]:
    for experiment in pending:
        progress.begin(experiment.name, experiment)
        observe = functools.partial(progress.round, experiment.name)
        outcome = play_as_outcome(experiment, options, observe, options.stop)
        progress.end(outcome)
        yield outcome


def _earlier_outcome(folder: Path, experiment: Experiment) -> RunOutcome | None:
    """Outcome of a run that has ended already, read from its summary; None for all others."""
    summary = store.read_summary(folder / experiment.name)
    if summary.get("status") not in ("finished", "diverged"):
        return None
    return RunOutcome(experiment.name, summary["status"], summary.get("reason", ""), skipped=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Refuse a second sweep in the folder; under torchrun, the first process holds the lock."""
    if under_torchrun() and os.environ.get("RANK") != "0":
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock(folder / LOCK)
    except OSError as error:
        raise EpisodeError(f"The folder {folder} cannot be written: {error.strerror}.") from None
    if held is None:
        raise EpisodeError(
            f"Another sweep is running in {folder}: wait for it, or choose another --folder."
        )
    with held:
        yield
