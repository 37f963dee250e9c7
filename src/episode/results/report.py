"""Report about runs: one HTML file that works offline and holds all their metrics."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import shlex
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.results import store
from episode.results.figures import OTHER, STYLES
from episode.results.groups import Group, group_runs, metric_names, setting_text, task_of
from episode.results.named_code import options_that_name
from episode.results.run_tables import best_first, full_table
from episode.results.silo_page import silo_data
from episode.results.store import LabelCounts, StoredRun
from episode.results.tables import Table, counted
from episode.version import __version__

COLUMNS = (
    "round", "exchanges", "bytes_up", "bytes_down", "gradients", "seconds", "loss",
    "global_norm", "threshold", "clipped", "clipped_steps", "largest_norm", "drift",
)  # fmt: skip
"""Values of each round that the page holds, unrounded."""
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
"""Plotly's names of matplotlib's line styles."""
MOST_PARTITIONS = 12
ENDINGS = {"pruned": "stopped early by its study", "running": "not finished"}
"""Words for a status that does not explain itself."""


def write_report(runs: Sequence[StoredRun], path: Path, title: str = "") -> None:
    """Write the report.

    Raises:
        EpisodeError: The runs are of different tasks, a file is damaged, or plotly is missing.
    """
    groups = best_first(group_runs(runs))
    title = title or f"{counted(len(runs), 'run')} of {task_of(runs[0])}"
    columns = PackedColumns()
    data = _page_data(runs, groups, columns)
    program, plotly = (
        "".join(map(page_file, ("data.js", "plots.js", "silos.js", "page.js"))),
        _plotly_script(),
    )
    parts = {
        "policy": content_policy(program, plotly),
        "title": html.escape(title),
        "style": page_file("page.css"),
        "introduction": _introduction(runs, groups),
        "final": html_table(full_table(groups)),
        "machines": _machines(runs),
        "repeat": _how_to_repeat(runs),
        "version": __version__,
        "data": _packed(store.dumps(data).encode()),
        "columns": _packed(columns.to_bytes()),
        "program": program,
        "plotly": plotly,  # last, so that no placeholder is looked for in it
    }
    store.write_text(path, fill_page("page.html", parts))


def fill_page(name: str, parts: Mapping[str, str]) -> str:
    """Return a page with its placeholders, such as `<!--title-->`, replaced one by one."""
    page = page_file(name)
    for part, text in parts.items():
        page = page.replace(f"<!--{part}-->", text)
    return page


def content_policy(*scripts: str) -> str:
    """Return a content-security policy that allows a page to use nothing but itself.

    Only these scripts are run, known by their hashes, and nothing is loaded from or sent to
    anywhere. Styles and pictures inside the page are allowed, because plots are made of them.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(hashes) or "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {allowed}" for name, allowed in rules.items())


def page_file(name: str) -> str:
    """Return the text of a file in `page`."""
    return (files("episode.results") / "page" / name).read_text(encoding="utf-8")


