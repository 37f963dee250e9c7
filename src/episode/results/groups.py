"""Runs that differ in their seed alone, together: means and spreads over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episode.errors import EpisodeError
from episode.results.store import StoredRun

NOT_SETTINGS = (
    "id",
    "made_by",
    "engine.name",
    "engine.workers",
    "engine.timeout_seconds",
    "record.checkpoint_seconds",
)
"""Keys of a config that do not decide a run's result."""
LEADING = ("test_accuracy", "validation_accuracy", "train_loss", "gap", "value")
"""Figures that come first, where a run has them."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, over seeds."""

    settings: dict[str, Any]
    """The values of the settings in which the groups differ."""
    runs: list[StoredRun]

    @property
    def label(self) -> str:
        """The algorithm."""
        return self.runs[0].label

    @property
    def ended(self) -> list[StoredRun]:
        """Those with figures to take a mean of."""
        return [r for r in self.runs if r.status == "finished"]

    def status(self) -> str:
        """How they ended, in a few words."""
        counts = {
            s: sum(r.status == s for r in self.runs) for s in ("diverged", "failed", "pruned")
        }
        counts["not finished"] = sum(r.status == "running" for r in self.runs)
        parts = [f"{n} {s}" for s, n in counts.items() if n]
        if not parts:
            return "finished"
        return ", ".join(parts) if len(self.runs) > 1 else parts[0].partition(" ")[2]

    def metric(self, name: str) -> Spread | None:
        """A final figure over the finished runs."""
        values = [{**r.summary, **r.summary["metrics"]}.get(name) for r in self.ended]
        known = [float(v) for v in values if isinstance(v, (int, float))]
        return Spread.of(known) if known else None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of some runs."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        finite = all(map(math.isfinite, values))
        deviation = statistics.stdev(values) if len(values) > 1 and finite else None
        return cls(statistics.fmean(values), deviation, len(values))

    def text(self, digits: int = 3) -> str:
        """`0.881 ± 0.038`, or the one value."""
        mean = _number(self.mean, digits)
        return mean if self.deviation is None else f"{mean} ± {_number(self.deviation, digits)}"


def grouped(runs: Sequence[StoredRun]) -> list[Group]:
    """The groups of these runs, in order of first appearance; refuses runs of different tasks."""
    check_one_task(runs)
    found: dict[str, list[StoredRun]] = {}
    flat: dict[str, dict[str, Any]] = {}
    for run in once(runs):
        settings = settings_of(run.config)
        settings.pop("seed", None)
        key = json.dumps(settings, sort_keys=True)
        flat[key] = settings
        found.setdefault(key, []).append(run)
    differing = differing_keys(flat.values())
    return [Group({k: flat[key].get(k) for k in differing}, runs) for key, runs in found.items()]


def once(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Each config and seed once: of copies, which are no seeds more, the first that finished.

    Runs made in Python all count: their models and losses may differ where their configs do not.
    """
    found: dict[str, StoredRun] = {}
    for run in sorted(runs, key=lambda r: r.status != "finished"):
        key = json.dumps(settings_of(run.config), sort_keys=True)
        found.setdefault(str(run.folder) if "made_by" in run.config else key, run)
    kept = set(map(id, found.values()))
    return [run for run in runs if id(run) in kept]


def check_one_task(runs: Sequence[StoredRun]) -> None:
    """Figures of different tasks cannot be compared."""
    tasks = sorted({task_of(run) for run in runs})
    if len(tasks) > 1:
        raise EpisodeError(
            f"These are runs of different tasks ({', '.join(tasks)}), which one table cannot "
            "compare: give runs of one task."
        )


def task_of(run: StoredRun) -> str:
    """The task's name."""
    return str(run.config.get("task", {}).get("name", "unknown"))


def settings_of(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config as dotted keys, without those that do not decide a result."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix + key
        if isinstance(value, Mapping):
            found |= settings_of(value, f"{name}.")
        elif name not in NOT_SETTINGS:
            found[name] = value
    return found


def differing_keys(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same everywhere, algorithm first."""
    listed = list(settings)
    keys = dict.fromkeys(k for s in listed for k in s)
    differing = [k for k in keys if len({json.dumps(s.get(k)) for s in listed}) > 1]
    return sorted(differing, key=lambda k: (not k.startswith("algorithm"), k))


def told_apart(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each run what it has of its own, in words, beside its algorithm's name and its seed."""
    settings = [settings_of(config) for config in configs]
    tasks = [str(s.get("task.name")) for s in settings]
    keys = {
        task: _telling([s for s, t in zip(settings, tasks, strict=True) if t == task])
        for task in dict.fromkeys(tasks)
    }
    found = []
    for task, s in zip(tasks, settings, strict=True):
        words = [
            f"{k.rpartition('.')[2]} {plain(s[k])}" for k in keys[task] if s.get(k) is not None
        ]
        found.append(", ".join([task, *words] if len(keys) > 1 else words))
    return found


def _telling(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    differing = differing_keys(settings)
    hidden = {"seed", "algorithm.name"}
    if "budget.local_steps" in differing:  # then rounds differ because of it
        hidden.add("budget.rounds")
    return [k for k in differing if k not in hidden and not k.startswith("record.")]


def plain(value: Any) -> str:
    """A setting's value as people read it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def metric_names(runs: Sequence[StoredRun]) -> list[str]:
    """All figures that these runs were evaluated by, the leading ones first."""
    names = dict.fromkeys(n for r in runs for n in r.summary.get("metrics", {}))
    for run in runs:
        if "metrics" not in run.summary:
            names |= dict.fromkeys(n for r in run.rounds for n in r.get("metrics", {}))
    return sorted(names, key=lambda n: LEADING.index(n) if n in LEADING else len(LEADING))


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.2e}"
