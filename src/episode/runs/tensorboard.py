"""TensorBoard events of a run while it trains: `tensorboard --logdir runs`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.files import refuse_link
from episode.runs.records import Observe, Record

EVENTS = "events"
"""Name of the events' folder inside the run's folder."""
ROUND = (
    "loss", "global_norm", "threshold", "eta", "gamma", "clipped_steps", "largest_norm", "drift",
    "clipped",
)  # fmt: skip
COSTS = ("exchanges", "bytes_up", "bytes_down", "gradients", "seconds")


@contextmanager
def tensorboard_events(folder: Path) -> Iterator[Observe]:
    """Yield an observer that writes each round's record as events.

    Rounds that a resumed run repeats are replaced.

    Raises:
        EpisodeError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise EpisodeError("Tracking needs tensorboard: pip install 'episode-fl[track]'.") from None
    with ExitStack() as stack:
        writers: list[Any] = []

        def observe(record: Record) -> None:
            step = record["round"]
            if not writers:
                refuse_link(folder / EVENTS)
                make = SummaryWriter(str(folder / EVENTS), purge_step=step, flush_secs=5)
                writers.append(stack.enter_context(make))
            values = {f"round/{k}": record.get(k) for k in ROUND}
            values |= {f"costs/{k}": record.get(k) for k in COSTS}
            values |= {f"metrics/{k}": v for k, v in record.get("metrics", {}).items()}
            for name, value in values.items():
                if value is not None and math.isfinite(value):
                    writers[0].add_scalar(name, float(value), step)

        yield observe
