"""Progress of a run in Python: a bar on a terminal and in notebooks, and log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

log = logging.getLogger("episode")
SECONDS_BETWEEN_LINES = 5.0
"""Log lines are at least so far apart, but for the first and the last round."""


def bars(console: Console, description: str, width: int, disable: bool) -> Progress:
    """Return progress bars with a description, a count, a state and the time."""
    return Progress(
        TextColumn(description, markup=False),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=disable,
    )


@contextmanager
def shown_rounds(name: str, total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield an observer that shows a run's rounds.

    Args:
        name: What is trained.
        total: Number of rounds.
    """
    from episode.runs.observers import progress_line

    console = Console(stderr=True)
    if not _can_draw(console):
        last = [0.0]

        def write(record: dict[str, Any]) -> None:
            played, now = record["round"] + 1, time.monotonic()
            if played in (1, total) or now - last[0] >= SECONDS_BETWEEN_LINES:
                last[0] = now
                log.info("%s: round %d of %d: %s", name, played, total, progress_line(record))

        yield write
        return
    with bars(console, "{task.description:<20}", 24, disable=False) as shown:
        task = shown.add_task(name, total=total, state="")

        def draw(record: dict[str, Any]) -> None:
            shown.update(task, completed=record["round"] + 1, state=progress_line(record))

        yield draw


@contextmanager
def shown_steps(name: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: a spinner, or log lines."""
    console = Console(stderr=True)
    if not _can_draw(console):
        yield lambda text: log.info("%s: %s", name, text)
        return
    with console.status(name) as status:
        yield lambda text: status.update(f"{name}: {text}")


def _can_draw(console: Console) -> bool:
    """Whether a bar can be drawn: in a notebook, rich does it with ipywidgets."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
