"""Tuning: play the trials of a study, alone or together with other processes.

Optuna keeps the trials in an SQLite database. Each trial is a run in a folder of its own, so
nothing is played twice. A process holds a lock on the trial that it plays. A running trial without
a lock was left behind by a process that died, and the next process resumes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from episode.errors import EpisodeError, differences
from episode.files import lock, refuse_link
from episode.results import store
from episode.runs.building import build_task
from episode.runs.config import Experiment, to_toml
from episode.runs.records import Observe, Record
from episode.studies.search_space import experiment_at
from episode.studies.study import (
    DATABASE,
    Study,
    import_optuna,
    open_study,
    sampler_of,
    suggest,
)
from episode.studies.sweep import Stop, Watch, play

STUDY = "study.json"
RUNS = "runs"
BEST = "best.toml"
LOCKS = "locks"


@dataclass
class Trial:
    """One point of a study's search space, and its result."""

    number: int
    point: dict[str, Any]
    status: str
    """complete, pruned, failed or diverged."""
    value: float | None
    """The metric that trials are compared by, if the trial has it."""
    experiment: Experiment


@dataclass
class StudyRunner:
    """Plays the trials of a study until it is complete."""

    study: Study
    watch: Watch | None = None
    stop: Stop | None = None
    running_elsewhere: int = 0
    """Trials that other processes were still playing when this one ran out of work."""

    def run(self) -> list[Trial]:
        """Play the trials that are missing, and return all trials, the best first.

        Raises:
            EpisodeError: the study has a mistake, or its folder holds something else.
            KeyboardInterrupt: `stop()` became true; the round under way has been saved.
        """
        self.study.check()
        folder = self.study.folder
        if not (folder / STUDY).exists():
            _check_folder(folder)
            _check_metric(self.study)
        for name in (LOCKS, RUNS, DATABASE):
            refuse_link(folder / name)
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
        with _locked(folder / LOCKS / "study"):
            _claim(self.study)
            opened = open_study(self.study)
        while (mine := self._next(opened)) is not None:
            trial, held = mine
            with held:
                self._play(opened, trial)
        running = import_optuna().trial.TrialState.RUNNING
        self.running_elsewhere = len(opened.get_trials(deepcopy=False, states=(running,)))
        found = trials_of(self.study, opened)
        _write_best(self.study, found)
        return found

    def _next(self, opened: Any) -> tuple[Any, IO[str]] | None:
        """Lock a trial that was left behind, or a new one; None if there is nothing left to do."""
        optuna = import_optuna()
        state = optuna.trial.TrialState
        counted = (state.COMPLETE, state.PRUNED, state.RUNNING)
        with _locked(self.study.folder / LOCKS / "study"):
            for frozen in opened.get_trials(deepcopy=False, states=(state.RUNNING,)):
                held = lock(self._lock_of(frozen.number))
                if held is None:
                    continue
                if self._can_be_completed(frozen):
                    there = opened.get_trials(deepcopy=False, states=counted)
                    before = sum(t.number < frozen.number for t in there)
                    opened.sampler = sampler_of(self.study, before)
                    trial = optuna.trial.Trial(opened, frozen._trial_id)
                    return self._choose(opened, trial, held)
                opened.tell(frozen.number, state=state.FAIL)  # its point is drawn again, below
                held.close()
            done = opened.get_trials(deepcopy=False, states=counted)
            if len(done) >= self.study.total_trials:
                return None
            opened.sampler = sampler_of(self.study, len(done))
            trial = opened.ask()
            held = lock(self._lock_of(trial.number))
            assert held is not None
            return self._choose(opened, trial, held)

    def _choose(self, opened: Any, trial: Any, held: IO[str]) -> tuple[Any, IO[str]]:
        """Choose a value for every searched setting that the trial does not have yet."""
        try:
            for name, values in self.study.space.items():
                suggest(trial, name, values)
        except BaseException:
            held.close()
            raise
        # After the last point, a grid sampler would try to stop Optuna's own loop, which is not
        # running here.
        opened.sampler = import_optuna().samplers.RandomSampler(seed=0)
        return trial, held

    def _can_be_completed(self, frozen: Any) -> bool:
        """Whether the rest of a trial's point can be chosen as if its process had not died.

        The number of a trial determines a grid's point; other samplers must draw it as a whole.
        """
        missing = self.study.space.keys() - frozen.params.keys()
        return self.study.sampler == "grid" or not missing or not frozen.params

    def _play(self, opened: Any, trial: Any) -> None:
        study = self.study
        experiment = experiment_at(study.values, trial.params, study.split())
        observer = _PruningObserver(
            trial,
            study.criterion()[0],
            experiment.plan().rounds_of_one_step,
            self.watch(f"trial {trial.number}", experiment) if self.watch else None,
            set(opened.trials[trial.number].intermediate_values),
        )

        def stop() -> bool:
            return observer.pruned or (self.stop is not None and self.stop())

        folder = study.folder / RUNS / experiment.name
        try:
            summary = play(experiment, folder, observer, stop)
        except KeyboardInterrupt:
            if not observer.pruned:
                raise
            store.write_text(folder / store.PRUNED, "")
            opened.tell(trial, state=import_optuna().trial.TrialState.PRUNED)
            return
        opened.tell(trial, self._value(summary))

    def _value(self, summary: Record) -> float:
        """The metric of a run; the worst possible value if it diverged."""
        metric, maximise = self.study.criterion()
        if summary["status"] == "finished":
            _require_metric(metric, summary["metrics"])
        value = float(summary["metrics"].get(metric, math.nan))
        if summary["status"] != "finished" or not math.isfinite(value):
            return -math.inf if maximise else math.inf
        return value

    def _lock_of(self, number: int) -> Path:
        return self.study.folder / LOCKS / f"trial-{number}"


