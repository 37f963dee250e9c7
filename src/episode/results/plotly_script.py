"""plotly.js for a report: only the kinds of plots that it draws are started."""

from __future__ import annotations

import re

from episode.errors import EpisodeError

DRAWN = ("heatmap",)
"""Kinds of plots beside lines and markers, which are always there."""

_REGISTER = re.compile(r"\.register\(\[(?P<kinds>[\w$]+\(\)(?:,[\w$]+\(\))+)\]\)")
"""Where plotly.js starts its kinds of plots: core.register([a(),b(),…])."""


def plotly_script() -> str:
    """The script to put into a page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise EpisodeError(
            "A report needs plotly: pip install 'episode-fl[plot]' -c constraints.txt."
        ) from None
    return drawing_only(str(get_plotlyjs()), DRAWN)


def drawing_only(script: str, names: tuple[str, ...]) -> str:
    """The script without the start of other kinds: maps and 3-d take a browser a second.

    Where the script is not of the form that is known, it stays as it is: slower, and as good.
    """
    places = list(_REGISTER.finditer(script))
    kept = [_module(script, name) + "()" for name in names]
    if len(places) != 1 or not set(kept) <= set(places[0]["kinds"].split(",")):
        return script
    before, after = script[: places[0].start("kinds")], script[places[0].end("kinds") :]
    return before + ",".join(kept) + after


def _module(script: str, name: str) -> str:
    """The module that stands for a kind of plot: one that exports nothing but the kind's own."""
    place = script.find(f'moduleType:"trace",name:"{name}"')
    inner = re.findall(r"var ([\w$]+)=[\w$]+\(\(", script[max(0, place - 2000) : max(0, place)])
    if not inner:
        return ""
    exports = rf"[\w$]+\.exports={re.escape(inner[-1])}\(\)\}}"
    shell = re.search(rf'var ([\w$]+)=[\w$]+\(\([\w$,]+\)=>\{{"use strict";{exports}', script)
    return shell[1] if shell else ""
