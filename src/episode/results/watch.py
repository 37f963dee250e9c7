"""Runs as they go: read from their folders, for `episode watch`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from episode.errors import EpisodeError
from episode.results import store
from episode.results.groups import LEADING, told_apart
from episode.results.text_tables import counted

BARS = "▁▂▃▄▅▆▇█"
PATIENCE = 5.0
"""Seconds without anybody at work after which nobody is."""
WIDTH = 8
"""Characters of the picture of the loss."""


@dataclass
class Follower:
    """One run's folder; reads what was added since it looked last."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    _read: int = 0

    def look(self) -> None:
        """Reads the new lines; a half-written one waits for the next look."""
        if not self.config:
            self.config = store.read_config(self.folder)
        path = self.folder / store.ROUNDS
        if not path.exists():
            return
        if path.stat().st_size < self._read:  # a run that goes on has cut off what it repeats
            self._read, self.losses = 0, []
        with path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                record = store.read_record(line)
            except ValueError:
                raise store.damaged(path, len(self.losses) + 1) from None
            self.last = record
            self.losses.append(float(record["loss"]))
            self.metrics = record.get("metrics", self.metrics)

    @property
    def status(self) -> str:
        """Its end, or whether somebody is at work on it."""
        summary = self.folder / store.SUMMARY
        if summary.exists():
            return str(store.read_json(summary).get("status", "unknown"))
        if is_locked(self.folder / ".lock"):
            return "running"
        return "pruned" if store.is_pruned(self.folder) else "stopped"

    @property
    def label(self) -> str:
        """The algorithm, and the number of its seed."""
        return f"{store.label_of(self.config)} #{self.config.get('seed')}"

    def total(self) -> int:
        """Rounds to play; one per local step for algorithms that step on the server."""
        budget = self.config.get("budget", {})
        rounds, steps = int(budget.get("rounds", 0)), int(budget.get("local_steps", 1))
        algorithm = self.config.get("algorithm", {})
        synchronous = algorithm.get("correction") == "synchronous" or algorithm.get("name") in (
            "naive_parallel_clip",
            "parallel_sgd",
        )
        return rounds * steps if synchronous else rounds

    def row(self, own: str) -> list[str]:
        """What the table shows of it; `own` is what tells it from the others."""
        last, name = self.last, next((n for n in LEADING if n in self.metrics), "")
        label = f"{self.label}, {own}" if own else self.label
        if not last:
            return [label, self.status, f"0/{self.total():,}", "", "", "", "", ""]
        norm = last.get("global_norm")
        sign = ">" if norm is not None and norm > last["threshold"] else "≤"
        clipping = "" if norm is None else f"{norm:.2g} {sign} {last['threshold']:.2g}"
        return [
            label,
            self.status,
            f"{last['round'] + 1:,}/{self.total():,}",
            f"{last['loss']:.3g}",
            sparkline(self.losses),
            clipping,
            f"{self.metrics[name]:.3f}" if name else "",
            f"{last['seconds']:.0f} s",
        ]


class Watch:
    """The runs in some folders; new ones are found as they appear."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise EpisodeError(f"There is no folder {folder}: give a run's, or a sweep's.")
        self._folders = list(folders)
        self._followers: dict[Path, Follower] = {}
        self._seen_at_work = -math.inf

    def look(self) -> list[Follower]:
        """All runs, up to date."""
        for folder in self._folders:
            for path in store.folders_of_runs(folder):
                self._followers.setdefault(path, Follower(path))
        for follower in self._followers.values():
            follower.look()
        return list(self._followers.values())

    def at_work(self) -> bool:
        """Whether anything may still change: a run, a sweep or a study's trial holds its lock.

        (A study holds none between two trials: so it is given some seconds.)
        """
        locks = [f / name for f in self._folders for name in ("sweep.lock", "runs/sweep.lock")]
        trials = [lock for f in self._folders for lock in f.glob("locks/*")]
        working = any(map(is_locked, [*locks, *trials])) or any(
            f.status == "running" for f in self._followers.values()
        )
        if working:
            self._seen_at_work = time.monotonic()
        return working or bool(trials and time.monotonic() - self._seen_at_work < PATIENCE)

    def table(self) -> Table:
        """What a terminal shows."""
        followers = self.look()
        waiting = sum(len(store.planned_runs(f)) for f in self._folders) - len(followers)
        title = counted(len(followers), "run")
        title += f", {waiting} to come" if waiting > 0 else ""
        table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for name in ("run", "status", "rounds", "loss", "", "‖G‖, γ/η", "figure", "time"):
            right = name in ("rounds", "loss", "figure", "time")
            table.add_column(
                name, justify="right" if right else "left", no_wrap=name != "run", overflow="fold"
            )
        for follower, own in zip(followers, told_apart([f.config for f in followers]), strict=True):
            table.add_row(*follower.row(own))
        return table


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as a row of small bars, oldest first."""
    finite = [v for v in values if abs(v) < float("inf")]
    if len(finite) < 2:
        return ""
    step = max(1, -(-len(finite) // width))
    means = [sum(finite[i : i + step]) / len(finite[i : i + step])
             for i in range(0, len(finite), step)]  # fmt: skip
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((m - low) * scale)] for m in means)


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock; asked of the kernel, so that nobody is kept from it."""
    if not path.exists():
        return False
    try:
        wanted, listed = path.stat(), Path("/proc/locks").read_text()
    except OSError:
        return _is_fresh(path)
    device = f"{os.major(wanted.st_dev):02x}:{os.minor(wanted.st_dev):02x}"
    return f" {device}:{wanted.st_ino} " in listed


def _is_fresh(path: Path) -> bool:
    """Where the kernel does not tell: whether anything was written beside it a minute ago."""
    rounds = path.with_name(store.ROUNDS)
    return rounds.exists() and time.time() - rounds.stat().st_mtime < 60
