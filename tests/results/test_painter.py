"""Figures drawn by another process: the same files, the same errors, and nobody stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from episode.errors import EpisodeError
from episode.results.figures import Line, Panel, draw_panels
from episode.results.painter import painter

ROWS = [[Panel("H = 1", "rounds", "f", [Line("EPISODE", [0, 1, 2], [3.0, 1.0, 0.5], "episode")])]]

ORDERS_AND_WAITS = """
import multiprocessing, time
from episode.results.painter import painter
if __name__ == "__main__":
    with painter():
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(60)
"""


STOPPED_AT_ONCE = """
import multiprocessing, os, pathlib, signal
from episode.results.figures import Panel
from episode.results.painter import painter
if __name__ == "__main__":
    with painter() as draw:
        (process,) = multiprocessing.active_children()
        os.kill(process.pid, signal.SIGINT)
        draw([[Panel("", "x", "y")]], pathlib.Path("figure"))
        print(process.is_alive())
"""


def test_it_writes_the_same_files_as_drawing_here(tmp_path: Path) -> None:
    with painter() as draw:
        there = draw(ROWS, tmp_path / "there")
        draw(ROWS, tmp_path / "again")
        assert len(multiprocessing.active_children()) == 1
    here = draw_panels(ROWS, tmp_path / "here")
    assert [p.name for p in there] == ["there.png", "there.pdf"]
    assert [p.read_bytes() for p in there] == [p.read_bytes() for p in here]
    assert not multiprocessing.active_children()


def test_when_it_dies_the_figure_is_drawn_here(tmp_path: Path) -> None:
    with painter() as draw:
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        for name in ("one", "two"):
            assert all(path.stat().st_size for path in draw(ROWS, tmp_path / name))


def test_a_figure_that_cannot_be_written_fails_as_it_would_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EpisodeError, match="cannot be written") as here:
        draw_panels(ROWS, tmp_path / "file" / "figure")
    with painter() as draw, pytest.raises(EpisodeError, match="cannot be written") as there:
        draw(ROWS, tmp_path / "file" / "figure")
    assert str(there.value) == str(here.value)


def test_ctrl_c_is_not_for_it_while_it_starts_either(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED_AT_ONCE)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_it_ends_with_the_one_who_orders(tmp_path: Path) -> None:
    script = tmp_path / "orders.py"
    script.write_text(ORDERS_AND_WAITS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as orderer:
        assert orderer.stdout is not None
        pid = int(orderer.stdout.readline())
        orderer.kill()
        try:
            orderer.communicate(timeout=30)  # both have the pipe: it ends with the last of them
        except subprocess.TimeoutExpired:
            os.kill(pid, signal.SIGKILL)
            raise
