"""What all commands share: where they print, how Ctrl-C stops them, JSON for machines."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from episode.engines.cluster import Cluster

PIPED = 200
"""Columns of a table that goes to a file or a pipe: wide enough that nothing is cut off."""

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED)
err = Console(stderr=True, highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


@contextmanager
def stoppable(again: str, cluster: Cluster | None = None) -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the run after its round, saved, and says how to go on; twice, at once.

    (torchrun passes on what its processes have heard from the terminal already: there, once.)
    """
    gc.set_threshold(700, 10, 10)  # Python's own: `collect_less` was for the start
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked and cluster is None:
            raise KeyboardInterrupt
        if not asked and cluster is None:
            err.print("Stopping after this round (Ctrl-C again stops at once) ...", markup=False)
        asked.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    except KeyboardInterrupt:
        if cluster is None or cluster.writes:
            under = f"torchrun --nproc-per-node {cluster.size} -m " if cluster else ""
            err.print(f"Stopped. Go on with: {under}{again}", markup=False)
        raise SystemExit(130) from None  # no Exception, which `together` would report as a failure
    finally:
        signal.signal(signal.SIGINT, before)


def collect_less() -> None:
    """A third of what torch takes to start and to end is the search for garbage, which has none.

    Whatever trains is `stoppable`, and collects as usual.
    """
    gc.set_threshold(50_000, 50, 100)
    atexit.register(gc.freeze)


def speaks() -> bool:
    """Whether this process talks to the user: alone, or the first of those torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def strict(values: Any) -> Any:
    """The values as strict JSON has them: NaN and infinities as strings."""
    from episode.results.store import dumps

    return json.loads(dumps(values))
