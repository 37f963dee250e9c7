"""What a study searches: lists of values or ranges, among them the paper's own grids."""

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
"""The clipping threshold γ/η. The paper's grids are γ × γ/η, so it is searched like a setting."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, drawn on a logarithmic scale if low is above 0 and not whole."""

    low: float
    high: float
    whole: bool = False


Space = dict[str, list[Any] | Range]

PAPER: Space = {"schedule.gamma": [0.01, 0.03, 0.1], THRESHOLD: [0.1, 1 / 3, 1.0, 10 / 3, 10.0]}
"""The 15 pairs that the paper tried on SNLI (appendix E.3)."""
_FIVE = [0.01, 0.03, 0.1, 0.3, 1.0]
PAPER_BY_TASK: dict[str, Space] = {
    "sentiment140": {"schedule.eta": [*_FIVE], "schedule.gamma": [*_FIVE]},
    "synthetic": {"schedule.eta": [0.1, 0.01, 0.001], THRESHOLD: [5.0, 10.0, 15.0]},
}
PAPER_LOCAL_STEPS = 4
PAPER_SIMILARITY = 50.0
"""Where the paper tuned CELGC on SNLI; it then used the best pair everywhere."""


def parse_space(given: Sequence[str], task: str) -> Space:
    """Parse `--search` options; without any, return the paper's grid for the task."""
    if not given:
        return dict(PAPER_BY_TASK.get(task, PAPER))
    space: Space = {}
    for text in given:
        key, _, listed = (part.strip() for part in text.partition("="))
        span = re.fullmatch(r"([-+.\deE]+?)\.\.([-+.\deE]+)", listed)
        space[key] = _range(text, *span.groups()) if span else parse_axis(text, "--search")[1]
        if key != THRESHOLD and get_close_matches(key, [THRESHOLD], cutoff=0.8):
            raise unknown("setting", key, [THRESHOLD])
    check_space(space)
    return space


def check_space(space: Space) -> None:
    """Refuse to search η, γ and γ/η at once, and a γ/η that is no number above 0."""
    if {THRESHOLD, "schedule.eta", "schedule.gamma"} <= space.keys():
        raise EpisodeError(
            "η, γ and γ/η are all searched, but two of them determine the third: leave one out."
        )
    wanted = space.get(THRESHOLD, [1.0])
    tried = [wanted.low, wanted.high] if isinstance(wanted, Range) else wanted
    if any(isinstance(t, bool) or not isinstance(t, (int, float)) or t <= 0 for t in tried):
        raise EpisodeError(f"--search {THRESHOLD}: γ/η must be a number above 0.")


def paper_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a config as the paper tuned: CELGC, I = 4 and s = 50, unless it says otherwise."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    for key in ("algorithm", "task"):
        given = found.get(key, {})
        found[key] = {"name": given} if isinstance(given, str) else given
    if not found["algorithm"].keys() & {"name", "correction", "clipping"}:
        found["algorithm"]["name"] = "celgc"
    if Experiment.from_dict(found).task.has_setting("similarity"):
        found["task"].setdefault("similarity", PAPER_SIMILARITY)
        found.setdefault("budget", {}).setdefault("local_steps", PAPER_LOCAL_STEPS)
    return found


def experiment_at(
    values: Mapping[str, Any], point: Mapping[str, Any], split: str | None
) -> Experiment:
    """Build the experiment at a point of the space.

    Args:
        values: The config before anything is searched.
        point: The searched settings; `threshold` sets η from γ, or γ from η if η is searched too.
        split: The split to evaluate on, for tasks that have several.
    """
    rest = dict(point)
    threshold = rest.pop(THRESHOLD, None)
    if split is not None:
        rest["task.evaluate_on"] = split
    experiment = at_point(values, rest)
    if threshold is None:
        return experiment
    if "schedule.gamma" in point or "schedule.eta" not in point:
        rest["schedule.eta"] = _tidy(float(experiment.schedule.gamma) / threshold)
    else:
        rest["schedule.gamma"] = _tidy(float(experiment.schedule.eta) * threshold)
    return at_point(values, rest)


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
    """Round to 12 digits: 0.3 for 0.1 / (1/3), not 0.30000000000000004."""
    return float(f"{value:.12g}")
