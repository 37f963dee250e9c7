"""What `episode diagnose` is pointed at: a task's name, a config, or a run's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from episode.diagnosis.diagnose import Diagnosis, diagnose_task
from episode.diagnosis.trajectory import Options
from episode.errors import EpisodeError, unknown
from episode.federation import checkpoint
from episode.federation.state import Buffers
from episode.results.store import CHECKPOINT, CONFIG
from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import check_device
from episode.tasks import TASKS


@dataclass(frozen=True)
class Subject:
    """A task and where to start on it."""

    title: str
    experiment: Experiment
    start: tuple[Tensor, Buffers] | None = None

    def diagnose(self, options: Options, observe: Callable[[str], None]) -> Diagnosis:
        """Builds the task and measures it."""
        e = self.experiment
        check_device(e.engine.device)
        task = e.task.build(e.seed, e.engine.device)
        return diagnose_task(
            task,
            title=self.title,
            seed=e.seed,
            start=self.start,
            options=options,
            observe=observe,
        )


def read_subject(what: str | None, settings: Sequence[str] = ()) -> Subject:
    """The subject that a name or a path means; without either, the default task."""
    if what is None or what in TASKS:
        named = [] if what is None else [f"task.name={what}"]
        experiment = read_experiment(None, [*named, *settings])
        return Subject(experiment.task_name, experiment)
    path = Path(what)
    if not path.exists():
        if path.suffix or "/" in what:
            raise EpisodeError(f"There is no config or folder {what}: give a path that exists.")
        raise unknown("task", what, TASKS)
    if path.is_dir() and not (path / CONFIG).is_file():
        raise EpisodeError(f"{what} is not a run's folder: no {CONFIG} is in it.")
    experiment = read_experiment(path, settings)
    if not path.is_dir():
        return Subject(f"{experiment.task_name} ({path.name})", experiment)
    return _from_folder(path, experiment, bool(settings))


def _from_folder(path: Path, experiment: Experiment, changed: bool) -> Subject:
    stored = path / CHECKPOINT
    if not stored.exists():
        raise EpisodeError(
            f"{path} has no checkpoint yet: wait for one, or diagnose its task from the start."
        )
    if changed:
        raise EpisodeError(
            f"{path} is a run, and --set would make it another: leave --set out, or diagnose its "
            "task by name."
        )
    server, _ = checkpoint.load(stored, experiment.id, experiment.engine.device)
    title = f"{experiment.task_name}, {experiment.algorithm.label} after {server.round} rounds"
    return Subject(title, experiment, (server.x, server.buffers))
