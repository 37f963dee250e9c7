"""A run as a small HTML table, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_html(summary: Mapping[str, Any], rounds: int, folder: Path | None, read_back: bool) -> str:
    """Return a table of a run's status, metrics and costs.

    Args:
        summary: The run's summary.
        rounds: Number of rounds that were played.
        folder: Where the run was written, if it was.
        read_back: Whether it was read from its folder.
    """
    sent = summary.get("bytes_up", 0) + summary.get("bytes_down", 0)
    status = str(summary.get("status", "not finished"))
    reason = f" ({summary['reason']})" if "reason" in summary else ""
    values = {
        "status": status + reason + (", read back from its folder" if read_back else ""),
        "rounds": f"{rounds:,}",
        **{name: f"{value:.4g}" for name, value in summary.get("metrics", {}).items()},
        "local loss": f"{summary['loss']:.4g}" if "loss" in summary else "",
        "exchanges": f"{summary.get('exchanges', 0):,}",
        "MB sent": f"{sent / 1e6:,.1f}",
        "gradients": f"{summary.get('gradients', 0):,}",
        "seconds": f"{summary.get('seconds', 0):,.1f}",
        "folder": str(folder or ""),
    }
    return html_rows("Run", values)


def html_rows(title: str, values: Mapping[str, str]) -> str:
    """Return a table with a name and a value in each row; empty values are left out."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in values.items()
        if value
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{rows}</tbody></table>"
