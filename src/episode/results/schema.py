"""What the files of run folders must hold. They are checked against these tables when read.

Keys that a table does not name are free: engines and later versions add their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episode.errors import EpisodeError

MOST_LEVELS = 40
"""How deeply the values of a file may be nested."""
LARGEST = 2**63
"""Measured numbers are smaller than this, so that each of them can be a float."""


@dataclass(frozen=True)
class Kind:
    """A type of JSON values, in words for messages."""

    words: str
    accepts: Callable[[Any], bool]
    required: bool = True
    """Whether the key must be there."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_whole(value) and abs(value) < LARGEST)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _each(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_piece(value: Any) -> bool:
    return _is_text(value) or (_is_table(value) and _is_text(value.get("name")))


def _one_of(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: _is_text(value) and value in names)


def optional(kind: Kind) -> Kind:
    """Return a kind whose key may be missing."""
    return Kind(kind.words, kind.accepts, required=False)


def nullable(kind: Kind) -> Kind:
    """Return a kind whose key may be missing, or null for what was not measured."""
    return Kind(f"{kind.words}, or null", lambda v: v is None or kind.accepts(v), required=False)


TABLE = Kind("a table", _is_table)
TEXT = Kind("text", _is_text)
TEXTS = Kind("a list of texts", _each(_is_text))
WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a whole number of 0 or more", _is_count)
COUNTS = Kind("a list of whole numbers of 0 or more", _each(_is_count))
NUMBER = Kind("a number", _is_number)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
METRICS = Kind("a table of numbers", _is_metrics)
PIECE = Kind("a name, or a table with a name", _is_piece)

Schema = Mapping[str, Kind]
"""Kinds of values by dotted keys."""

ANY: Schema = {}
CONFIG: Schema = {
    "task": TABLE,
    "task.name": TEXT,
    "algorithm": TABLE,
    "algorithm.name": optional(TEXT),
    "algorithm.correction": optional(PIECE),
    "algorithm.clipping": optional(PIECE),
    "algorithm.descent": optional(PIECE),
    "algorithm.server": optional(PIECE),
    "seed": WHOLE,
    "schedule": TABLE,
    "budget": TABLE,
    "budget.rounds": WHOLE,
    "budget.local_steps": WHOLE,
    "cohorts": optional(TABLE),
    "record": optional(TABLE),
    "engine": optional(TABLE),
    "engine.name": optional(TEXT),
    "made_by": optional(TEXT),
    "id": optional(TEXT),
}
ENVIRONMENT: Schema = {"command": optional(TEXTS)}
_COSTS: Schema = {
    "exchanges": COUNT,
    "bytes_up": COUNT,
    "bytes_down": COUNT,
    "gradients": COUNT,
    "seconds": NUMBER,
}
ROUND: Schema = {
    "round": COUNT,
    "loss": NUMBER,
    "threshold": NUMBER,
    "cohort": COUNTS,
    **_COSTS,
    **dict.fromkeys(("eta", "gamma", "global_norm", "clipped_steps"), nullable(NUMBER)),
    **dict.fromkeys(
        ("largest_norm", "drift", "correction_ratio", "trust", "least_trust"), nullable(NUMBER)
    ),
    "clipped": nullable(FLAG),
    "metrics": optional(METRICS),
}
STATUS: Schema = {
    "status": _one_of("finished", "diverged", "failed"),
    "reason": optional(TEXT),
}
SUMMARY: Schema = {
    **STATUS,
    "rounds": COUNT,
    "loss": NUMBER,
    "metrics": METRICS,
    **_COSTS,
    "global_norm": nullable(NUMBER),
    "cluster": optional(TABLE),
    "cluster.ranks": optional(COUNT),
    "cluster.since_last_start": optional(TABLE),
    "cluster.since_last_start.bytes": optional(COUNT),
    "cluster.since_last_start.collectives": optional(COUNT),
}
"""Of a run that has finished or diverged; one that failed has only a `STATUS`."""
PARTITION: Schema = {
    "title": TEXT,
    "labels": TEXTS,
    "clients": TEXTS,
    "counts": Kind("a list of lists of whole numbers", _each(_each(_is_count))),
}
SWEEP: Schema = {"runs": TEXTS, "axes": optional(TABLE)}


def fault(values: Any, schema: Schema) -> str:
    """Return what is wrong with the values of a file in words; empty if nothing is.

    Example:
        >>> fault({"round": True}, {"round": COUNT})
        'round is True, but must be a whole number of 0 or more'
        >>> fault({"round": 3}, {"round": COUNT})
        ''
    """
    if not isinstance(values, dict):
        return "it is not a JSON object"
    for key, kind in schema.items():
        owner, name = values, key
        while "." in name:  # a table that must be there has been found by its own key
            table, _, name = name.partition(".")
            owner = owner.get(table, {})
        if name not in owner:
            if kind.required:
                return f"{key} is missing"
        elif not kind.accepts(owner[name]):
            return f"{key} is {_short(owner[name])}, but must be {kind.words}"
    return ""


def contradiction(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return where a summary differs from the rounds that it sums up; empty if it does not.

    Both have passed their checks, and the run has finished or diverged.
    """
    ends = {key: rounds[-1][key] for key in ("loss", *_COSTS)} if rounds else {}
    ends["metrics"] = next((r["metrics"] for r in reversed(rounds) if "metrics" in r), {})
    for key, value in ends.items():
        if repr(summary[key]) != repr(value):  # NaN is like NaN
            return f"{key} is {_short(summary[key])}, but the last round has {_short(value)}"
    return ""


def check_levels(values: Any) -> None:
    """Raise a ValueError if values are nested too deeply to be compared or printed."""
    level: Sequence[Any] = [values]
    for _ in range(MOST_LEVELS):
        inner = [list(v.values()) if isinstance(v, dict) else v for v in level if _holds_more(v)]
        level = [value for values in inner for value in values]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def damaged(path: object, what: object, where: str = "") -> EpisodeError:
    """Return the error for a file that does not hold what it must."""
    return EpisodeError(f"{path} is damaged{where} ({what}): leave out this folder, or delete it.")


def _holds_more(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
