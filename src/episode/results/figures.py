"""Figures in the paper's layout: rows of panels with one legend, as PNG and PDF."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episode.results.plots import DPI, OTHER, STYLES, new_figure
from episode.results.store import write_bytes

PANEL = (4.4, 3.1)
"""Inches of a panel with its title and labels; the room for these is fixed, so that a figure is
drawn once and not laid out first."""
LEFT, RIGHT, ABOVE, BELOW = 0.78, 0.14, 0.34, 0.54
AXES = (PANEL[0] - LEFT - RIGHT, PANEL[1] - BELOW - ABOVE)
X_LABEL, Y_LABEL = 0.29, 0.54
"""How far the labels are from the axes."""
LEGEND_LINE = 0.21


@dataclass(frozen=True)
class Line:
    """A curve; without a colour and style of its own it takes the algorithm's."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    algorithm: str = ""
    colour: str | None = None
    style: str | None = None
    marker: str | None = None


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


def draw_panels(rows: Sequence[Sequence[Panel]], stem: Path) -> list[Path]:
    """Draws all panels into one figure and writes stem.png and stem.pdf."""
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
            handles.values(), handles.keys(), loc="lower center", ncols=across, frameon=False,
            fontsize=9, borderaxespad=0.3,
        )  # fmt: skip
    return _write(figure, stem)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """How many of the labels go beside each other, in inches, with even rows."""
    longest = max(len(label) for label in labels) if labels else 1
    across = max(1, min(len(labels), int(width / (0.085 * longest + 0.55))))
    lines = -(-len(labels) // across)
    return max(1, -(-len(labels) // lines)) if labels else 1


def _write(figure: Any, stem: Path) -> list[Path]:
    """Both files, each drawn once: `savefig` would draw once more, to lay out what needs it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    png, pdf = io.BytesIO(), io.BytesIO()
    agg: Any = FigureCanvasAgg(figure)  # matplotlib has no types for them
    agg.print_png(png, pil_kwargs={"compress_level": 3})
    vector: Any = FigureCanvasPdf(figure)
    vector.print_pdf(pdf, metadata={"CreationDate": None})
    paths = []
    for suffix, picture in ((".png", png), (".pdf", pdf)):
        paths.append(stem.with_name(stem.name + suffix))
        write_bytes(paths[-1], picture.getvalue())
    return paths


def _draw(axis: Any, panel: Panel) -> dict[str, Any]:
    handles = {}
    for line in panel.lines:
        colour, style = STYLES.get(line.algorithm, OTHER)
        finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        marker = line.marker or ("o" if len(finite) == 1 else None)
        (handle,) = axis.plot(
            [x for x, _ in finite], [y for _, y in finite], line.style or style,
            color=line.colour or colour, label=line.label, linewidth=1.6, marker=marker,
            markersize=4,
        )  # fmt: skip
        handles[line.label] = handle
    # Title and labels have fixed places: to look for free ones takes a third of the drawing.
    axis.set_title(panel.title, fontsize=11, y=1.0)
    axis.set_xlabel(panel.x_label)
    axis.xaxis.set_label_coords(0.5, -X_LABEL / AXES[1])
    axis.set_ylabel(panel.y_label)
    axis.yaxis.set_label_coords(-Y_LABEL / AXES[0], 0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    for which, is_log in (("x", panel.log_x), ("y", panel.log_y)):
        if is_log:
            axis.set(**{f"{which}scale": "log"})
        else:
            axis.locator_params(which, nbins=6, steps=(1, 2, 5, 10))
    if panel.y_limits:
        axis.set_ylim(*panel.y_limits)
    return handles
