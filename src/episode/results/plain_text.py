"""Text of others as plain text: names in data and folders must not act on a terminal or figure."""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # of terminals: ESC, backspace, …
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # of the direction of writing
    "\ud800-\udfff]"  # halves of characters, which cannot be encoded
)
_IN_A_CELL = re.compile(f"{_CONTROLS.pattern}|[\t\n]")


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Return the text with control characters spelt out, as Python would write them.

    Args:
        text: Text that may come from data, folders or other machines.
        one_line: Spell out tabs and ends of lines too.

    Example:
        >>> print(printable("a\x1b[31mb"))
        a\x1b[31mb
    """
    return (_IN_A_CELL if one_line else _CONTROLS).sub(lambda found: ascii(found[0])[1:-1], text)


def without_math(text: str) -> str:
    """Return text for a figure, in which matplotlib would take what is between $ for TeX."""
    return printable(text, one_line=True).replace("$", r"\$")


def escape_json(text: str) -> str:
    """Return JSON with control characters inside its strings escaped; its values are the same."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
