"""What all commands share: consoles, Ctrl-C, and JSON output."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter

from episode.results.plain_text import escape_json, printable
from episode.runs.interrupts import asked_to_stop

if TYPE_CHECKING:
    from episode.federation.processes import Processes

PIPED = 200
"""Width of tables written to a file or a pipe, so that nothing is cut off."""


class PlainConsole(Console):
    """A console on which text is only text: markup, emoji and control characters do nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts without their control characters, and tables as they are."""
        super().print(*(printable(o) if isinstance(o, str) else o for o in objects), **options)

    def print_json(self, json: str | None = None, *, data: Any = None, **options: Any) -> None:
        """Print JSON; control characters in its strings are escaped."""
        text = dumps(data, indent=2, ensure_ascii=False) if json is None else json
        super().print(JSONHighlighter()(escape_json(text)), soft_wrap=True)


out = PlainConsole(width=None if sys.stdout.isatty() else PIPED)
err = PlainConsole(stderr=True)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a value of the config: section.key=value; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not print progress.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Number of runs at the same time.", show_default="one per core"),
]
Track = Annotated[bool, typer.Option(help="Write TensorBoard events into each run folder.")]


@contextmanager
def stoppable(again: str, processes: Processes | None = None) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end the run after its round is saved, and say how to go on."""
    alone = processes is None or processes.size == 1
    try:
        with asked_to_stop(err.print, alone) as stop:
            yield stop
    except KeyboardInterrupt:
        if processes is None or processes.writes:
            launcher = "" if alone else f"torchrun --nproc-per-node {processes.size} -m "  # type: ignore[union-attr]
            err.print(f"Stopped. Go on with: {launcher}{again}")
        raise SystemExit(130) from None  # not an Exception, which `together` reports as a failure


def command_line() -> str:
    """Return the command that the user typed."""
    return shlex.join(["episode", *sys.argv[1:]])


def speaks() -> bool:
    """Whether this process talks to the user: it is alone, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def judged(good: bool) -> str:
    """Return the style of a verdict."""
    return "green" if good else "red"


def strict(values: Any) -> Any:
    """Return the values as strict JSON allows them: NaN and infinities become strings."""
    return loads(dumps(values), parse_constant=str)
