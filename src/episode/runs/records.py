"""What a run leaves behind: a record of each round, and what it came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from episode.errors import EpisodeError
from episode.federation.rounds import Telemetry
from episode.federation.state import ServerState, Status

Record = dict[str, Any]
Observe = Callable[[Record], None]


@dataclass
class Run:
    """What a run came to."""

    status: Status
    """finished, or diverged: then `x` and `model` are those of the last finite round."""
    history: History
    summary: Record
    x: Tensor
    folder: Path | None = None
    model: nn.Module | None = None

    def __repr__(self) -> str:
        """Short: the history can be long."""
        where = f", folder={str(self.folder)!r}" if self.folder else ""
        metrics = {"loss": self.summary.get("loss"), **self.summary.get("metrics", {})}
        shown = ", ".join(f"{k}={v:.4g}" for k, v in metrics.items() if v is not None)
        return f"Run({self.status} after {len(self.history)} rounds, {shown}{where})"


class History(list[Record]):
    """One record per round, in order: a list of dicts."""

    def frame(self) -> Any:
        """The records as a pandas DataFrame, the task's figures as columns of their own."""
        try:
            import pandas as pd
        except ImportError:
            raise EpisodeError("A DataFrame needs pandas: pip install pandas.") from None
        return pd.DataFrame(
            [{k: v for k, v in r.items() if k != "metrics"} | r.get("metrics", {}) for r in self]
        )


def make_record(telemetry: Telemetry, server: ServerState) -> Record:
    """One line of rounds.jsonl; counts and seconds are totals so far.

    Where the round was evaluated, the task's figures of x̄_{r+1} join it as `figures`.
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
    }


def _largest(values: list[float | None]) -> float | None:
    """The maximum; NaN if one is NaN, so that it is seen; None where nothing was measured."""
    known = [v for v in values if v is not None]
    return next((v for v in known if v != v), max(known, default=None))
