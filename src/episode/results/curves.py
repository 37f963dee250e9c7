"""Figures of curves: rows of panels with one legend below them."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from episode.results.figures import DPI, OTHER, STYLES, as_image, new_figure
from episode.results.plain_text import without_math
from episode.results.store import StoredRun, write_bytes

PANEL = (4.4, 3.1)
"""Inches of a panel with its title and labels.

All margins are fixed, which spares matplotlib a second drawing that only measures them."""
LEFT, RIGHT, ABOVE, BELOW = 0.78, 0.14, 0.34, 0.54
AXES = (PANEL[0] - LEFT - RIGHT, PANEL[1] - BELOW - ABOVE)
X_LABEL, Y_LABEL = 0.29, 0.54
"""Distance of the labels from the axes."""
LEGEND_LINE = 0.21


@dataclass(frozen=True)
class Line:
    """A curve; if it has no colour or style, it takes that of its algorithm."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    algorithm: str = ""
    colour: str | None = None
    style: str | None = None
    marker: str | None = None
    end_marker: str | None = None
    """Marker of the last point only."""
    faint: bool = False
    """Whether it stays in the background."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line] = field(default_factory=list)
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[float, float] | None = None


def draw_panels(rows: Sequence[Sequence[Panel]], stem: Path) -> None:
    """Draw all panels into one figure, and write stem.png and stem.pdf."""
    # Imported here, and printed without `savefig`, which would draw everything twice.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    figure = panel_figure(rows)
    png, pdf = io.BytesIO(), io.BytesIO()
    agg: Any = FigureCanvasAgg(figure)  # matplotlib has no types for these two
    agg.print_png(png, pil_kwargs={"compress_level": 3})
    vector: Any = FigureCanvasPdf(figure)
    vector.print_pdf(pdf, metadata={"CreationDate": None})
    write_bytes(stem.with_name(f"{stem.name}.png"), png.getvalue())
    write_bytes(stem.with_name(f"{stem.name}.pdf"), pdf.getvalue())


@dataclass(frozen=True)
class RunRow:
    """Runs that share a row of panels."""

    title: str
    runs: Sequence[StoredRun]
    emphasised: Sequence[str]
    """Algorithms whose curves stand out; the others stay in the background."""


def draw_runs(rows: Sequence[RunRow], path: Path) -> None:
    """Draw accuracy and loss against gradients, and where each run ended, as a PNG."""
    write_bytes(path, as_image(panel_figure([_panels_of_runs(row) for row in rows]), "png"))


def _panels_of_runs(row: RunRow) -> list[Panel]:
    per_client, exchanges = "gradients per client", "exchanges with the server"
    accuracy, loss = (
        [
            replace(line, faint=line.algorithm not in row.emphasised)
            for line in _lines(row.runs, "gradients", metric)
        ]
        for metric in ("test_accuracy", "train_loss")
    )
    ends = [
        replace(line, x=line.x[-1:], y=line.y[-1:])
        for line in _lines(row.runs, "exchanges", "test_accuracy")
    ]
    return [
        Panel("", per_client, "test accuracy", accuracy, y_limits=(0.0, 1.0)),
        Panel(row.title, exchanges, "test accuracy at the end", ends, log_x=True),
        Panel("", per_client, "training loss", loss, log_y=True),
    ]


def _lines(runs: Sequence[StoredRun], cost: str, metric: str) -> list[Line]:
    lines = []
    for run in runs:
        evaluated = [r for r in run.rounds if metric in r.get("metrics", {})]
        clients = max((len(r["cohort"]) for r in run.rounds), default=1)
        scale = 1 / clients if cost == "gradients" else 1
        label = run.label if run.status == "finished" else f"{run.label} ({run.status})"
        x, y = [r[cost] * scale for r in evaluated], [r["metrics"][metric] for r in evaluated]
        cross = "x" if run.status == "diverged" else None
        lines.append(Line(label, x, y, run.label, end_marker=cross))
    return lines


def panel_figure(rows: Sequence[Sequence[Panel]]) -> Any:
    """Return a matplotlib figure of all panels, with one legend for all of them."""
    columns = max(len(row) for row in rows)
    labels = list(dict.fromkeys(x.label for row in rows for panel in row for x in panel.lines))
    across = _legend_columns(labels, columns * PANEL[0])
    legend = -(-len(labels) // across) * LEGEND_LINE + 0.12 if len(labels) > 1 else 0
    width, height = columns * PANEL[0], len(rows) * PANEL[1] + legend
    figure = new_figure(figsize=(width, height), dpi=DPI)
    handles: dict[str, Any] = {}
    for r, row in enumerate(rows):
        for c, panel in enumerate(row):
            left, bottom = c * PANEL[0] + LEFT, height - (r + 1) * PANEL[1] + BELOW
            place = (left / width, bottom / height, AXES[0] / width, AXES[1] / height)
            handles |= _draw(figure.add_axes(place), panel)
    if legend:
        figure.legend(
            handles.values(), map(without_math, handles), loc="lower center", ncols=across,
            frameon=False, fontsize=9, borderaxespad=0.3,
        )  # fmt: skip
    return figure


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many labels fit side by side into so many inches, in rows of equal length."""
    longest = max(map(len, labels), default=1)
    fitting = max(1, int(width / (0.085 * longest + 0.55)))
    lines = max(1, math.ceil(len(labels) / fitting))
    return max(1, math.ceil(len(labels) / lines))


def _draw(axis: Any, panel: Panel) -> dict[str, Any]:
    """Draw one panel, and return the lines for the legend by their labels."""
    from matplotlib.ticker import LogFormatter

    handles = {}
    for line in panel.lines:
        colour, style = STYLES.get(line.algorithm, OTHER)
        finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        marker = line.marker or ("o" if len(finite) == 1 else None)
        (handles[line.label],) = axis.plot(
            [x for x, _ in finite], [y for _, y in finite], line.style or style,
            color=line.colour or colour, linewidth=1.0 if line.faint else 1.8, marker=marker,
            markersize=5, alpha=0.35 if line.faint else 1.0,
            # Algorithms that share a colour differ in how their line is drawn; a dot has none.
            fillstyle="full" if (line.style or style) == "-" else "none",
        )  # fmt: skip
        if line.end_marker and finite:
            axis.plot(*finite[-1], line.end_marker, color=line.colour or colour)
    # At fixed places: looking for free ones would take a third of the time.
    axis.set_title(without_math(panel.title), fontsize=11, y=1.0)
    axis.set_xlabel(panel.x_label)
    axis.xaxis.set_label_coords(0.5, -X_LABEL / AXES[1])
    axis.set_ylabel(panel.y_label)
    axis.yaxis.set_label_coords(-Y_LABEL / AXES[0], 0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    for which, is_log in (("x", panel.log_x), ("y", panel.log_y)):
        if is_log:
            axis.set(**{f"{which}scale": "log"})
            # "20" instead of "2 × 10¹", which would not fit beside the label.
            getattr(axis, f"{which}axis").set_minor_formatter(LogFormatter())
            getattr(axis, f"{which}axis").set_major_formatter("{x:g}")
        else:
            axis.locator_params(which, nbins=6, steps=(1, 2, 5, 10))
    if panel.y_limits:
        axis.set_ylim(*panel.y_limits)
    return handles
