"""Progress of runs, read from their folders while they are played: `episode watch`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episode.results import store
from episode.results.groups import LEADING_METRICS, describe_differences
from episode.results.tables import Table, counted

BARS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 8
SYNCHRONOUS = ("naive_parallel_clip", "parallel_sgd")
"""Algorithms without local steps: they exchange after every step."""
BETWEEN_TRIALS = 5.0
"""Seconds for which a study may hold no lock between two trials and still be active."""


@dataclass
class WatchedRun:
    """One run folder; each `update` reads only what has been added to it."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    """Record of the last round."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation."""
    losses: list[float] = field(default_factory=list)
    _bytes_read: int = 0
    _file: int = 0

    def update(self) -> None:
        """Read the new lines of rounds.jsonl; an incomplete line waits for the next update."""
        if not self.config:
            self.config = store.read_config(self.folder)
        summary = store.read_summary(self.folder)  # before the rounds, which may still be added
        path = self.folder / store.ROUNDS
        for line in self._added_lines(path):
            number = len(self.losses)
            try:
                record = store.read_record(line, number)
            except ValueError as error:
                raise store.damaged_line(path, number + 1, error) from None
            self.last = record
            self.losses.append(float(record["loss"]))
            self.metrics = record.get("metrics", self.metrics)
        store.check_complete(self.folder, len(self.losses), summary)

    def _added_lines(self, path: Path) -> list[bytes]:
        """Return the complete lines that were added since the last update."""
        if not path.is_file():
            return []
        with path.open("rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._file or now.st_size < self._bytes_read:
                # A resumed run writes the file anew, without the rounds that it will repeat.
                self._file, self._bytes_read, self.losses = now.st_ino, 0, []
            file.seek(self._bytes_read)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        return [line for line in complete.split(b"\n") if line]

    @property
    def status(self) -> str:
        """How the run ended, or else running, pruned or stopped."""
        if summary := store.read_summary(self.folder):
            return str(summary["status"])
        if is_locked(self.folder / store.LOCK):
            return "running"
        return "pruned" if store.is_pruned(self.folder) else "stopped"

    def total_rounds(self) -> int:
        """Return how many rounds the run will have; without local steps, each step is a round."""
        budget, algorithm = self.config["budget"], self.config["algorithm"]
        rounds, steps = int(budget["rounds"]), int(budget["local_steps"])
        is_synchronous = algorithm.get("correction") == "synchronous"
        return rounds * steps if is_synchronous or algorithm.get("name") in SYNCHRONOUS else rounds

    def metric(self) -> str:
        """Return the name of the metric to show; empty if there is none."""
        return next((name for name in LEADING_METRICS if name in self.metrics), "")

    def row(self, description: str) -> list[str]:
        """Return the cells of `Watcher.table`; `description` tells this run from the others."""
        last, metric = self.last, self.metric()
        label = f"{store.algorithm_name(self.config)} #{self.config.get('seed')}"
        label = f"{label}, {description}" if description else label
        played = last["round"] + 1 if last else 0
        begin = [label, self.status, f"{played:,}/{self.total_rounds():,}"]
        if not last:
            return [*begin, "", "", "", "", ""]
        norm, threshold = last.get("global_norm"), last["threshold"]
        sign = ">" if norm is not None and norm > threshold else "≤"
        return [
            *begin,
            f"{last['loss']:.3g}",
            sparkline(self.losses),
            "" if norm is None else f"{norm:.2g} {sign} {threshold:.2g}",
            f"{self.metrics[metric]:.3f}" if metric else "",
            f"{last['seconds']:.0f} s",
        ]


class Watcher:
    """All runs in some folders; new ones are found as they appear."""

    def __init__(self, folders: Sequence[Path]) -> None:
        store.check_folders(folders)
        self._folders = list(folders)
        self._runs: dict[Path, WatchedRun] = {}
        self._last_active = -math.inf

    def update(self) -> list[WatchedRun]:
        """Read what is new, and return all runs."""
        for folder in self._folders:
            for path in store.run_folders(folder):
                self._runs.setdefault(path, WatchedRun(path))
        for run in self._runs.values():
            run.update()
        return list(self._runs.values())

    def is_active(self) -> bool:
        """Whether anything may still change: a run, a sweep or a trial of a study holds its lock.

        A study holds no lock between two trials, so it counts as active for some seconds more.
        """
        locks = [f / name for f in self._folders for name in ("sweep.lock", "runs/sweep.lock")]
        trials = [lock for f in self._folders for lock in f.glob("locks/*")]
        active = any(map(is_locked, [*locks, *trials])) or any(
            run.status == "running" for run in self._runs.values()
        )
        if active:
            self._last_active = time.monotonic()
        return active or bool(trials and time.monotonic() - self._last_active < BETWEEN_TRIALS)

    def table(self) -> Table:
        """Read what is new, and return one row for each run."""
        runs = self.update()
        waiting = sum(len(store.planned_runs(f)) for f in self._folders) - len(runs)
        title = counted(len(runs), "run") + (f", {waiting} waiting" if waiting > 0 else "")
        metrics = {run.metric() for run in runs} - {""}
        metric = metrics.pop() if len(metrics) == 1 else "metric"
        columns = ["run #seed", "status", "rounds", "local_loss", "", "‖G‖, γ/η", metric, "time"]
        descriptions = describe_differences([run.config for run in runs])
        rows = [run.row(words) for run, words in zip(runs, descriptions, strict=True)]
        return Table(title, columns, rows, left=2)


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """Draw the finite values as a row of small bars, the oldest first."""
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 2:
        return ""
    step = math.ceil(len(finite) / width)
    chunks = [finite[i : i + step] for i in range(0, len(finite), step)]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((m - low) * scale)] for m in means)


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock.

    The kernel is asked, as trying to take the lock could keep its owner from it.
    """
    if not path.exists():
        return False
    try:
        status, locks = path.stat(), Path("/proc/locks").read_text()
    except OSError:  # no Linux: a run that wrote a round within the last minute counts as running
        rounds = path.with_name(store.ROUNDS)
        return rounds.exists() and time.time() - rounds.stat().st_mtime < 60
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return f" {device}:{status.st_ino} " in locks
