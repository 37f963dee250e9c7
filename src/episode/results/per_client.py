"""Records of each client: clients.jsonl in a run folder, and what is said about silos from it.

A line is about one round: the clients that took part, and for each of them its loss, the share of
its steps that were clipped, its largest gradient norm and its drift. If the round was evaluated, it
also has metrics of each client. A value is None if it was not measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.files import read_regular
from episode.results import store
from episode.results.groups import Spread
from episode.results.schema import COUNT, COUNTS, METRICS, NUMBER

CLIENTS = "clients.jsonl"
CLIENT_NAMES = "client_names.json"
"""Names of all clients; only for tasks whose clients have names."""
TRAINED = ("loss", "clipped", "largest_norm", "drift", "trust")
"""What clients measure in their local steps; trust only if the algorithm measures it."""
PER_CLIENT = "per_client"
"""Key of a summary: the last values of each client, by metric."""

Line = dict[str, Any]
Values = Sequence[float | None]


def make_line(
    round: int,
    clients: Sequence[int],
    trained: Mapping[str, Values],
    evaluated: Mapping[int, Mapping[str, float]],
) -> Line:
    """Return one line of clients.jsonl.

    Args:
        round: The round.
        clients: The clients that took part.
        trained: What they measured in their local steps, in the order of `clients`.
        evaluated: Metrics of the model for each client that was evaluated. One that is called as a
            value of `TRAINED` gets the prefix `holdout_`.
    """
    line: Line = {"round": round, "clients": list(clients)}
    for name in TRAINED:
        values = trained.get(name, ())
        if any(value is not None for value in values):
            line[name] = [None if value is None else float(value) for value in values]
    found = {client: metrics for client, metrics in sorted(evaluated.items()) if metrics}
    if found:
        if list(found) != line["clients"]:
            line["evaluated"] = list(found)
        names = dict.fromkeys(name for metrics in found.values() for name in metrics)
        line["metrics"] = {
            f"holdout_{name}" if name in TRAINED else name: [m.get(name) for m in found.values()]
            for name in names
        }
    return line


def read_lines(folder: Path) -> list[Line]:
    """Read clients.jsonl; empty if there is none. A torn last line, left by a kill, is dropped.

    Raises:
        EpisodeError: A line is damaged.
    """
    path = folder / CLIENTS
    if not path.exists():
        return []
    found: list[Line] = []
    try:
        lines = read_regular(path).split(b"\n")
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None
    for number, text in enumerate(lines, 1):
        try:
            if text:
                after = found[-1]["round"] if found else -1
                found.append(_checked(store.loads(text.decode()), after))
        except ValueError:
            if number < len(lines):
                raise EpisodeError(
                    f"{path} is damaged in line {number}: delete this file to go on without the "
                    "records of each client."
                ) from None
    return found


def read_names(folder: Path) -> list[str]:
    """Read the names of the clients; empty if they have none."""
    path = folder / CLIENT_NAMES
    if not path.exists():
        return []
    names = store.read_json(path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EpisodeError(f"{path} is damaged: delete this file to number the clients.")
    return names


def name_of(client: int, names: Sequence[str]) -> str:
    """Return a client's name, or its number in words if it has none."""
    return names[client] if client < len(names) else f"client {client}"


def values_of(line: Line, metric: str) -> Iterator[tuple[int, float]]:
    """Yield the clients of a line and their values of a metric, without those not measured."""
    if metric in TRAINED:
        clients, values = line["clients"], line.get(metric, ())
    else:
        clients = line.get("evaluated", line["clients"])
        values = line.get("metrics", {}).get(metric, ())
    for client, value in zip(clients, values, strict=False):
        if value is not None:
            yield client, value


def metric_names(lines: Sequence[Line]) -> list[str]:
    """Return the names of the metrics for which clients were evaluated."""
    return list(dict.fromkeys(name for line in lines for name in line.get("metrics", {})))