@dataclass
class _PruningObserver:
    """Reports a trial's metric to Optuna while it runs, and asks whether to prune the trial.

    A resumed run may replay rounds that have been reported before: they are not reported twice.
    """

    trial: Any
    metric: str
    rounds_per_step: int
    show: Observe | None
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
    """All trials that have ended, the best first; each point counts once."""
    _, maximise = study.criterion()
    found: dict[str, Trial] = {}
    for frozen in opened.get_trials(deepcopy=False):
        if frozen.params.keys() != study.space.keys() or not frozen.state.is_finished():
            continue
        experiment = experiment_at(study.values, frozen.params, study.split())
        status, value = frozen.state.name.lower(), frozen.value
        if value is not None and not math.isfinite(value):
            status, value = "diverged", None
        trial = Trial(frozen.number, dict(frozen.params), status, value, experiment)
        found.setdefault(experiment.id, trial)

    def rank(trial: Trial) -> tuple[bool, float, int]:
        if trial.value is None or trial.status != "complete":
            return True, 0.0, trial.number
        return False, -trial.value if maximise else trial.value, trial.number

    return sorted(found.values(), key=rank)


def _write_best(study: Study, trials: list[Trial]) -> None:
    """Write the best config, set to be evaluated on the test split."""
    if not trials or trials[0].status != "complete":
        return
    split = "test" if study.split() else None
    chosen = experiment_at(study.values, trials[0].point, split)
    store.write_text(study.folder / BEST, to_toml(chosen.to_dict()) + "\n")


def _claim(study: Study) -> None:
    """Write the study's description to its folder, or refuse the folder of another study."""
    path = study.folder / STUDY
    ours = store.loads(store.dumps(study.description()))
    if not path.exists():
        store.write_text(path, store.dumps(ours, indent=2) + "\n")
        return
    if differing := differences(store.read_table(path), ours):
        raise EpisodeError(
            f"The study in {study.folder} is another one (they differ in "
            f"{', '.join(differing)}): choose another --folder."
        )


def _check_folder(folder: Path) -> None:
    """Refuse a folder for a new study that holds, or lies in, a run, a sweep or a study."""
    around = [folder, folder.parent]
    taken = [p.parent for f in around for p in (f / store.CONFIG, f / store.SWEEP) if p.exists()]
    taken += [p.parent for p in (folder.parent / STUDY, *folder.glob(f"*/{STUDY}")) if p.exists()]
    if taken:
        raise EpisodeError(f"{taken[0]} holds a run, a sweep or a study: choose another --folder.")


def _check_metric(study: Study) -> None:
    """Check before any trial that the task has the metric; on Flower, sites may add their own."""
    if study.metric is not None and study.base().engine.name != "flower":
        task = build_task(study.base(), "cpu")
        _require_metric(study.metric, task.evaluate(*task.initial()))


def _require_metric(metric: str, metrics: Mapping[str, float]) -> None:
    if metric not in metrics:
        names = ", ".join(sorted(metrics)) or "none"
        raise EpisodeError(f"There is no metric {metric!r}: choose --metric from {names}.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for a lock that processes hold only for moments."""
    held = lock(path, wait=True)
    assert held is not None
    with held:
        yield
