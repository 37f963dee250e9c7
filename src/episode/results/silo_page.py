"""What a report's page holds of each silo: its last value of each metric, and its curves."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from episode.results import per_client
from episode.results.per_client import TRAINED, Line
from episode.results.store import StoredRun

MOST_VALUES = 400_000
"""Values of curves in one page. Of longer curves some points are left out, but never the last."""
FEWEST_POINTS = 20


class Columns(Protocol):
    """Where columns of numbers go."""

    def add(self, column: Iterable[float | None]) -> list[int]:
        """Append a column, and return its start and its length."""


def silo_data(runs: Sequence[StoredRun], columns: Columns) -> dict[str, Any] | None:
    """Return what the page needs to know of each silo; None if no run has records of them.

    Args:
        runs: The runs of the report.
        columns: Where the numbers go. `last` is a value for each silo; `values` are rows of a value
            for each silo, one row for each of `rounds`, which are places in the run's columns.
    """
    # Reduced one by one, because the records of all runs together may be large.
    found = [_reduced(run, MOST_VALUES // len(runs)) for run in runs]
    silos = list(dict.fromkeys(silo for own in found for silo in own.silos))
    if not silos:
        return None
    names = dict.fromkeys(name for own in found for name in own.curves)
    return {
        "silos": silos,
        "metrics": sorted(names, key=_order),
        "runs": [_packed(own, silos, columns) for own in found],
        "thinned": any(own.thinned for own in found),
    }


@dataclass(frozen=True)
class _Curve:
    """A metric of each silo in one run; a value is NaN where it is not known."""

    last: array[float]
    rounds: list[int]
    """Places in the run's columns."""
    rows: list[array[float]]


@dataclass(frozen=True)
class _Reduced:
    """The records of a run, with as many points as a page can hold."""

    silos: list[str]
    curves: dict[str, _Curve]
    thinned: bool


def _reduced(run: StoredRun, most_values: int) -> _Reduced:
    places = {record["round"]: place for place, record in enumerate(run.rounds)}
    lines = [line for line in per_client.read_lines(run.folder) if line["round"] in places]
    clients = sorted({c for line in lines for c in (*line["clients"], *line.get("evaluated", ()))})
    trained = [name for name in TRAINED if any(name in line for line in lines)]
    metrics = [*per_client.metric_names(lines), *trained]
    if not metrics:
        return _Reduced([], {}, False)
    points = max(FEWEST_POINTS, most_values // (len(clients) * len(metrics)))
    curves, thinned = {}, False
    for metric in metrics:
        own = [line for line in lines if any(True for _ in per_client.values_of(line, metric))]
        buckets = _buckets(own, points)
        thinned = thinned or len(buckets) < len(own)
        rounds = [places[bucket[-1]["round"]] for bucket in buckets]
        rows = [_row(bucket, metric, clients) for bucket in buckets]
        curves[metric] = _Curve(_row(own, metric, clients), rounds, rows)
    names = per_client.read_names(run.folder)
    return _Reduced([per_client.name_of(c, names) for c in clients], curves, thinned)


def _buckets(lines: list[Line], points: int) -> list[list[Line]]:
    """Cut lines into neighbours that share a point; each has one of its own if they are few."""
    size = max(1, math.ceil(len(lines) / points))
    first = len(lines) % size or size  # so that the last ones have full length
    return [lines[a:b] for a, b in pairwise([0, *range(first, len(lines) + 1, size)])]


def _row(lines: list[Line], metric: str, clients: list[int]) -> array[float]:
    """Return the last value that is known of each client."""
    found = per_client.last_values(lines, metric)
    return array("d", [found.get(client, math.nan) for client in clients])


def _packed(own: _Reduced, silos: list[str], columns: Columns) -> dict[str, Any]:
    """Return where each metric of a run is in the columns, by its name."""
    places = {silo: place for place, silo in enumerate(own.silos)}
    order = [places.get(silo) for silo in silos]

    def row(values: array[float]) -> list[float]:
        return [math.nan if place is None else values[place] for place in order]

    return {
        metric: {
            "last": columns.add(row(curve.last)),
            "rounds": columns.add(curve.rounds),
            "values": columns.add(value for values in curve.rows for value in row(values)),
        }
        for metric, curve in own.curves.items()
    }


def _order(metric: str) -> tuple[int, bool]:
    """Metrics of evaluations come first, accuracies before others; then those of local steps."""
    place = 1 + TRAINED.index(metric) if metric in TRAINED else 0
    return place, not per_client.higher_is_better(metric)
