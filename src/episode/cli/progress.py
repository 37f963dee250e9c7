"""Progress of many runs on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from episode.cli.terminal import err


class SweepDisplay:
    """One progress bar for the sweep, and one for each active run.

    If the output is not a terminal, it prints one line for each run that ends.
    """

    def __init__(self, total: int, quiet: bool) -> None:
        columns = (
            TextColumn("{task.description:<44.44}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._quiet = quiet
        self._progress = Progress(*columns, console=err, disable=quiet or not err.is_terminal)
        self._sweep = self._progress.add_task("all runs", total=total, state="")
        self._runs: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> SweepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, name: str, experiment: Any) -> None:
        """Add a bar for a run that starts or is resumed."""
        total = experiment.plan().rounds_to_play
        self._runs[name] = self._progress.add_task(f"  {name}", total=total, state="")

    def round(self, name: str, record: dict[str, Any]) -> None:
        """Update the bar of a run after a round."""
        state = f"loss {record['loss']:.3g}" + ("  clipped" if record["clipped"] else "")
        self._progress.update(self._runs[name], completed=record["round"] + 1, state=state)

    def end(self, outcome: Any) -> None:
        """Remove the bar of a run that has ended, and count it."""
        status = "skipped" if outcome.skipped else outcome.status
        self._counts[status] = self._counts.get(status, 0) + 1
        if outcome.name in self._runs:
            self._progress.remove_task(self._runs.pop(outcome.name))
        state = ", ".join(f"{count} {status}" for status, count in self._counts.items())
        self._progress.update(self._sweep, advance=1, state=state)
        if not self._quiet and not err.is_terminal and not outcome.skipped:
            reason = f": {outcome.reason}" if outcome.reason else ""
            err.print(f"{outcome.name}: {outcome.status}{reason}", markup=False)


def say_trial(name: str, experiment: Any) -> None:
    """Print one line about a trial of a study that starts or is resumed."""
    schedule = experiment.schedule
    err.print(
        f"{name}: {experiment.algorithm.label}, η = {schedule.eta:g}, γ = {schedule.gamma:g} ...",
        markup=False,
    )
