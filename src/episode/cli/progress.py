"""How a sweep shows on a terminal: one bar for all of it, one line for each run at work."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from episode.cli.terminal import err


class SweepDisplay:
    """Progress of many runs; without a terminal, a line per run that ends."""

    def __init__(self, total: int, quiet: bool) -> None:
        columns = (
            TextColumn("{task.description:<44.44}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._quiet = quiet
        self._bars = Progress(*columns, console=err, disable=quiet or not err.is_terminal)
        self._all = self._bars.add_task("all runs", total=total, state="")
        self._tasks: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> SweepDisplay:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin(self, name: str, experiment: Any) -> None:
        total = experiment.plan().rounds_to_play
        self._tasks[name] = self._bars.add_task(f"  {name}", total=total, state="")

    def round(self, name: str, record: dict[str, Any]) -> None:
        state = f"loss {record['loss']:.3g}" + ("  clipped" if record["clipped"] else "")
        self._bars.update(self._tasks[name], completed=record["round"] + 1, state=state)

    def end(self, outcome: Any) -> None:
        word = "skipped" if outcome.skipped else outcome.status
        self._counts[word] = self._counts.get(word, 0) + 1
        if outcome.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(outcome.name))
        state = ", ".join(f"{n} {w}" for w, n in self._counts.items())
        self._bars.update(self._all, advance=1, state=state)
        if not self._quiet and not err.is_terminal and not outcome.skipped:
            reason = f": {outcome.reason}" if outcome.reason else ""
            err.print(f"{outcome.name}: {outcome.status}{reason}", markup=False)


def say_trial(name: str, experiment: Any) -> None:
    """A line about a trial of a study that begins, or goes on."""
    schedule = experiment.schedule
    err.print(
        f"{name}: {experiment.algorithm.label}, η = {schedule.eta:g}, γ = {schedule.gamma:g} ...",
        markup=False,
    )
