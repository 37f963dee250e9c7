"""All that watches a run of `fit`: observers, callbacks, a rule to stop by, and progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.arguments import function, optional
from episode.federation.job import Job
from episode.results.store import algorithm_name
from episode.runs.callbacks import Callback
from episode.runs.monitor import Monitor
from episode.runs.observers import combined
from episode.runs.progress import shown_rounds
from episode.runs.records import STOP, Observe, Record


@dataclass
class Watchers:
    """The observers of a run, before it begins."""

    observers: Sequence[Observe]
    stop_when: Any
    progress: bool
    monitor: Monitor | None

    @classmethod
    def of(cls, observe: Any, stop_when: Any, progress: bool, monitor: bool | Monitor) -> Watchers:
        """Check what `fit` was given."""
        given = list(observe) if isinstance(observe, (list, tuple)) else [observe]
        for each in given:
            optional(function, "observe", each, "takes the record of a round")
        optional(function, "stop_when", stop_when, "says of the record of a round whether to stop")
        watch = Monitor() if monitor is True else monitor
        return cls([o for o in given if o is not None], stop_when, progress, watch or None)

    @property
    def may_end(self) -> bool:
        """Whether the run may end before its last round."""
        return bool(self.observers or self.stop_when)

    def measuring(self, job: Job) -> Job:
        """Return the job, with what the monitor needs to be measured."""
        return self.monitor.watch(job) if self.monitor else job

    @contextmanager
    def watching(self, job: Job, folder: Path | None) -> Iterator[Observe | None]:
        """Yield one observer for all; callbacks and progress begin and end with the context."""
        writes = job.processes.writes
        callbacks = [o for o in self.observers if isinstance(o, Callback)]
        chosen = [o for o in self.observers if writes or not isinstance(o, Callback)]
        with ExitStack() as stack:
            if self.progress and writes:
                name = algorithm_name(job.config)
                chosen.append(stack.enter_context(shown_rounds(name, job.plan.rounds_to_play)))
            if writes:
                for callback in callbacks:
                    stack.enter_context(_told(callback, job, folder))
            watch = self.monitor if writes else None
            yield combined(watch, *chosen, self._rule() if self.stop_when else None)

    def _rule(self) -> Observe:
        def observe(record: Record) -> object:
            return STOP if self.stop_when(record) else None

        return observe


@contextmanager
def _told(callback: Callback, job: Job, folder: Path | None) -> Iterator[None]:
    """Tell a callback when the run begins and ends."""
    callback.begin(job.config, folder)
    try:
        yield
    except BaseException:
        callback.end(finished=False)
        raise
    callback.end(finished=True)
