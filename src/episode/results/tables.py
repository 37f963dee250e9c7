"""Runs side by side: one row each, plain values first, then what a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rich.table import Table

from episode.results.store import StoredRun

COLUMNS = ("accuracy", "loss", "status", "rounds", "exchanges", "MB", "gradients", "seconds")
HEADINGS = {"exchanges": "exch.", "gradients": "grads"}
"""Short ones, so that the table fits a terminal of 80 columns."""


def comparison(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """A row of plain values per run; None where a run has no such figure."""
    return [_row(run) for run in runs]


def _row(run: StoredRun) -> dict[str, Any]:
    summary = run.summary
    metrics = summary.get("metrics", {})
    return {
        "algorithm": run.label,
        "accuracy": metrics.get("test_accuracy"),
        "loss": metrics.get("train_loss", summary.get("loss")),
        "status": run.status,
        "rounds": summary.get("rounds", len(run.rounds)),
        "exchanges": summary.get("exchanges"),
        "MB": (summary.get("bytes_up", 0) + summary.get("bytes_down", 0)) / 1e6,
        "gradients": summary.get("gradients"),
        "seconds": summary.get("seconds"),
    }


def as_table(rows: Sequence[dict[str, Any]], title: str = "") -> Table:
    """The rows for a terminal."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("algorithm", no_wrap=True)
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column == "status" else "right"
        table.add_column(HEADINGS.get(column, column), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(row["algorithm"], *(_cell(c, row[c]) for c in COLUMNS))
    return table


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for a document."""
    header = ("algorithm", *COLUMNS)
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for row in rows:
        cells = (row["algorithm"], *(_cell(c, row[c]) for c in COLUMNS))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column in ("accuracy", "loss"):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1e}"
    if column in ("MB", "seconds"):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
