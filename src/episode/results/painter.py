"""Figures drawn by a process that loads matplotlib while what they show is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from episode.results.figures import Panel, draw_panels
from episode.studies.child_process import start_apart

Draw = Callable[[Sequence[Sequence[Panel]], Path], list[Path]]


@contextmanager
def painter() -> Iterator[Draw]:
    """`draw_panels`, in another process; what that one cannot do is done, or fails, in this one."""
    process, line = start_apart(_paint)

    def draw(rows: Sequence[Sequence[Panel]], stem: Path) -> list[Path]:
        try:
            line.send((rows, stem))
            paths: list[Path] = line.recv()
        except (EOFError, OSError):  # it has ended
            return draw_panels(rows, stem)
        return paths

    try:
        yield draw
    finally:
        line.close()
        process.terminate()
        process.join()


def _paint(line: Connection) -> None:
    """Draws what it is sent, until the line ends or a figure cannot be drawn."""
    with suppress(Exception):
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_pdf  # noqa: F401

        while True:
            rows, stem = line.recv()
            line.send(draw_panels(rows, stem))
