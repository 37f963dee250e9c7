"""How well configurations do for each silo: one row per silo, one column per configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from episode.errors import EpisodeError, unknown
from episode.results import per_client
from episode.results.groups import Group, Spread, setting_text
from episode.results.tables import Table, counted

OVERVIEW = {"worst": "worst silo", "mean": "mean of silos", "spread": "spread"}
"""Rows below those of the silos, and what they are called."""


@dataclass(frozen=True)
class SiloColumn:
    """The values of one metric in one configuration, over its finished runs."""

    group: Group
    name: str
    each: dict[str, Spread]
    """By silo; without those of which no run has a value."""
    overview: dict[str, Spread]
    """`worst`, `mean` and `spread` over silos, taken in each run; empty if there are no values."""
    with_values: int
    """Number of finished runs that have values of each silo."""
    finished: int


def silo_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the metrics that runs have for each silo: accuracies first, the training loss last."""
    summaries = [per_client.summary_of(run) for group in groups for run in group.runs]
    names = dict.fromkeys(name for summary in summaries for name in summary)
    return sorted(names, key=lambda n: (n == "loss", not per_client.higher_is_better(n)))


def silo_columns(
    groups: Sequence[Group], metric: str | None = None
) -> tuple[str, list[SiloColumn]]:
    """Return a metric, by default the first, and its values in each configuration.

    Raises:
        EpisodeError: No run has values of each silo, or none has this metric.
    """
    names = silo_metrics(groups)
    if not names:
        raise EpisodeError(
            "None of these runs has records of each silo: they are kept of up to 100 clients, or "
            "if record.per_client is true, and older runs have none."
        )
    if metric is not None and metric not in names:
        raise unknown("metric of each silo", metric, names)
    chosen = metric or names[0]
    return chosen, [_column(group, chosen) for group in groups]


def silo_table(metric: str, columns: Sequence[SiloColumn]) -> Table:
    """Tabulate silos against configurations, with the worst, the mean and the spread below."""
    silos = list(dict.fromkeys(silo for column in columns for silo in column.each))
    rows = [[silo, *(_text(column.each.get(silo)) for column in columns)] for silo in silos]
    for key, title in OVERVIEW.items():
        rows.append([title, *(_text(column.overview.get(key)) for column in columns)])
    if len(columns) > 1:
        first, *others = columns
        gains = [_gains(metric, column, first) for column in others]
        rows.append([f"better / worse than {first.name}", "", *gains])
    if any(column.group.status() != "finished" for column in columns):
        rows.append(["status", *(column.group.status() for column in columns)])
    sense = "higher is better" if per_client.higher_is_better(metric) else "lower is better"
    what = "loss of the local steps" if metric == "loss" else metric
    title = f"{what} of {counted(len(silos), 'silo')} ({sense})"
    return Table(title, ["silo", *(column.name for column in columns)], rows)


def remarks(metric: str, columns: Sequence[SiloColumn]) -> list[str]:
    """Say what is missing from the table, and what its numbers are not."""
    found = []
    silos = dict.fromkeys(silo for column in columns for silo in column.each)
    for column in columns:
        lacking = column.finished - column.with_values
        if not column.finished:
            found.append(f"{column.name}: no run has finished.")
        elif lacking:
            runs = f"{lacking} of {column.finished} finished runs"
            found.append(f"{column.name}: {runs} without {metric} of each silo.")
        missing = [silo for silo in silos if column.with_values and silo not in column.each]
        if missing:
            found.append(f"{column.name}: no {metric} of {_listed(missing)}.")
    several = any(column.with_values > 1 for column in columns)
    if several and all(silo.startswith("client ") for silo in silos):
        found.append("Clients without names may hold other data for another seed.")
    return found


def as_json(metric: str, columns: Sequence[SiloColumn]) -> list[dict[str, Any]]:
    """Return the table's unrounded content as JSON values, one entry per configuration."""
    return [
        {
            "algorithm": column.group.label,
            "settings": column.group.settings,
            "status": column.group.status(),
            "metric": metric,
            "runs": column.with_values,
            "each": {silo: vars(spread) for silo, spread in column.each.items()},
            **{key: vars(spread) for key, spread in column.overview.items()},
        }
        for column in columns
    ]


def _column(group: Group, metric: str) -> SiloColumn:
    finished = [run for run in group.runs if run.status == "finished"]
    summaries = [per_client.summary_of(run) for run in finished]
    found = [summary[metric]["each"] for summary in summaries if metric in summary]
    silos = dict.fromkeys(silo for each in found for silo in each)
    each = {silo: Spread.of([own[silo] for own in found if silo in own]) for silo in silos}
    overviews = [per_client.overview(metric, own) for own in found]
    known = {key: [o[key] for o in overviews if o[key] is not None] for key in OVERVIEW}
    overview = {key: Spread.of(values) for key, values in known.items() if values}
    return SiloColumn(group, _name(group), each, overview, len(found), len(finished))


def _gains(metric: str, column: SiloColumn, baseline: SiloColumn) -> str:
    """Return how many silos do better than with the baseline, and how many worse."""
    sign = 1 if per_client.higher_is_better(metric) else -1
    both = [silo for silo in column.each if silo in baseline.each]
    gains = [sign * (column.each[silo].mean - baseline.each[silo].mean) for silo in both]
    return f"{sum(g > 0 for g in gains)} / {sum(g < 0 for g in gains)}" if gains else "–"


def _name(group: Group) -> str:
    """Return the algorithm, and the other settings in which the configurations differ."""
    shown = {k: v for k, v in group.settings.items() if not k.startswith("algorithm.")}
    return ", ".join(
        [group.label, *(setting_text(k, v) for k, v in shown.items() if v is not None)]
    )


def _text(spread: Spread | None) -> str:
    return "–" if spread is None else spread.text()


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
