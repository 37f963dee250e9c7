"""What the recipes of real data share: scales, cells, tables beside the paper's, and curves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from episode.paper.published import NAMES
from episode.paper.recipe import (
    Cell,
    Claim,
    Dish,
    Kitchen,
    Recipe,
    Results,
    Scale,
    cell_experiment,
)  # fmt: skip
from episode.results.curves import Line, Panel
from episode.results.store import read_run
from episode.results.tables import Table
from episode.runs.config import Experiment

PARALLEL = "naive_parallel_clip"
HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""For settings, where the algorithm is told by the style of the line, as in the paper."""
ANY_SIMILARITY = "any (paper: 100%)"
"""NaiveParallelClip's, whose result does not depend on it."""
STROKES = {PARALLEL: ":", "celgc": "--", "episode": "-"}


Strokes = Mapping[Cell, tuple[str, str | None, str | None]]
"""Label, colour and style of each cell's curve; None for the algorithm's own."""


@dataclass(frozen=True)
class Portion:
    """A task at one scale: its settings, how long it runs, and how large its I are."""

    iterations: int
    config: Mapping[str, Any]
    evaluations: int = 25
    """How often a run is evaluated."""
    shrink: int = 1
    """The paper's I are divided by this, where so few iterations would be one round."""


@dataclass(frozen=True)
class Task:
    """A dataset's part in recipes: how a cell of its tables is run."""

    name: str
    portions: Mapping[Scale, Portion]
    vectors: bool = False
    tuned_at: Cell | None = None
    """The cell that the paper tuned η and γ for; None where its text gives them."""

    def cell(self, kitchen: Kitchen, cell: Cell, seed: int) -> Experiment:
        """The run of a cell; the figures are those of the test split."""
        portion = self.portions[kitchen.scale]
        algorithm, interval, similarity = cell
        steps = max(1, interval // portion.shrink)
        task = {"name": self.name, **portion.config.get("task", {})}
        if (data := kitchen.place_of(self.name)) is not None:
            task["data"] = data
        if self.vectors and (vectors := kitchen.place_of("glove")) is not None:
            task["vectors"] = vectors
        every = max(1, portion.iterations // portion.evaluations // steps)
        base = {**portion.config, "task": task, "record": {"evaluate_every": every}}
        return cell_experiment(
            kitchen, base, portion.iterations, (algorithm, steps, similarity), seed
        )

    def experiments(self, kitchen: Kitchen, cells: Sequence[Cell]) -> list[Experiment]:
        return [self.cell(kitchen, c, seed) for c in cells for seed in range(kitchen.seeds)]

    def results(self, kitchen: Kitchen, cells: Sequence[Cell]) -> Results:
        """The runs of the cells, read back."""
        runs = {
            c: [
                read_run(kitchen.runs / self.cell(kitchen, c, seed).name)
                for seed in range(kitchen.seeds)
            ]
            for c in cells
        }
        return Results(runs, self.iterations_per_epoch(kitchen, cells[0]))

    def iterations_per_epoch(self, kitchen: Kitchen, cell: Cell) -> float:
        """In how many iterations all clients together see as many examples as there are."""
        task = self.cell(kitchen, cell, 0).task
        sizes = [len(part) for part in task.partition(0).parts]  # type: ignore[union-attr]
        batch: int = task.batch_size  # type: ignore[attr-defined]
        return max(1.0, sum(sizes) / (len(sizes) * batch))

    def interval(self, kitchen: Kitchen, interval: int) -> str:
        """I as a table shows it: the paper's, and the one really used."""
        shrunk = max(1, interval // self.portions[kitchen.scale].shrink)
        return str(interval) if shrunk == interval else f"{shrunk} (paper: {interval})"


class OfRuns(Recipe):
    """A recipe whose figures come from runs, one for each cell of its table and seed."""

    task: ClassVar[Task]
    cells: ClassVar[list[Cell]]

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return self.task.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        return self.dish(kitchen, self.task.results(kitchen, self.cells))

    @abstractmethod
    def dish(self, kitchen: Kitchen, results: Results) -> Dish:
        """Tables, figures and claims of these results."""


def beside_paper(
    task: Task,
    kitchen: Kitchen,
    results: Results,
    cells: Sequence[Cell],
    published: Mapping[Cell, tuple[float, float]],
) -> Table:
    """Training loss and test accuracy, ours and the paper's, cell by cell."""
    rows = []
    digits = 1 if all(round(v, 1) == v for _, v in published.values()) else 2  # as it prints them
    for cell in cells:
        algorithm, interval, similarity = cell
        loss, accuracy = results.text(cell)
        paper = published.get(cell)
        parallel = algorithm == PARALLEL
        rows.append(
            [
                "1" if parallel else task.interval(kitchen, interval),
                ANY_SIMILARITY if parallel and paper else f"{similarity:g}%",
                NAMES.get(algorithm, algorithm),
                loss,
                accuracy,
                "–" if paper is None else f"{paper[0]:.3f}",
                "–" if paper is None else f"{paper[1]:.{digits}f}%",
            ]
        )
    columns = ["Interval", "Similarity", "Algorithm", "Train loss", "Test acc.",
               "Train loss (paper)", "Test acc. (paper)"]  # fmt: skip
    return Table("", columns, rows, left=3)


def panel(
    results: Results,
    lines: Strokes,
    figure: str,
    axis: str,
    title: str = "",
) -> Panel:
    """Curves of some cells."""
    word = {"train_loss": "training loss", "test_accuracy": "test accuracy"}[figure]
    drawn = []
    for cell, (label, colour, style) in lines.items():
        x, y = results.curve(cell, figure, axis)
        drawn.append(Line(label, x, y, cell[0], colour, style))
    return Panel(title, axis, word, drawn)


def pair(results: Results, cells: Sequence[Cell], axis: str, title: str) -> list[Panel]:
    """Training loss and test accuracy of some algorithms in one setting, side by side."""
    lines: Strokes = {c: (NAMES.get(c[0], c[0]), None, None) for c in cells}
    return [
        panel(results, lines, figure, axis, title) for figure in ("train_loss", "test_accuracy")
    ]


def judged(kitchen: Kitchen, text: str, holds: bool, figures: str, only_paper: str = "") -> Claim:
    """A claim about real data: made-up ones cannot test it; some need the paper's scale."""
    if kitchen.scale == "smoke":
        return Claim.of(text, None, "made-up data")
    if only_paper and kitchen.scale != "paper":
        return Claim.of(text, None, f"{only_paper}; here: {figures}" if figures else only_paper)
    return Claim.of(text, holds, figures)


ONE_PROCESS = "in one process an exchange costs next to nothing"
"""Why running times are judged at the paper's scale only."""
MADE_UP = "Scale smoke: made-up data. The numbers show that the recipe runs, and nothing else."


def notes(kitchen: Kitchen, task: Task) -> list[str]:
    """What a reader must know about these numbers."""
    if kitchen.scale == "smoke":
        return [MADE_UP]
    portion = task.portions[kitchen.scale]
    text = f"{portion.iterations:,} iterations, {kitchen.seeds} seed(s), on the test split."
    if kitchen.seeds > 1:
        text += " Tables are means over seeds; curves and running times are the first seed's."
    if (tuned := kitchen.tuned.get(task.name)) is not None:
        text += f" η and γ were chosen on the validation split by the study in {tuned.study}."
    if kitchen.scale == "laptop":
        text += (
            " A smaller model and fewer iterations than the paper's: compare orders, not values."
        )
    return [text]
