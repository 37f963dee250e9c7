"""What `episode diagnose` measures: a task by name, a config, or the checkpoint of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from episode.diagnosis.diagnose import Diagnosis, diagnose_task
from episode.diagnosis.measure import State
from episode.diagnosis.options import DiagnosisOptions
from episode.errors import EpisodeError, unknown
from episode.federation import checkpoint
from episode.results.store import CHECKPOINT, CONFIG, read_config
from episode.runs.building import build_task, check_device
from episode.runs.config import Experiment, read_experiment
from episode.tasks import TASKS


@dataclass(frozen=True)
class Target:
    """A task, and the state to start from (None for its initial state)."""

    title: str
    experiment: Experiment
    start: State | None = None

    def diagnose(self, options: DiagnosisOptions, observe: Callable[[str], None]) -> Diagnosis:
        """Build the task and diagnose it."""
        seed, device = self.experiment.seed, self.experiment.engine.device
        check_device(device)
        task = build_task(self.experiment, device)
        return diagnose_task(
            task, title=self.title, seed=seed, start=self.start, options=options, observe=observe
        )


def read_target(what: str | None, settings: Sequence[str] = ()) -> Target:
    """Return the target that a name or a path stands for; by default, the default task.

    Raises:
        EpisodeError: There is no such task, config or run, or the run has no checkpoint.
    """
    if what is None or ":" in what or what in TASKS.names():
        named = [] if what is None else [f"task.name={what}"]
        experiment = read_experiment(None, [*named, *settings])
        return Target(experiment.task_name, experiment)
    path = Path(what)
    if not path.exists():
        if path.suffix or "/" in what:
            raise EpisodeError(f"There is no config or folder {what}: give a path that exists.")
        raise unknown("task", what, TASKS)
    if path.is_dir():
        return _read_run(path, settings)
    experiment = read_experiment(path, settings)
    return Target(f"{experiment.task_name} ({path.name})", experiment)


def _read_run(path: Path, settings: Sequence[str]) -> Target:
    stored = path / CHECKPOINT
    if not (path / CONFIG).is_file():
        raise EpisodeError(f"{path} has no {CONFIG}, so it is not a run's folder: give another.")
    if not stored.exists():
        raise EpisodeError(f"{path} has no checkpoint yet: wait, or diagnose its task by name.")
    experiment = read_experiment(path, settings)
    if experiment.id != read_config(path).get("id"):
        raise EpisodeError(
            f"{path} is a run with fixed settings: leave out --set, or diagnose its task by name."
        )
    server, _ = checkpoint.load(stored, experiment.id, experiment.engine.device)
    title = f"{experiment.task_name}, {experiment.algorithm.label} after {server.round} rounds"
    return Target(title, experiment, (server.x, server.buffers))
