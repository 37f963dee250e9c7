"""SNLI against the clock: minutes to a test accuracy (appendix F)."""

from __future__ import annotations

from typing import ClassVar

from episode.experiments.config import Experiment
from episode.experiments.reproduce import published
from episode.experiments.reproduce.published import NAMES
from episode.experiments.reproduce.recipe import Cell, Claim, Dish, Kitchen, Recipe, Results
from episode.experiments.reproduce.snli import (
    INTERVALS,
    PARALLEL_CELL,
    SIMILARITIES,
    TASK,
    cells_of,
    effect_panels,
)  # fmt: skip
from episode.experiments.reproduce.tables import PARALLEL, judged, notes
from episode.results.figures import Panel
from episode.results.sheets import Sheet


class SnliTime(Recipe):
    """Table 2 and Figure 4: minutes to 70, 75 and 80% of test accuracy."""

    name: ClassVar[str] = "snli-time"
    title: ClassVar[str] = "SNLI: running time to a test accuracy"
    place: ClassVar[str] = "Appendix F: table and figure"
    datasets: ClassVar[tuple[str, ...]] = ("snli", "glove")
    cells = cells_of("celgc", "episode")

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return TASK.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        results = TASK.results(kitchen, self.cells)
        targets = published.SNLI_TARGETS if kitchen.scale == "paper" else (40.0, 50.0, 60.0)
        rows = [_time_panels(results, f) for f in ("train_loss", "test_accuracy")]
        sheet = _time_sheet(kitchen, results, self.cells, targets)
        why = "in one process an exchange costs next to nothing"
        if kitchen.scale == "paper":
            why = ""
        return Dish(
            {"table": sheet}, {"figure": rows}, _time_claims(kitchen, results, targets, why),
            [*notes(kitchen, TASK), "Ours are minutes of training on this machine, with the "
             "exchanges of one process; the paper's are of eight V100 on two hosts."],
        )  # fmt: skip


def _time_panels(results: Results, figure: str) -> list[Panel]:
    first, _, third = effect_panels(results, figure)
    panels = []
    for old, title in ((first, "(a) effect of I"), (third, "(b) effect of s")):
        lines = []
        for line in old.lines:
            cell = _cell_of(line.label)
            x, y = results.curve(cell, figure, "minutes")
            lines.append(type(line)(line.label, x, y, line.algorithm, line.colour, line.style))
        panels.append(Panel(title, "minutes", old.y_label, lines))
    return panels


def _cell_of(label: str) -> Cell:
    """The cell that a curve of `effect_panels` shows."""
    name, _, setting = label.partition(", ")
    if not setting:
        return PARALLEL_CELL
    algorithm = next(a for a, n in NAMES.items() if n == name)
    number = int(setting.split("= ")[1].rstrip("%"))
    return (algorithm, number, 30) if setting.startswith("I") else (algorithm, 4, number)


def _time_sheet(
    kitchen: Kitchen, results: Results, cells: list[Cell], targets: tuple[float, ...]
) -> Sheet:
    columns = ["Interval", "Similarity", "Algorithm", *(f"{t:g}%" for t in targets)]
    columns += [f"{t:g}% (paper)" for t in published.SNLI_TARGETS]
    rows = []
    for cell in cells:
        algorithm, interval, similarity = cell
        paper = published.SNLI_MINUTES.get(cell, published.SNLI_PARALLEL_MINUTES)
        ours = [results.seconds_to(cell, t) for t in targets]
        parallel = algorithm == PARALLEL
        rows.append(
            ["1" if parallel else str(interval), "any" if parallel else f"{similarity:g}%",
             NAMES[algorithm], *("N/A" if m is None else f"{m / 60:.2f}" for m in ours),
             *("N/A" if m is None else f"{m:.2f}" for m in paper)]
        )  # fmt: skip
    return Sheet("", columns, rows, left=3)


def _time_claims(kitchen: Kitchen, r: Results, targets: tuple[float, ...], why: str) -> list[Claim]:
    goal = targets[1]

    def minutes(cell: Cell) -> float:
        found = r.seconds_to(cell, goal)
        return float("inf") if found is None else found / 60

    parallel = minutes(PARALLEL_CELL)
    pairs = {i: (minutes(("episode", i, 30)), minutes(("celgc", i, 30))) for i in INTERVALS}
    faster = all(e < min(c, parallel) for i, (e, c) in pairs.items() if i <= 8)
    by_s = {s: (minutes(("episode", 4, s)), minutes(("celgc", 4, s))) for s in SIMILARITIES}
    steady = max(e for e, _ in by_s.values()) <= 1.2 * min(e for e, _ in by_s.values())
    slower = by_s[50][1] < by_s[30][1] < by_s[10][1]
    shown = "; ".join(f"I = {i}: {e:.2f} and {c:.2f} min" for i, (e, c) in pairs.items())
    shown_s = "; ".join(f"s = {s}: {e:.2f} and {c:.2f} min" for s, (e, c) in by_s.items())
    return [
        judged(kitchen, "For I ≤ 8 EPISODE needs less running time to a high test accuracy than "
               "CELGC and NaiveParallelClip", faster,
               f"to {goal:g}%, EPISODE and CELGC: {shown}; NaiveParallelClip {parallel:.2f}", why),
        judged(kitchen, "At I = 16 CELGC is as fast", pairs[16][1] <= 1.1 * pairs[16][0],
               f"{pairs[16][0]:.2f} and {pairs[16][1]:.2f} min", why),
        judged(kitchen, "As s falls, EPISODE's running time stays nearly constant, CELGC's grows",
               steady and slower, f"to {goal:g}%, EPISODE and CELGC: {shown_s}; EPISODE within 20%",
               why),
    ]  # fmt: skip
