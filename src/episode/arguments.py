"""Checks of arguments that a program passes; each mistake is one sentence."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from episode.errors import EpisodeError

T = TypeVar("T")


def number(name: str, value: Any) -> float:
    """Return a real number of Python; numpy's numbers are accepted, booleans are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise EpisodeError(f"{name} is {shown(value)}: it must be a number.")
    try:
        as_float = float(value)
    except OverflowError:
        raise EpisodeError(f"{name} is too large for a float: give a smaller number.") from None
    return value if isinstance(value, int) else as_float  # stored configs have ints as they were


def positive(name: str, value: Any) -> float:
    """Return a finite number above 0."""
    found = number(name, value)
    if not 0 < found < math.inf:
        raise EpisodeError(f"{name} is {found}: it must be a number above 0.")
    return found


def not_negative(name: str, value: Any) -> float:
    """Return a finite number of 0 or more."""
    found = number(name, value)
    if not 0 <= found < math.inf:
        raise EpisodeError(f"{name} is {found}: it must be 0 or more.")
    return found


def share(name: str, value: Any) -> float:
    """Return a number from 0 to below 1."""
    found = number(name, value)
    if not 0 <= found < 1:
        raise EpisodeError(f"{name} is {found}: it must be at least 0 and below 1.")
    return found


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number of Python; numpy's numbers are accepted, booleans are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise EpisodeError(f"{name} is {shown(value)}: it must be a whole number.")
    found = int(value)
    if least is not None and found < least:
        raise EpisodeError(f"{name} is {shown(found)}: it must be {least} or more.")
    return found


def seed_number(value: Any) -> int:
    """Return a random seed, a whole number of 64 bits."""
    seed = whole_number("seed", value)
    if not -(2**63) <= seed < 2**63:
        raise EpisodeError(f"seed is {shown(seed)}: it must be a whole number of 64 bits.")
    return seed


def switch(name: str, value: Any) -> bool:
    """Return a boolean; numbers and text are not."""
    if not isinstance(value, bool):
        raise EpisodeError(f"{name} is {shown(value)}: it must be True or False.")
    return value


def names(name: str, value: Any) -> Sequence[Any]:
    """Return a sequence of names; a text alone is not one, although it has letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise EpisodeError(f"{name} is {shown(value)}: give a list of names.")
    return value


def function(name: str, value: Any, purpose: str) -> None:
    """Refuse what cannot be called; `purpose` continues "give a function that"."""
    if not callable(value):
        raise EpisodeError(f"{name} is {shown(value)}: give a function that {purpose}.")


def folder_path(name: str, value: Any) -> Path:
    """Return the path of a folder."""
    if isinstance(value, (str, Path)) and str(value) and "\0" not in str(value):
        return Path(value)
    raise EpisodeError(f"{name} is {shown(value)}: give the path of a folder.")


def optional(check: Callable[..., T], name: str, value: Any, *args: Any, **rest: Any) -> T | None:
    """Return what a check returns; None for None."""
    return None if value is None else check(name, value, *args, **rest)


def shown(value: Any) -> str:
    """Return a value as it is shown in a sentence: what it is, if it is too long to be shown."""
    if getattr(value, "shape", ()) not in ((), []):
        return f"a {type(value).__name__.lower()} of shape {list(value.shape)}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - somebody else's code, or an int of too many digits
        text = ""
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return text if 0 < len(text) < 60 and "\n" not in text else f"{article} {kind}"
