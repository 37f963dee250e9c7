"""Texts that sites have written, made fit for a log, a record and a terminal."""

from __future__ import annotations

import re

LONGEST = 400
"""Characters that are kept of a site's text."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
"""Sequences that colour a terminal's text, move its cursor or set its title."""


def one_line(text: object, longest: int = LONGEST) -> str:
    r"""Return a text as one line of printable characters, cut to a length.

    Args:
        text: A text, or any value, which is shown as Python shows it.
        longest: How many characters are kept.

    Example:
        >>> one_line("\x1b[31mfire\x1b[0m\n at the\tsite")
        'fire at the site'
        >>> one_line("a" * 10, longest=4)
        'aaaa...'
    """
    whole = text if isinstance(text, str) else repr(text)
    part = _ESCAPES.sub("", whole[: 4 * longest])
    words = "".join(c if c.isprintable() else " " for c in part).split()
    line = " ".join(words)
    return line if len(line) <= longest and len(whole) <= 4 * longest else line[:longest] + "..."


def last_line(text: str, longest: int = LONGEST) -> str:
    """Return the last line of a text that is not blank: of a traceback, the one that says why."""
    lines = (one_line(line, longest) for line in reversed(text[-4 * longest :].splitlines()))
    return next((line for line in lines if line), "")
