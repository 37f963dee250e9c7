"""Tables of runs: one row for each run, or for each configuration with means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from episode.results.groups import Group, metric_names, value_text
from episode.results.per_client import higher_is_better
from episode.results.store import StoredRun
from episode.results.tables import CsvData, Table

CONTEXT = ("task.", "budget.", "cohorts.")
"""Settings under which algorithms are compared, and not by which one is better."""
COSTS = ("exchanges", "bytes_up", "bytes_down", "gradients", "seconds")


def full_table(groups: Sequence[Group]) -> Table:
    """Tabulate groups for files and reports: settings, up to four metrics, and costs.

    Seconds are left out: two runs of one config differ in them, and a repeated sweep is to write
    the same table.
    """
    groups = best_first(groups)
    metrics, keys = _metrics_shown(groups)[:4], _settings_shown(groups)
    columns = ["algorithm", *keys, "seeds", *metrics, "status", "exchanges", "MB", "gradients"]
    rows = [[*_cells(g, keys, metrics), g.status(), *_cost_cells(g)[:3]] for g in groups]
    data = _unrounded(groups, keys, metrics)
    return Table("", columns, rows, left=1 + len(keys), csv_data=data)


def short_table(groups: Sequence[Group], title: str = "") -> Table:
    """Tabulate groups for a terminal of 80 columns: two metrics, exchanges and seconds."""
    groups = best_first(groups)
    metrics, keys = _metrics_shown(groups)[:2], _settings_shown(groups)
    short_keys = [key.rpartition(".")[2] for key in keys]
    status = ["status"] if any(g.status() != "finished" for g in groups) else []
    columns = ["algorithm", *short_keys, "seeds", *metrics, *status, "exch.", "sec."]
    rows = []
    for g in groups:
        exchanges, _, _, seconds = _cost_cells(g)
        ended = [g.status()] if status else []
        rows.append([*_cells(g, keys, metrics), *ended, exchanges, seconds])
    return Table(title, columns, rows, left=1 + len(keys))


def best_first(groups: Sequence[Group]) -> list[Group]:
    """Sort groups by their first metric, among those of the same task and budget.

    The tasks and budgets keep their order; groups in which nothing finished come last.
    """
    metric = _metrics_shown(groups)[0]
    sign = -1 if higher_is_better(metric) else 1
    contexts: dict[str, int] = {}

    def place(group: Group) -> tuple[int, bool, float]:
        own = {k: v for k, v in group.settings.items() if k.startswith(CONTEXT)}
        context = contexts.setdefault(str(own), len(contexts))
        spread = group.metric(metric)
        known = spread is not None and math.isfinite(spread.mean)
        return context, not known, sign * spread.mean if spread and known else 0.0

    return sorted(groups, key=place)


def run_row(run: StoredRun) -> dict[str, Any]:
    """Return the final values of a run; None for those that it does not have."""
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


def run_table(rows: Sequence[dict[str, Any]], title: str = "") -> Table:
    """Tabulate rows of `run_row`."""
    # To fit a terminal of 80 columns.
    short = {"exchanges": "exch.", "gradients": "grads", "eta": "η", "gamma": "γ"}
    columns = [short.get(column, column) for column in rows[0]]
    cells = [[_cell(column, value) for column, value in row.items()] for row in rows]
    return Table(title, columns, cells, gap=1)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if column in ("accuracy", "shared", "loss"):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1e}"
    if column in ("MB", "seconds"):
        return f"{value:.1f}"
    if column in ("eta", "gamma"):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _unrounded(groups: Sequence[Group], keys: Sequence[str], metrics: Sequence[str]) -> CsvData:
    """Return means over the finished runs, with deviations (n - 1) in columns of their own."""
    columns = [column for name in metrics for column in (name, f"{name}_deviation")]
    rows = []
    for g in groups:
        spreads = [g.metric(name) for name in metrics]
        values = [v for s in spreads for v in ((s.mean, s.deviation) if s else (None, None))]
        settings = [g.label, *(g.settings[k] for k in keys), len(g.runs)]
        rows.append([*settings, *values, g.status(), *_mean_costs(g)[:4]])
    return CsvData(["algorithm", *keys, "seeds", *columns, "status", *COSTS[:4]], rows)


def _metrics_shown(groups: Sequence[Group]) -> list[str]:
    """Return the names of all metrics, or the loss of the local steps if there are none."""
    return metric_names([r for g in groups for r in g.runs]) or ["loss"]


def _settings_shown(groups: Sequence[Group]) -> list[str]:
    """Return the settings that differ, without the algorithm's if its name says enough."""
    keys = list(groups[0].settings) if groups else []
    own = [k for k in keys if k.startswith("algorithm.")]
    algorithms = {tuple(str(g.settings[k]) for k in own) for g in groups}
    named = len({g.label for g in groups}) == len(algorithms)
    return [k for k in keys if not (named and k in own)]


def _cells(group: Group, keys: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Return algorithm, settings, number of seeds and metrics."""
    settings = [value_text(group.settings[k]) for k in keys]
    spreads = [group.metric(name) for name in metrics]
    texts = [spread.text() if spread else "–" for spread in spreads]
    return [group.label, *settings, str(len(group.runs)), *texts]


def _cost_cells(group: Group) -> list[str]:
    """Return mean exchanges, MB, gradients and seconds."""
    exchanges, up, down, gradients, seconds = _mean_costs(group)
    if exchanges is None or up is None or down is None:
        return ["–"] * 4
    megabytes = (up + down) / 1e6
    return [f"{exchanges:,.0f}", f"{megabytes:,.1f}", f"{gradients:,.0f}", f"{seconds:,.1f}"]


def _mean_costs(group: Group) -> list[float | None]:
    """Return the mean of each of `COSTS` over the runs that have ended; None if none has."""
    ended = [r.summary for r in group.runs if "exchanges" in r.summary]
    return [sum(s[name] for s in ended) / len(ended) if ended else None for name in COSTS]
