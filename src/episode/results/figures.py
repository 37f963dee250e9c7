"""Figures in the paper's layout: rows of panels with one legend, as PNG and PDF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episode.results.plots import OTHER, STYLES, _pyplot


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
    plt = _pyplot()
    columns = max(len(row) for row in rows)
    size = (4.4 * columns, 3.1 * len(rows) + 0.9)
    figure, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    handles: dict[str, Any] = {}
    for r, row in enumerate(rows):
        for c in range(columns):
            if c >= len(row):
                axes[r][c].set_visible(False)
                continue
            handles |= _draw(axes[r][c], row[c])
    if len(handles) > 1:
        width = max(len(name) for name in handles)
        across = max(1, min(len(handles), int(size[0] * 11 / (width + 6))))
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=across,
            frameon=False, fontsize=9,
        )  # fmt: skip
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for both files
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".pdf")]
    for path in paths:
        temporary = path.with_name(f"{path.name}.tmp")
        figure.savefig(temporary, dpi=130, format=path.suffix[1:])
        temporary.replace(path)
    plt.close(figure)
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
    axis.set_title(panel.title, fontsize=11)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    if panel.log_x:
        axis.set_xscale("log")
    if panel.log_y:
        axis.set_yscale("log")
    if panel.y_limits:
        axis.set_ylim(*panel.y_limits)
    return handles