def default_path(folders: Sequence[Path]) -> Path:
    """Return where a report goes by default: into the folder that it is about."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


class PackedColumns:
    """Columns of numbers, stored one after another as 64-bit floats; None becomes NaN.

    No digit is lost, and a browser reads them without parsing.
    """

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, column: Iterable[float | None]) -> list[int]:
        """Append a column, and return its start and its length."""
        start = len(self._values)
        self._values.extend(math.nan if v is None else v for v in column)
        return [start, len(self._values) - start]

    def to_bytes(self) -> bytes:
        """Return all values, little-endian."""
        if sys.byteorder == "big":
            self._values.byteswap()
        return self._values.tobytes()


def _page_data(
    runs: Sequence[StoredRun], groups: Sequence[Group], columns: PackedColumns
) -> dict[str, Any]:
    places = {id(run): i for i, run in enumerate(runs)}
    styles = {g.label: STYLES.get(g.label, OTHER) for g in groups}
    return {
        "metrics": [n for n in metric_names(runs) if n != "loss"],
        "runs": [_run_data(run, columns) for run in runs],
        "groups": [_group_data(g, [places[id(run)] for run in g.runs]) for g in groups],
        "styles": {name: {"colour": c, "dash": DASHES[line]} for name, (c, line) in styles.items()},
        "partitions": [vars(p) for p in _partitions(runs)],
        "silos": silo_data(runs, columns),
    }


def _run_data(run: StoredRun, columns: PackedColumns) -> dict[str, Any]:
    evaluations = [(i, r["metrics"]) for i, r in enumerate(run.rounds) if "metrics" in r]
    names = dict.fromkeys(n for _, metrics in evaluations for n in metrics)
    return {
        "name": run.folder.name,
        "label": run.label,
        "seed": run.config.get("seed"),
        "status": run.status,
        "rounds": len(run.rounds),
        "columns": {c: columns.add(r.get(c) for r in run.rounds) for c in COLUMNS},
        "evaluated": columns.add(i for i, _ in evaluations),
        "metrics": {n: columns.add(m.get(n) for _, m in evaluations) for n in names},
    }


def _partitions(runs: Sequence[StoredRun]) -> list[LabelCounts]:
    """Return the different partitions of these runs, up to `MOST_PARTITIONS`."""
    read = [store.read_partition(run.folder) for run in runs]
    different = [p for i, p in enumerate(read) if p and p not in read[:i]]
    return different[:MOST_PARTITIONS]


def _group_data(group: Group, places: list[int]) -> dict[str, Any]:
    shown = {k: v for k, v in group.settings.items() if not k.startswith("algorithm.")}
    texts = [setting_text(k, v) for k, v in shown.items() if v is not None]
    name = ", ".join([group.label, *texts])
    return {"label": group.label, "settings": group.settings, "runs": places, "name": name}


def _introduction(runs: Sequence[StoredRun], groups: Sequence[Group]) -> str:
    """Say what ran, and list the runs that did not finish."""
    seeds = {run.config.get("seed") for run in runs}
    labels = {run.label for run in runs}
    text = (
        f"Task <b>{html.escape(task_of(runs[0]))}</b>: {counted(len(labels), 'algorithm')}, "
        f"{counted(len(groups), 'configuration')}, {counted(len(seeds), 'seed')}, "
        f"{counted(len(runs), 'run')}."
    )
    items = []
    for run in sorted(runs, key=lambda run: run.status):
        if run.status == "finished":
            continue
        reason = run.summary.get("reason", "")
        ending = ENDINGS.get(run.status, run.status) + (f" ({reason})" if reason else "")
        line = f"{run.folder.name}: {ending}"
        items.append(f'<li class="{run.status}">{html.escape(line)}</li>')
    return f"<p>{text}</p>" + (f"<ul>{''.join(items)}</ul>" if items else "")


def html_table(table: Table) -> str:
    """Return the table in HTML; if it has a status, unfinished rows are marked."""
    head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in table.columns)
    rows = []
    for row in table.rows:
        first, *others = (html.escape(cell) for cell in row)
        cells = f'<th scope="row">{first}</th>' + "".join(f"<td>{c}</td>" for c in others)
        is_marked = "status" in table.columns and "finished" not in row
        rows.append(f'<tr class="unfinished">{cells}</tr>' if is_marked else f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _machines(runs: Sequence[StoredRun]) -> str:
    """List the software and hardware of the runs; equal ones are listed once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        values = store.read_environment(run.folder)
        values.pop("command", None)
        found.setdefault(json.dumps(values), []).append(run.folder.name)
    parts = []
    for text, names in found.items():
        values = json.loads(text) or {"environment": "not recorded"}
        texts = [(html.escape(str(k)), html.escape(str(v))) for k, v in values.items()]
        rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in texts)
        who = "All runs" if len(found) == 1 else html.escape(", ".join(names))
        parts.append(f"<p>{who}:</p><dl>{rows}</dl>")
    return "".join(parts)


def _how_to_repeat(runs: Sequence[StoredRun]) -> str:
    parts = []
    for run in runs:
        if made_by := run.config.get("made_by"):
            command = f"This run was made in Python: call episode.{made_by} again."
        else:
            folder = str(run.folder)
            named = options_that_name(run.config)
            command = shlex.join(["episode", "run", folder, "--folder", f"{folder}-again", *named])
        config = store.dumps(run.config, indent=2)
        parts.append(
            f"<details><summary>{html.escape(run.folder.name)}</summary>"
            f"<pre tabindex='0'>{html.escape(command)}</pre>"
            f"<pre tabindex='0'>{html.escape(config)}</pre></details>"
        )
    return "".join(parts)


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 1, mtime=0)).decode()


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise EpisodeError("A report needs plotly: pip install 'episode-fl[plot]'.") from None
    return str(get_plotlyjs())
