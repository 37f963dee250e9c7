"""Figures of curves and partitions: their files, and errors in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run, some_runs

from episode.errors import EpisodeError
from episode.results.curves import Line, Panel, RunRow, draw_panels, draw_runs, panel_figure
from episode.results.figures import check_target, draw_partition
from episode.results.store import find_runs

ROWS = [[Panel("H = 1", "rounds", "f", [Line("EPISODE", [0, 1, 2], [3.0, 1.0, 0.5], "episode")])]]
PNG = b"\x89PNG"


def test_panels_become_the_same_png_and_pdf_each_time(tmp_path: Path) -> None:
    for stem in ("a", "b"):
        draw_panels(ROWS, tmp_path / stem)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    for suffix in (".png", ".pdf"):
        first, second = (tmp_path / f"{stem}{suffix}" for stem in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_a_figure_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EpisodeError, match="cannot be written"):
        draw_panels(ROWS, tmp_path / "file" / "figure")
    with pytest.raises(EpisodeError, match=r"use a name that ends in \.png or \.svg"):
        check_target(tmp_path / "figure.gif", ".png", ".svg")
    with pytest.raises(EpisodeError, match="is a folder"):
        check_target(tmp_path)


def test_only_the_end_of_a_diverged_run_is_marked() -> None:
    line = Line("FedAvg", [0, 1, 2], [1.0, 5.0, float("nan")], "fedavg", end_marker="x")
    (axis,) = panel_figure([[Panel("", "rounds", "loss", [line])]]).axes
    curve, cross = axis.get_lines()
    assert list(curve.get_xdata()) == [0, 1]
    assert (list(cross.get_xdata()), list(cross.get_ydata()), cross.get_marker()) == (
        [1],
        [5.0],
        "x",
    )


def test_runs_and_partitions_become_pictures(tmp_path: Path) -> None:
    some_runs(tmp_path / "runs")
    empty = make_run(tmp_path / "runs" / "empty", "parallel_sgd", status="running")
    (empty / "rounds.jsonl").unlink()
    runs = find_runs([tmp_path / "runs"])
    rows = [RunRow("digits", runs, ["episode"]), RunRow("one", runs[:1], [])]
    draw_runs(rows, tmp_path / "runs.png")
    draw_partition(["a", "b"], [[3, 0], [0, 0]], tmp_path / "p.png", "two clients", ["0", "1"])
    for name in ("runs.png", "p.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_labels_are_not_taken_for_tex(tmp_path: Path) -> None:
    labels = [r"$\frac{", "$x$", r"\$", "a\x1bb"]
    draw_partition(labels, [[1, 2, 3, 4]], tmp_path / "p.png", r"$\title{ $", ["$client$"])
    line = Line(r"$\alpha{ $", [1, 2], [1, 2])
    figure = panel_figure([[Panel("$\\t{ $", "x", "y", [line, Line("b", [1], [1])])]])
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [r"\$\alpha{ \$", "b"]
