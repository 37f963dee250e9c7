"""Figure of one run's rounds: its losses and metrics, and its gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError, unknown
from episode.results.curves import Line, Panel, panel_figure
from episode.results.figures import PICTURES, as_image, check_target
from episode.results.store import write_bytes

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"
MOST_IN_A_ROW = 3


def draw_history(
    records: Sequence[dict[str, Any]], metrics: Sequence[str] = (), path: Path | None = None
) -> Any:
    """Draw a run's rounds, and write the figure if a path is given.

    Args:
        records: The rounds' records.
        metrics: Names of metrics; by default all of them.
        path: A .png or .svg.

    Returns:
        A matplotlib figure.

    Raises:
        EpisodeError: There is nothing to draw, or no such metric.
    """
    if path is not None:
        check_target(path, *PICTURES)
    if not records:
        raise EpisodeError("There are no rounds to draw yet: train at least one.")
    known = list(dict.fromkeys(n for r in records for n in r.get("metrics", {})))
    for name in metrics:
        if name not in known:
            raise unknown("metric", name, known or ["loss"])
    panels = [_loss(records), *(_metric(records, n) for n in metrics or known), _norms(records)]
    rows = [panels[k : k + MOST_IN_A_ROW] for k in range(0, len(panels), MOST_IN_A_ROW)]
    figure = panel_figure(rows)
    if path is not None:
        write_bytes(path, as_image(figure, path.suffix[1:]))
    figure._repr_png_ = lambda: as_image(figure, "png")  # so that notebooks show it
    return figure


def _loss(records: Sequence[dict[str, Any]]) -> Panel:
    x, y = [r["round"] + 1 for r in records], [r["loss"] for r in records]
    return Panel("", "rounds", "loss of the local steps", [Line("run", x, y, colour=BLUE)])


def _metric(records: Sequence[dict[str, Any]], name: str) -> Panel:
    found = [(r["round"] + 1, r["metrics"][name]) for r in records if name in r.get("metrics", {})]
    line = Line("run", [x for x, _ in found], [y for _, y in found], colour=BLUE)
    return Panel("", "rounds", name.replace("_", " "), [line])


def _norms(records: Sequence[dict[str, Any]]) -> Panel:
    """The norm that decides about clipping, beside the threshold."""
    key = (
        "global_norm" if any(r.get("global_norm") is not None for r in records) else "largest_norm"
    )
    known = [r for r in records if r.get(key) is not None]
    x, names = (
        [r["round"] + 1 for r in known],
        {"global_norm": "‖G‖", "largest_norm": "largest ‖g‖"},
    )
    lines = [Line(names[key], x, [r[key] for r in known], colour=ORANGE)]
    every = [r["round"] + 1 for r in records]
    lines.append(Line("γ/η", every, [r["threshold"] for r in records], colour=GREY, style="--"))
    return Panel("", "rounds", "gradient norm", lines, log_y=True)
