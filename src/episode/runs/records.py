"""Result of a training run, and the record of each of its rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from episode.errors import EpisodeError
from episode.federation.processes import Processes
from episode.federation.rounds import Telemetry
from episode.federation.state import Buffers, ServerState, Status
from episode.results import per_client
from episode.results.run_html import run_html

Record = dict[str, Any]
Observe = Callable[[Record], object]
"""Called with the record of each round; if it returns "stop", the run ends there."""
STOP = "stop"


@dataclass
class Run:
    """Result of a training run.

    Example:
        >>> import episode, torch
        >>> data = (torch.randn(8, 2), torch.randn(8, 1))
        >>> loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
        >>> run = episode.fit(torch.nn.Linear(2, 1), [data, data], loss, eta=0.1, gamma=1.0,
        ...                   local_steps=2, rounds=3, batch_size=4)
        >>> run.status, len(run.history)
        ('finished', 3)
    """

    status: Status
    """`finished` or `diverged`; if diverged, `x` and `model` are those of the last finite round."""
    history: History
    """One record for each round."""
    summary: Record
    """Final status, costs and metrics, as in the folder's summary.json."""
    x: Tensor
    """The trained parameters as one vector, `[d]`."""
    buffers: Buffers = field(default_factory=Buffers)
    """The model's buffers, such as BatchNorm's statistics."""
    folder: Path | None = None
    """Where the run was written, if it was."""
    model: nn.Module | None = None
    """The trained model, if the run was started with one."""
    client_names: Sequence[str] = ()
    """Names of the clients, in order; `client 0`, `client 1` … if they have none."""
    read_back: bool = False
    """Whether the run had ended before, and was read from its folder instead of being played."""

    def _repr_html_(self) -> str:
        """Return the run as notebooks show it: a table of its status, metrics and costs."""
        return run_html(self.summary, len(self.history), self.folder, self.read_back)

    def __repr__(self) -> str:
        """Return a short text, because the history can be long."""
        where = f", folder={str(self.folder)!r}" if self.folder else ""
        metrics = {"loss": self.summary.get("loss"), **self.summary.get("metrics", {})}
        shown = ", ".join(f"{k}={v:.4g}" for k, v in metrics.items() if v is not None)
        origin = ", read back" if self.read_back else ""
        return f"Run({self.status} after {len(self.history)} rounds{origin}, {shown}{where})"


class History(list[Record]):
    """List of the rounds' records, each a dict, in order; and the records of each client.

    Args:
        records: The rounds' records.
        client_names: Names of the clients.
    """

    def __init__(self, records: Iterable[Record] = (), client_names: Sequence[str] = ()) -> None:
        super().__init__(records)
        self.client_names = client_names
        self.client_lines: list[Record] = []
        """Lines of clients.jsonl; empty if records of each client were not kept."""

    def share(self, processes: Processes) -> None:
        """Replace the records by those of the first process, which alone reads them from a folder.

        So a resumed run has the history of all its rounds on every process.
        """
        if processes.size > 1:
            self[:], self.client_lines = processes.value_of_first([self, self.client_lines])

    def frame(self) -> Any:
        """Return the records as a pandas DataFrame, with a column for each metric of the task.

        Raises:
            EpisodeError: pandas is not installed.
        """
        return _frame(map(_flat, self))

    def plot(self, *metrics: str, path: str | Path | None = None) -> Any:
        """Draw the losses, the metrics, and the gradient norms beside the clipping threshold.

        Args:
            *metrics: Metrics to draw; by default all, but for those of the local steps.
            path: Where to write the picture, a .png or .svg; by default it is not written.

        Returns:
            A matplotlib figure, which notebooks show.

        Raises:
            EpisodeError: There are no rounds, or no such metric.
        """
        from episode.results.history_figure import draw_history

        return draw_history(self, metrics, None if path is None else Path(path))

    def clients(self) -> dict[str, list[Record]]:
        """Return the records of each client by its name, each a list of dicts in order.

        A record has the round and, if the client took part in it, its `loss`, the share of its
        steps that were `clipped`, its `largest_norm`, its `drift` and, if the
        algorithm measures it, its mean `trust`. If the client was evaluated
        after the round, it has `metrics`, as the record of a round has.

        Empty if records of each client were not kept: see `record.per_client`.
        """
        return per_client.by_client(self.client_lines, self.client_names)

    def client_frame(self) -> Any:
        """Return the records of each client as a pandas DataFrame: a row per client and round.

        Raises:
            EpisodeError: pandas is not installed.
        """
        rows = [
            {"client": name, **_flat(record)}
            for name, records in self.clients().items()
            for record in records
        ]
        return _frame(rows)


def _flat(record: Record) -> Record:
    return {**{k: v for k, v in record.items() if k != "metrics"}, **record.get("metrics", {})}


def _frame(rows: Iterable[Record]) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise EpisodeError("A DataFrame needs pandas: pip install pandas.") from None
    return pd.DataFrame(list(rows))


def make_record(telemetry: Telemetry, server: ServerState) -> Record:
    """Return one line of rounds.jsonl; counts and seconds are totals so far.

    If the round was evaluated, the trainer adds the task's metrics of x̄_{r+1} as `metrics`.
    """
    metrics = telemetry.metrics
    count = len(metrics["loss"])
    return {
        "round": telemetry.round,
        "eta": float(telemetry.eta),
        "gamma": float(telemetry.gamma),
        "threshold": float(telemetry.gamma / telemetry.eta),
        "global_norm": None if telemetry.G_norm is None else float(telemetry.G_norm),
        "clipped": None if telemetry.clipped is None else bool(telemetry.clipped),
        "clipped_steps": sum(metrics["clipped"]) / count,
        "loss": sum(metrics["loss"]) / count,
        "largest_norm": _largest(metrics["largest_norm"]),
        "drift": _largest(metrics["drift"]),
        "cohort": telemetry.cohort,
        **dataclasses.asdict(server.counts),
        **_trust(metrics),
        **_correction_ratio(metrics),
    }


def client_line(telemetry: Telemetry, evaluated: Mapping[int, Mapping[str, float]]) -> Record:
    """Return one line of clients.jsonl, with the metrics of the clients that were evaluated."""
    return per_client.make_line(telemetry.round, telemetry.cohort, telemetry.metrics, evaluated)


def _trust(metrics: dict[str, list[Any]]) -> Record:
    """Return the mean and the smallest λ of the cohort's local steps, if trust is measured."""
    if "trust" not in metrics:
        return {}
    mean = sum(metrics["trust"]) / len(metrics["trust"])
    return {"trust": mean, "least_trust": min(metrics["least_trust"])}


def _correction_ratio(metrics: dict[str, list[Any]]) -> Record:
    """Return how large corrections are against the gradients that they correct, if measured."""
    gradients = sum(v for v in metrics.get("gradient_norm", []) if v is not None)
    corrections = sum(v for v in metrics.get("correction_norm", []) if v is not None)
    return {"correction_ratio": corrections / gradients} if gradients > 0 else {}


def _largest(values: list[float | None]) -> float | None:
    """Return the maximum, NaN if any value is NaN, or None if nothing was measured."""
    known = [v for v in values if v is not None]
    return next((v for v in known if v != v), max(known, default=None))
