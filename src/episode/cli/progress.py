"""Progress on a terminal: a bar for one run, or for a sweep and each of its active runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.progress import Progress

from episode.cli.terminal import err
from episode.results.plain_text import printable
from episode.runs.progress import bars


class RunProgress:
    """Progress bars of single runs; without a terminal, a line for each run that starts."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bars = _bars("{task.description:<20}", 24, quiet)

    def __enter__(self) -> RunProgress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def bar(self, name: str, experiment: Any) -> Callable[[dict[str, Any]], None]:
        """Return an observer that shows a run's rounds as a bar."""
        from episode.runs.observers import progress_line

        total = experiment.plan().rounds_to_play
        task = self._bars.add_task(printable(name, one_line=True), total=total, state="")
        if not err.is_terminal and not self._quiet:
            err.print(f"{name}: {total} rounds ...")

        def observe(record: dict[str, Any]) -> None:
            self._bars.update(task, completed=record["round"] + 1, state=progress_line(record))

        return observe


class SweepDisplay:
    """One progress bar for the sweep, and one for each active run.

    If the output is not a terminal, it prints one line for each run that ends.
    """

    def __init__(self, total: int, quiet: bool) -> None:
        self._quiet = quiet
        self._progress = _bars("{task.description:<44.44}", 20, quiet)
        self._sweep = self._progress.add_task("all runs", total=total, state="")
        self._runs: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> SweepDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, name: str, experiment: Any) -> None:
        """Add a bar for a run that starts or is resumed."""
        total = experiment.plan().rounds_to_play
        line = f"  {printable(name, one_line=True)}"
        self._runs[name] = self._progress.add_task(line, total=total, state="")

    def round(self, name: str, record: dict[str, Any]) -> None:
        """Update the bar of a run after a round."""
        from episode.runs.observers import progress_line

        state = progress_line(record)
        self._progress.update(self._runs[name], completed=record["round"] + 1, state=state)

    def end(self, outcome: Any) -> None:
        """Remove the bar of a run that has ended, and count it."""
        status = "skipped" if outcome.skipped else outcome.status
        self._counts[status] += 1
        if outcome.name in self._runs:
            self._progress.remove_task(self._runs.pop(outcome.name))
        state = ", ".join(f"{count} {status}" for status, count in self._counts.items())
        self._progress.update(self._sweep, advance=1, state=state)
        if not self._quiet and not err.is_terminal and not outcome.skipped:
            reason = f": {outcome.reason}" if outcome.reason else ""
            err.print(f"{outcome.name}: {outcome.status}{reason}")


def _bars(description: str, width: int, quiet: bool) -> Progress:
    return bars(err, description, width, disable=quiet or not err.is_terminal)


def say_trial(name: str, experiment: Any) -> None:
    """Print one line about a trial of a study that starts or is resumed."""
    schedule = experiment.schedule
    err.print(
        f"{name}: {experiment.algorithm.label}, η = {schedule.eta:g}, γ = {schedule.gamma:g} ...",
    )
