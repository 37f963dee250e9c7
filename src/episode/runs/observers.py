"""Observers: functions that are called with the record of each round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from episode.results.groups import LEADING_METRICS
from episode.runs.records import STOP, Observe, Record


def combined(*observers: Observe | None) -> Observe | None:
    """Return one observer that calls these in order; None if there are none."""
    given = [observe for observe in observers if observe is not None]
    if len(given) < 2:
        return given[0] if given else None

    def observe(record: Record) -> object:
        answers = [each(record) for each in given]
        return STOP if STOP in answers else None

    return observe


@contextmanager
def tracked(folder: Path, track: bool, observe: Observe | None) -> Iterator[Observe | None]:
    """Add TensorBoard events in the run's folder to an observer, if `track` is true."""
    if not track:
        yield observe
        return
    from episode.runs.tensorboard import tensorboard_events

    with tensorboard_events(folder) as write:
        yield combined(write, observe)


def progress_line(record: Record) -> str:
    """Return one line about a round for a progress bar or a log."""
    parts = [f"loss {record['loss']:.4g}"]
    if record["global_norm"] is not None:
        parts.append(f"‖G‖ {record['global_norm']:.3g}")
    if record["clipped"]:
        parts.append("clipped")
    metrics = record.get("metrics", {})
    if leading := next((n for n in (*LEADING_METRICS, *metrics) if n in metrics), None):
        parts.append(f"{leading} {metrics[leading]:.4g}")
    return "  ".join(parts)
