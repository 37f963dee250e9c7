"""What a study searches: lists of values, or ranges; the paper's own grids among them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from episode.errors import EpisodeError, unknown
from episode.runs.config import Experiment
from episode.studies.grid import at_point, parse_axis

THRESHOLD = "threshold"
"""γ/η, searched as such: the paper's grids are γ x γ/η, and η = γ / (γ/η)."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; by their logarithm where low is above 0, unless whole."""

    low: float
    high: float
    whole: bool = False


Space = dict[str, list[Any] | Range]

PAPER: Space = {"schedule.gamma": [0.01, 0.03, 0.1], THRESHOLD: [0.1, 1 / 3, 1.0, 10 / 3, 10.0]}
"""SNLI's 15 pairs (appendix E.3)."""
_FIVE = [0.01, 0.03, 0.1, 0.3, 1.0]
PAPER_BY_TASK: dict[str, Space] = {
    "sentiment140": {"schedule.eta": [*_FIVE], "schedule.gamma": [*_FIVE]},
    "synthetic": {"schedule.eta": [0.1, 0.01, 0.001], THRESHOLD: [5.0, 10.0, 15.0]},
}
PAPER_LOCAL_STEPS = 4
PAPER_SIMILARITY = 50.0
"""Where the paper tuned CELGC on SNLI; the pair was then used everywhere."""


def parse_space(given: Sequence[str], task: str) -> Space:
    """The space of `--search` options; without any, the paper's grid for the task."""
    if not given:
        return dict(PAPER_BY_TASK.get(task, PAPER))
    space: Space = {}
    for text in given:
        key, _, listed = text.partition("=")
        span = re.fullmatch(r"\s*([-+.\deE]+?)\.\.([-+.\deE]+)\s*", listed)
        if span is None:
            key, values = parse_axis(text, "--search")
            space[key] = values
        else:
            space[key.strip()] = _range(text, *span.groups())
        if key.strip() != THRESHOLD and get_close_matches(key.strip(), [THRESHOLD], cutoff=0.8):
            raise unknown("setting", key.strip(), [THRESHOLD])
    if {THRESHOLD, "schedule.eta", "schedule.gamma"} <= space.keys():
        raise EpisodeError(
            "η, γ and γ/η are searched, but two of them give the third: leave one out."
        )
    wanted = space.get(THRESHOLD, [1.0])
    tried = [wanted.low, wanted.high] if isinstance(wanted, Range) else wanted
    if any(isinstance(t, bool) or not isinstance(t, (int, float)) or t <= 0 for t in tried):
        raise EpisodeError(f"--search {THRESHOLD}: γ/η must be a number above 0.")
    return space


def paper_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config as the paper tuned: CELGC at I = 4 and s = 50, where nothing else is said."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    for key in ("algorithm", "budget"):
        if isinstance(found.get(key), str):
            found[key] = {"name": found[key]}
    algorithm = found.setdefault("algorithm", {})
    if not algorithm.keys() & {"name", "correction", "clipping"}:
        algorithm["name"] = "celgc"
    if hasattr(Experiment.from_dict(found).task, "similarity"):
        if isinstance(found["task"], str):
            found["task"] = {"name": found["task"]}
        found["task"].setdefault("similarity", PAPER_SIMILARITY)
        found.setdefault("budget", {}).setdefault("local_steps", PAPER_LOCAL_STEPS)
    return found


def experiment_at(
    values: Mapping[str, Any], point: Mapping[str, Any], split: str | None
) -> Experiment:
    """The experiment at a point of the space, evaluated on a split of the task's, if it has any."""
    rest = dict(point)
    threshold = rest.pop(THRESHOLD, None)
    if split is not None:
        rest["task.evaluate_on"] = split
    experiment = at_point(values, rest)
    if threshold is None:
        return experiment
    if "schedule.gamma" in point or "schedule.eta" not in point:
        rest["schedule.eta"] = _tidy(experiment.schedule.gamma / threshold)
    else:
        rest["schedule.gamma"] = _tidy(experiment.schedule.eta * threshold)
    return at_point(values, rest)


def describe(space: Space) -> dict[str, Any]:
    """The space as JSON values: two studies of one space have the same."""
    return {k: vars(v) if isinstance(v, Range) else v for k, v in space.items()}


def _range(text: str, low: str, high: str) -> Range:
    try:
        whole = all(re.fullmatch(r"[-+]?\d+", end) for end in (low, high))
        found = Range(float(low), float(high), whole)
    except ValueError:
        raise EpisodeError(f"--search {text!r}: give a range of numbers, as in 0.01..1.") from None
    if not found.low < found.high:
        raise EpisodeError(f"--search {text!r}: the range is empty.")
    return found


def _tidy(value: float) -> float:
    """0.3 for 0.1 / (1/3), not 0.30000000000000004."""
    return float(f"{value:.12g}")
