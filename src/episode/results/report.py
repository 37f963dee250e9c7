"""One HTML file about some runs: opens anywhere, offline, and holds all of their metrics."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from episode.results import store
from episode.results.groups import Group, grouped, metric_names, plain, task_of
from episode.results.plotly_script import plotly_script
from episode.results.plots import OTHER, STYLES
from episode.results.store import StoredRun
from episode.results.text_tables import Sheet, counted, final_sheet
from episode.version import __version__

COLUMNS = (
    "round", "exchanges", "bytes_up", "bytes_down", "gradients", "seconds", "loss",
    "global_norm", "threshold", "clipped", "clipped_steps", "largest_norm", "drift",
)  # fmt: skip
"""What of each round goes into the page, to the last digit."""
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}


@dataclass(frozen=True)
class Partition:
    """Who has how many examples of which label."""

    title: str
    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    """`[clients][labels]`."""


@dataclass(frozen=True)
class Extras:
    """What run folders do not say, and who can train can work out."""

    commands: Mapping[Path, str] = field(default_factory=dict)
    """How to repeat a run."""
    partitions: Sequence[Partition] = ()


def write_report(
    runs: Sequence[StoredRun], path: Path, title: str = "", extras: Extras | None = None
) -> None:
    """Writes the page; refuses runs of different tasks."""
    extras = extras or Extras()
    groups = grouped(runs)
    title = title or f"{counted(len(runs), 'run')} of {task_of(runs[0])}"
    numbers = Numbers()
    data = _data(runs, groups, extras, numbers)
    parts = {
        "title": html.escape(title),
        "style": _part("page.css"),
        "lead": _lead(runs, groups),
        "final": _sheet(final_sheet(groups)),
        "machines": _machines(runs),
        "repeat": _repeat(runs, extras),
        "version": __version__,
        "data": _packed(store.dumps(data).encode()),
        "numbers": _packed(numbers.to_bytes()),
        "program": _part("numbers.js") + _part("page.js"),
        "plotly": plotly_script(),  # last: so that nothing in it is taken for a place to fill
    }
    page = _part("page.html")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    store.write_text(path, page)


class Numbers:
    """All columns of all runs, one behind the other, as 64-bit floats; None becomes NaN.

    So no digit is lost, and a browser reads them without parsing.
    """

    def __init__(self) -> None:
        self._values = array("d")

    def put(self, column: Iterable[float | None]) -> list[int]:
        """Adds a column; where it begins, and how long it is."""
        start = len(self._values)
        self._values.extend(math.nan if v is None else v for v in column)
        return [start, len(self._values) - start]

    def to_bytes(self) -> bytes:
        """Little-endian."""
        if sys.byteorder == "big":
            self._values.byteswap()
        return self._values.tobytes()


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 1, mtime=0)).decode()


def _data(
    runs: Sequence[StoredRun], groups: Sequence[Group], extras: Extras, numbers: Numbers
) -> dict[str, Any]:
    places = {id(run): i for i, run in enumerate(runs)}
    return {
        "metrics": [n for n in metric_names(runs) if n != "loss"],
        "runs": [_run(run, numbers) for run in runs],
        "groups": [
            {
                "label": g.label,
                "settings": g.settings,
                "runs": [places[id(run)] for run in g.runs],
                "name": _group_name(g),
            }
            for g in groups
        ],
        "styles": {label: _style(label) for label in dict.fromkeys(g.label for g in groups)},
        "partitions": [vars(p) for p in extras.partitions],
    }


def _run(run: StoredRun, numbers: Numbers) -> dict[str, Any]:
    evaluated = [(i, r["metrics"]) for i, r in enumerate(run.rounds) if "metrics" in r]
    names = dict.fromkeys(n for _, metrics in evaluated for n in metrics)
    return {
        "name": run.folder.name,
        "label": run.label,
        "seed": run.config.get("seed"),
        "status": run.status,
        "rounds": len(run.rounds),
        "columns": {c: numbers.put(r.get(c) for r in run.rounds) for c in COLUMNS},
        "at": numbers.put(i for i, _ in evaluated),
        "metrics": {n: numbers.put(f.get(n) for _, f in evaluated) for n in names},
    }


def _style(label: str) -> dict[str, str]:
    colour, line = STYLES.get(label, OTHER)
    return {"colour": colour, "dash": DASHES[line]}


def _group_name(group: Group) -> str:
    rest = [f"{k.rpartition('.')[2]} {plain(v)}" for k, v in group.settings.items()
            if not k.startswith("algorithm.") and v is not None]  # fmt: skip
    return ", ".join([group.label, *rest])


def _lead(runs: Sequence[StoredRun], groups: Sequence[Group]) -> str:
    """What ran, and how it ended, in a sentence or two."""
    seeds = {run.config.get("seed") for run in runs}
    labels = list(dict.fromkeys(run.label for run in runs))
    words = {"diverged": "diverged", "failed": "failed", "pruned": "pruned by its study",
             "running": "not finished"}  # fmt: skip
    counts = {s: [r for r in runs if r.status == s] for s in words}
    text = (
        f"Task <b>{html.escape(task_of(runs[0]))}</b>; {counted(len(labels), 'algorithm')}, "
        f"{counted(len(groups), 'configuration')}, {counted(len(seeds), 'seed')}, "
        f"{counted(len(runs), 'run')}."
    )
    odd = []
    for status, found in counts.items():
        for run in found:
            reason = run.summary.get("reason", "")
            where = f"{run.folder.name}: {words[status]}" + (f" ({reason})" if reason else "")
            odd.append(f'<li class="{status}">{html.escape(where)}</li>')
    return f"<p>{text}</p>" + (f'<ul class="odd">{"".join(odd)}</ul>' if odd else "")


def _sheet(sheet: Sheet) -> str:
    head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in sheet.columns)
    rows = []
    for row in sheet.rows:
        cells = [html.escape(c) for c in row]
        first = f'<th scope="row">{cells[0]}</th>'
        mark = ' class="odd"' if "finished" not in row else ""
        rows.append(f"<tr{mark}>{first}{''.join(f'<td>{c}</td>' for c in cells[1:])}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _machines(runs: Sequence[StoredRun]) -> str:
    """The environments the runs were started in; those that agree, once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        path = run.folder / store.ENVIRONMENT
        values = store.read_json(path) if path.exists() else {}
        values.pop("command", None)
        found.setdefault(json.dumps(values), []).append(run.folder.name)
    parts = []
    for text, names in found.items():
        values = json.loads(text) or {"environment": "not recorded"}
        rows = "".join(
            f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(str(v))}</dd>"
            for k, v in values.items()
        )
        who = "all runs" if len(found) == 1 else ", ".join(map(html.escape, names))
        parts.append(f"<p>{who}:</p><dl>{rows}</dl>")
    return "".join(parts)


def _repeat(runs: Sequence[StoredRun], extras: Extras) -> str:
    parts = []
    for run in runs:
        command = extras.commands.get(run.folder) or f"episode run {run.folder} --resume"
        config = json.dumps(store.loads(store.dumps(run.config)), indent=2, default=str)
        parts.append(
            f"<details><summary>{html.escape(run.folder.name)}</summary>"
            f"<pre tabindex='0'>{html.escape(command)}</pre>"
            f"<pre tabindex='0'>{html.escape(config)}</pre></details>"
        )
    return "".join(parts)


def _part(name: str) -> str:
    return (files("episode.results") / "page" / name).read_text(encoding="utf-8")
