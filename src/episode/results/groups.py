"""Groups of runs that differ only in their seed, with means and deviations over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episode.errors import EpisodeError
from episode.results.store import NOT_DECIDING, StoredRun

NOT_SETTINGS = ("id", "made_by", *NOT_DECIDING)
"""Keys of a config that a comparison ignores."""
LEADING_METRICS = ("test_accuracy", "validation_accuracy", "train_loss", "gap", "value")
"""Metrics that are shown before all others."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration with different seeds."""

    settings: dict[str, Any]
    """This group's values of the settings in which the groups differ."""
    runs: list[StoredRun]

    @property
    def label(self) -> str:
        """Name of the algorithm."""
        return self.runs[0].label

    def status(self) -> str:
        """Return `finished`, or which runs did not finish, such as `1 diverged`."""
        found = Counter("not finished" if r.status == "running" else r.status for r in self.runs)
        del found["finished"]
        if len(self.runs) == 1:
            return next(iter(found), "finished")
        return ", ".join(f"{n} {status}" for status, n in sorted(found.items())) or "finished"

    def metric(self, name: str) -> Spread | None:
        """Return the final value of a metric over the finished runs, or None if none has it."""
        finished = [r.summary for r in self.runs if r.status == "finished"]
        values = [{**summary, **summary["metrics"]}.get(name) for summary in finished]
        known = [float(v) for v in values if isinstance(v, (int, float))]
        return Spread.of(known) if known else None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (with n - 1) of a metric."""

    mean: float
    deviation: float | None
    """None for a single value, and if a value is not finite."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute mean and deviation of at least one value."""
        finite = all(map(math.isfinite, values))
        deviation = statistics.stdev(values) if len(values) > 1 and finite else None
        return cls(statistics.fmean(values), deviation, len(values))

    def text(self, digits: int = 3) -> str:
        """Return `0.881 ± 0.038`, or the mean alone if there is no deviation."""
        mean = _number(self.mean, digits)
        return mean if self.deviation is None else f"{mean} ± {_number(self.deviation, digits)}"


def group_runs(runs: Sequence[StoredRun]) -> list[Group]:
    """Group runs by configuration, in order of first appearance; copies count once.

    Raises:
        EpisodeError: The runs are of different tasks, whose metrics cannot be compared.
    """
    tasks = sorted({task_of(run) for run in runs})
    if len(tasks) > 1:
        raise EpisodeError(
            f"These are runs of different tasks ({', '.join(tasks)}), whose metrics cannot be "
            "compared: give runs of one task."
        )
    members: dict[tuple[str, int], list[StoredRun]] = {}
    seen: Counter[str] = Counter()
    for run in without_copies(runs):
        own = settings_of(run.config)
        whole = json.dumps(own, sort_keys=True)
        own.pop("seed", None)
        # Runs of one config and seed that differ nevertheless, in a loss that no config describes.
        members.setdefault((json.dumps(own, sort_keys=True), seen[whole]), []).append(run)
        seen[whole] += 1
    settings = [json.loads(key) for key, _ in members]
    differing = differing_keys(settings)
    shown = [{k: own.get(k) for k in differing} for own in settings]
    return [Group(*pair) for pair in zip(shown, members.values(), strict=True)]


def without_copies(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Keep one run of each config and seed: the first that finished, or else the first.

    Runs made in Python may differ in their loss functions, which no config describes; they are
    copies if their first rounds agree, too.
    """
    kept: dict[str, StoredRun] = {}
    for run in sorted(runs, key=lambda r: r.status != "finished"):
        key = json.dumps(settings_of(run.config), sort_keys=True)
        if "made_by" in run.config:
            key += str(run.rounds[0]["loss"]) if run.rounds else str(run.folder)
        kept.setdefault(key, run)
    places = set(map(id, kept.values()))
    return [run for run in runs if id(run) in places]


def task_of(run: StoredRun) -> str:
    """Return the name of the run's task."""
    return str(run.config.get("task", {}).get("name", "unknown"))


def settings_of(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a config to dotted keys, without those in `NOT_SETTINGS`.

    A piece of the algorithm has one key for its name, whether or not it has settings of its own:
    `algorithm.trust` is `full` or `measured`, which also has `algorithm.trust.full_from`.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix + key
        if key == "name" and prefix.startswith("algorithm.") and prefix != "algorithm.":
            name = prefix.removesuffix(".")
        if isinstance(value, Mapping):
            found |= settings_of(value, f"{name}.")
        elif name not in NOT_SETTINGS:
            found[name] = value
    return found


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not all equal; those of the algorithm come first."""
    keys = {k for s in settings for k in s}
    differing = [k for k in keys if len({json.dumps(s.get(k)) for s in settings}) > 1]
    return sorted(differing, key=lambda k: (not k.startswith("algorithm"), k))


def describe_differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each run by the settings in which it differs from others of its task.

    The algorithm's name and the seed are left out. For example `local_steps 4, similarity 30`.
    """
    settings = [settings_of(config) for config in configs]
    tasks = [str(s.get("task.name")) for s in settings]
    keys = {
        task: _describing_keys([s for s, t in zip(settings, tasks, strict=True) if t == task])
        for task in dict.fromkeys(tasks)
    }
    found = []
    for task, own in zip(tasks, settings, strict=True):
        words = [setting_text(k, own[k]) for k in keys[task] if own.get(k) is not None]
        found.append(", ".join([task, *words] if len(keys) > 1 else words))
    return found


def _describing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    differing = differing_keys(settings)
    hidden = {"seed", "algorithm.name"}
    if "budget.local_steps" in differing:  # the rounds then differ for equal iterations
        hidden.add("budget.rounds")
    return [k for k in differing if k not in hidden and not k.startswith("record.")]


def setting_text(key: str, value: Any) -> str:
    """Return a setting without its section, such as `local_steps 4`."""
    return f"{key.rpartition('.')[2]} {value_text(value)}"


def value_text(value: Any, width: int = 1000) -> str:
    """Return the value of a setting as people read it; a dash if it is not set."""
    if value is None:
        return "–"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def metric_names(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names of all metrics of these runs, with `LEADING_METRICS` first."""
    ended = [r.summary for r in runs if "metrics" in r.summary]
    others = [record for r in runs if "metrics" not in r.summary for record in r.rounds]
    names = dict.fromkeys(n for record in (*ended, *others) for n in record.get("metrics", {}))
    order = {name: place for place, name in enumerate(LEADING_METRICS)}
    return sorted(names, key=lambda n: order.get(n, len(order)))


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.2e}"
