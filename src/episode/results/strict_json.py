"""JSON as run folders hold it: strict, with strings in place of numbers that are not finite."""

from __future__ import annotations

import json
import math
from typing import Any

from episode.files import parse_json

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(values: Any, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinities become "NaN", "Infinity" and "-Infinity"."""
    try:
        return json.dumps(values, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(json.loads(json.dumps(values), parse_constant=str), indent=indent)


def loads(text: str) -> Any:
    """Parse what `dumps` returned; raise a ValueError for anything that is not sound JSON."""
    values = parse_json(text)
    try:
        return _decode(values) if 'NaN"' in text or 'Infinity"' in text else values
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decode(value: Any) -> Any:
    """Turn the strings that stand for numbers in nested dicts and lists into numbers again."""
    if isinstance(value, dict):
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v) for v in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
