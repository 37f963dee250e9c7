"""Errors that a user can act on. The command line prints them as one sentence each."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


class EpisodeError(Exception):
    """A mistake that the user can correct: what was given, what is allowed, what to do."""


class ClientError(EpisodeError):
    """A client's own code failed: its data, model or loss. Names the client, phase and round."""


class ClusterError(EpisodeError):
    """A process or site of the run is gone or out of reach. Names it, and the phase and round."""


class NotTwiceDifferentiableError(EpisodeError):
    """A loss has no second derivative everywhere; results that need a Hessian are left out."""


def is_too_large(error: BaseException) -> bool:
    """Whether an error of Python, torch or numpy says that something needs too much memory."""
    return isinstance(error, (MemoryError, OverflowError)) or (
        isinstance(error, (RuntimeError, TypeError, ValueError))
        and _TOO_LARGE.search(str(error)) is not None
    )


_TOO_LARGE = re.compile(
    "can't allocate memory|out of memory|not enough memory|Storage size calculation overflowed"
    "|Overflow when unpacking|array is too big|Maximum allowed dimension"
)


def unknown(kind: str, given: object, known: Iterable[str]) -> EpisodeError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    close = difflib.get_close_matches(str(given).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}."
    return EpisodeError(f"There is no {kind} {given!r}: {hint}")


def needs_data_extra(what: str) -> EpisodeError:
    """Return the error for a missing optional package."""
    return EpisodeError(f"{what}: pip install 'episode-fl[data]'.")


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys in which two trees of JSON values differ, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(a.keys() | b.keys()):
        left, right = a.get(key), b.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found |= differences(left, right, f"{prefix}{key}.")
        elif json.dumps(left) != json.dumps(right):
            found[prefix + key] = (left, right)
    return found
