"""Settings chosen fairly: a study in a folder, on which several processes may work.

Optuna keeps the trials in SQLite. What a trial costs is a run in a folder of its own, so nothing
that has been played is played again. Whoever works on a trial holds a lock on it; a trial whose
lock is free was left by a process that is gone, and the next one goes on with it.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from episode.errors import EpisodeError, differences
from episode.results import store
from episode.runs.config import Experiment, to_toml
from episode.runs.records import Record
from episode.runs.trainer import job_of
from episode.studies.search_space import experiment_at
from episode.studies.study import (
    Study,
    check_study,
    open_study,
    optuna_package,
    sampler_of,
    suggest,
)  # fmt: skip
from episode.studies.sweep import play

STUDY = "study.json"
RUNS = "runs"
BEST = "best.toml"
LOCKS = "locks"


@dataclass
class Trial:
    """One point of the space and what it came to."""

    number: int
    point: dict[str, Any]
    status: str
    value: float | None
    experiment: Experiment


@dataclass
class Tuner:
    """Works on a study until it has all its trials."""

    study: Study
    watch: Callable[[str, Experiment], Callable[[Record], None] | None] = field(
        default=lambda name, experiment: None
    )
    stop: Callable[[], bool] | None = None
    elsewhere: int = 0
    """Trials that other processes were still at work on when this one had no more to do."""

    def run(self) -> list[Trial]:
        """Plays what is missing, and returns all trials, the best first."""
        check_study(self.study)
        folder = self.study.folder
        if not (folder / STUDY).exists():
            _check_place(folder)
            _check_metric(self.study)
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
        with _locked(folder / LOCKS / "study"):
            _claim(self.study)
            opened = open_study(self.study)
        while (mine := self._next(opened)) is not None:
            trial, lock = mine
            with lock:
                self._play(opened, trial)
        running = optuna_package().trial.TrialState.RUNNING
        self.elsewhere = len(opened.get_trials(deepcopy=False, states=(running,)))
        found = trials_of(self.study, opened)
        _write_best(self.study, found)
        return found

    def _next(self, opened: Any) -> tuple[Any, IO[str]] | None:
        """A trial nobody works on: one that was left, or a new one; None if all are there."""
        optuna = optuna_package()
        state = optuna.trial.TrialState
        counted = (state.COMPLETE, state.PRUNED, state.RUNNING)
        with _locked(self.study.folder / LOCKS / "study"):
            for frozen in opened.get_trials(deepcopy=False, states=(state.RUNNING,)):
                lock = _try_lock(self._lock_of(frozen.number))
                if lock is None:
                    continue
                if self._can_be_completed(frozen):
                    there = opened.get_trials(deepcopy=False, states=counted)
                    before = sum(t.number < frozen.number for t in there)
                    opened.sampler = sampler_of(self.study, before)
                    trial = optuna.trial.Trial(opened, frozen._trial_id)
                    return self._choose(opened, trial, lock)
                opened.tell(frozen.number, state=state.FAIL)  # its point is drawn again, below
                lock.close()
            done = opened.get_trials(deepcopy=False, states=counted)
            if len(done) >= self.study.wanted:
                return None
            opened.sampler = sampler_of(self.study, len(done))
            trial = opened.ask()
            lock = _try_lock(self._lock_of(trial.number))
            assert lock is not None
            return self._choose(opened, trial, lock)

    def _choose(self, opened: Any, trial: Any, lock: IO[str]) -> tuple[Any, IO[str]]:
        """Gives the trial a value for all that is searched; what it has, it keeps."""
        try:
            for name, values in self.study.space.items():
                suggest(trial, name, values)
        except BaseException:
            lock.close()
            raise
        # Told of the last point, a grid sampler would stop a loop of Optuna's; there is none.
        opened.sampler = optuna_package().samplers.RandomSampler(seed=0)
        return trial, lock

    def _can_be_completed(self, frozen: Any) -> bool:
        """Whether the rest of a point comes out as it would have, had nobody been killed over it.

        A grid's point is known by its number. A sampler that draws must begin at the beginning.
        """
        missing = self.study.space.keys() - frozen.params.keys()
        return self.study.sampler == "grid" or not missing or not frozen.params

    def _play(self, opened: Any, trial: Any) -> None:
        study = self.study
        experiment = experiment_at(study.values, trial.params, study.split())
        judge = _Judge(
            trial,
            study.judged_by()[0],
            experiment.plan().rounds_of_one_step,
            self.watch(f"trial {trial.number}", experiment),
            set(opened.trials[trial.number].intermediate_values),
        )

        def stop() -> bool:
            return judge.pruned or (self.stop is not None and self.stop())

        try:
            summary = play(experiment, study.folder / RUNS / experiment.name, judge, stop)
        except KeyboardInterrupt:
            if not judge.pruned:
                raise
            store.write_text(study.folder / RUNS / experiment.name / store.PRUNED, "")
            opened.tell(trial, state=optuna_package().trial.TrialState.PRUNED)
            return
        opened.tell(trial, self._value(summary))

    def _value(self, summary: Record) -> float:
        """What the run is compared by; what has no finite figure is the worst there is."""
        metric, maximise = self.study.judged_by()
        if summary["status"] == "finished":
            _require_metric(metric, summary["metrics"])
        value = float(summary["metrics"].get(metric, math.nan))
        if summary["status"] != "finished" or not math.isfinite(value):
            return -math.inf if maximise else math.inf
        return value

    def _lock_of(self, number: int) -> Path:
        return self.study.folder / LOCKS / f"trial-{number}"


@dataclass
class _Judge:
    """Tells Optuna of a run's figure as it goes, and hears whether it has fallen behind.

    A run that goes on may play rounds again that were told of before: they are not told twice.
    """

    trial: Any
    metric: str
    rounds_per_step: int
    show: Callable[[Record], None] | None
    reported: set[int]
    pruned: bool = False

    def __post_init__(self) -> None:
        self.pruned = bool(self.reported) and self.trial.should_prune()

    def __call__(self, record: Record) -> None:
        if self.show is not None:
            self.show(record)
        value = record.get("metrics", {}).get(self.metric)
        step = (record["round"] + 1) // self.rounds_per_step
        if value is not None and math.isfinite(value) and step not in self.reported:
            self.trial.report(value, step)
            self.reported.add(step)
            self.pruned = self.pruned or self.trial.should_prune()


def trials_of(study: Study, opened: Any) -> list[Trial]:
    """All trials, the best first; a point that came up twice counts once."""
    _, maximise = study.judged_by()
    found: dict[str, Trial] = {}
    for frozen in opened.get_trials(deepcopy=False):
        if frozen.params.keys() != study.space.keys() or not frozen.state.is_finished():
            continue
        experiment = experiment_at(study.values, frozen.params, study.split())
        value = frozen.value
        status = frozen.state.name.lower()
        if value is not None and not math.isfinite(value):
            status, value = "diverged", None
        trial = Trial(frozen.number, dict(frozen.params), status, value, experiment)
        found.setdefault(experiment.id, trial)

    def rank(trial: Trial) -> tuple[bool, float, int]:
        known = trial.value is not None and trial.status == "complete"
        value = trial.value if known and trial.value is not None else 0.0
        return not known, -value if maximise else value, trial.number

    return sorted(found.values(), key=rank)


def _write_best(study: Study, trials: list[Trial]) -> None:
    """The best config, to be run and reported on the test split."""
    if not trials or trials[0].status != "complete":
        return
    split = "test" if study.split() else None
    chosen = experiment_at(study.values, trials[0].point, split)
    store.write_text(study.folder / BEST, to_toml(chosen.to_dict()) + "\n")


def _claim(study: Study) -> None:
    """Makes the folder this study's, or refuses one that is another's."""
    path = study.folder / STUDY
    ours = store.loads(store.dumps(study.description()))
    if not path.exists():
        store.write_text(path, store.dumps(ours, indent=2) + "\n")
        return
    if differing := differences(store.read_json(path), ours):
        raise EpisodeError(
            f"The study in {study.folder} is another one (they differ in "
            f"{', '.join(differing)}): choose another --folder."
        )


def _check_place(folder: Path) -> None:
    """Keeps a new study out of what is something else, and out of another study."""
    around = [folder, folder.parent]
    taken = [p.parent for f in around for p in (f / store.CONFIG, f / store.SWEEP) if p.exists()]
    taken += [p.parent for p in (folder.parent / STUDY, *folder.glob(f"*/{STUDY}")) if p.exists()]
    if taken:
        raise EpisodeError(f"{taken[0]} holds a run, a sweep or a study: choose another --folder.")


def _check_metric(study: Study) -> None:
    """Finds out before any trial whether the task has the figure that was asked for."""
    if study.metric is not None and study.base().engine.name != "flower":  # sites add their own
        task = job_of(study.base()).task
        _require_metric(study.metric, task.evaluate(*task.initial()))


def _require_metric(metric: str, metrics: Mapping[str, float]) -> None:
    if metric not in metrics:
        names = ", ".join(sorted(metrics)) or "none"
        raise EpisodeError(f"There is no figure {metric!r}: choose --metric from {names}.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for its turn; whoever holds it does so for moments only."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _try_lock(path: Path) -> IO[str] | None:
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    lock.write(str(os.getpid()))
    return lock
