"""TensorBoard events of a run while it trains: `tensorboard --logdir runs`."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from episode.errors import EpisodeError
from episode.runs.records import Record

EVENTS = "events"
"""Name of the events' folder inside the run's folder."""
ROUND = ("loss", "global_norm", "threshold", "eta", "gamma", "clipped_steps", "largest_norm")
COSTS = ("exchanges", "bytes_up", "bytes_down", "gradients", "seconds")


class Tracker:
    """Writes each round's record as events; rounds that a resumed run repeats are replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / EVENTS
        self._make = _summary_writer()
        self._writer: Any = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, record: Record) -> None:
        step = record["round"]
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=step, flush_secs=5)
        values = {f"round/{k}": record.get(k) for k in (*ROUND, "drift")}
        values |= {f"costs/{k}": record.get(k) for k in COSTS}
        values |= {f"metrics/{k}": v for k, v in record.get("metrics", {}).items()}
        if record.get("clipped") is not None:
            values["round/clipped"] = float(record["clipped"])
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, step)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise EpisodeError("Tracking needs tensorboard: pip install 'episode-fl[track]'.") from None
    return SummaryWriter