def last_values(lines: Sequence[Line], metric: str) -> dict[int, float]:
    """Return the last value of a metric that is known of each client, in the order of clients."""
    found: dict[int, float] = {}
    for line in lines:
        found.update(values_of(line, metric))
    return dict(sorted(found.items()))


def by_client(lines: Sequence[Line], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each client by its name: one for each round it has values of."""
    found: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        own: dict[int, dict[str, Any]] = {}
        for place, client in enumerate(line["clients"]):
            values = {name: line[name][place] for name in TRAINED if name in line}
            own[client] = {"round": line["round"], **values}
        for metric in line.get("metrics", ()):
            for client, value in values_of(line, metric):
                record = own.setdefault(client, {"round": line["round"]})
                record.setdefault("metrics", {})[metric] = value
        for client, record in own.items():
            found.setdefault(client, []).append(record)
    return {name_of(client, names): found[client] for client in sorted(found)}


def summarise(lines: Sequence[Line], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return for each metric: each client's last value by name, the worst, the mean, the spread.

    The metrics are those of the evaluation, and the loss of the local steps. The spread is the
    standard deviation over clients (with n - 1).
    """
    found: dict[str, dict[str, Any]] = {}
    for metric in (*metric_names(lines), "loss"):
        values = last_values(lines, metric)
        if values:
            each = {name_of(client, names): value for client, value in values.items()}
            found[metric] = {"each": each, **overview(metric, each)}
    return found


def overview(metric: str, each: Mapping[str, float]) -> dict[str, Any]:
    """Return the worst value of at least one client and whose it is, the mean and the spread."""
    worst = worst_of(metric, each)
    spread = Spread.of(list(each.values()))
    return {
        "worst": each[worst],
        "worst_client": worst,
        "mean": spread.mean,
        "spread": spread.deviation,
    }


def worst_of(metric: str, each: Mapping[str, float]) -> str:
    """Return the client with the worst value; one that is not a number is the worst of all."""
    sign = 1 if higher_is_better(metric) else -1
    return min(each, key=lambda name: -math.inf if each[name] != each[name] else sign * each[name])


def higher_is_better(metric: str) -> bool:
    """Whether larger values of a metric are better, judged by its name; losses are the rule."""
    return re.search("accuracy|score|auc|f1", metric) is not None


def summary_of(run: store.StoredRun) -> dict[str, dict[str, Any]]:
    """Return what the summary of a run says about each client; empty if it says nothing.

    Raises:
        EpisodeError: It has another form.
    """
    found = run.summary.get(PER_CLIENT, {})
    if not isinstance(found, Mapping) or not all(map(_is_overview, found.values())):
        raise EpisodeError(
            f"{run.folder / store.SUMMARY} is damaged at {PER_CLIENT}: leave out this folder, or "
            "delete it."
        )
    return dict(found)


def _is_overview(value: Any) -> bool:
    each = value.get("each") if isinstance(value, Mapping) else None
    return METRICS.accepts(each) and bool(each)


def _checked(line: Any, after: int) -> Line:
    """Return a line with sound values, of a round after this one; raise a ValueError if not."""
    if not isinstance(line, dict) or not COUNT.accepts(line.get("round")):
        raise ValueError
    if line["round"] <= after:
        raise ValueError
    metrics = line.get("metrics", {})
    if not isinstance(metrics, dict):
        raise ValueError
    clients = _clients(line.get("clients"))
    evaluated = _clients(line["evaluated"]) if "evaluated" in line else clients
    for values in (line[name] for name in TRAINED if name in line):
        _check_column(values, len(clients))
    for values in metrics.values():
        _check_column(values, len(evaluated))
    return line


def _clients(value: Any) -> list[int]:
    if not COUNTS.accepts(value):
        raise ValueError
    return list(value)


def _check_column(values: Any, length: int) -> None:
    if not isinstance(values, list) or len(values) != length:
        raise ValueError
    if not all(value is None or NUMBER.accepts(value) for value in values):
        raise ValueError
