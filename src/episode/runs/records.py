"""Result of a training run, and the record of each of its rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from episode.errors import EpisodeError
from episode.federation.rounds import Telemetry
from episode.federation.state import Buffers, ServerState, Status

Record = dict[str, Any]
Observe = Callable[[Record], None]


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

    def __repr__(self) -> str:
        """Return a short text, because the history can be long."""
        where = f", folder={str(self.folder)!r}" if self.folder else ""
        metrics = {"loss": self.summary.get("loss"), **self.summary.get("metrics", {})}
        shown = ", ".join(f"{k}={v:.4g}" for k, v in metrics.items() if v is not None)
        return f"Run({self.status} after {len(self.history)} rounds, {shown}{where})"


class History(list[Record]):
    """List of the rounds' records, each a dict, in order."""

    def frame(self) -> Any:
        """Return the records as a pandas DataFrame, with a column for each metric of the task.

        Raises:
            EpisodeError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise EpisodeError("A DataFrame needs pandas: pip install pandas.") from None
        return pd.DataFrame(
            [{k: v for k, v in r.items() if k != "metrics"} | r.get("metrics", {}) for r in self]
        )


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
        **_correction_ratio(metrics),
    }


def _correction_ratio(metrics: dict[str, list[Any]]) -> Record:
    """Return how large corrections are against the gradients that they correct, if measured."""
    gradients = sum(v for v in metrics.get("gradient_norm", []) if v is not None)
    corrections = sum(v for v in metrics.get("correction_norm", []) if v is not None)
    return {"correction_ratio": corrections / gradients} if gradients > 0 else {}


def _largest(values: list[float | None]) -> float | None:
    """Return the maximum, NaN if any value is NaN, or None if nothing was measured."""
    known = [v for v in values if v is not None]
    return next((v for v in known if v != v), max(known, default=None))
