"""Recipes made of runs: their settings at each scale, and tables and curves beside the paper's."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from episode.errors import EpisodeError
from episode.paper.published import NAMES, PARALLEL, Case
from episode.paper.recipe import JudgedClaim, Recipe, RecipeContext, RecipeOutput, RecipeScale
from episode.paper.run_results import RunClaim, RunResults
from episode.results.curves import Line, Panel
from episode.results.store import StoredRun, read_run
from episode.results.tables import Table
from episode.runs.config import Experiment
from episode.runs.config_values import apply_override
from episode.studies.grid import at_point

LETTERS = (
    "I (interval) is the number of local steps that a client takes in a round; s is the similarity "
    "of the clients' data: at 100% all of them have the same mix of labels."
)
METRICS = {"train_loss": "training loss", "test_accuracy": "test accuracy"}
Figures = Mapping[str, list[list[Panel]]]
"""Rows of panels, by file name."""
LineStyles = Mapping[Case, tuple[str, str | None, str | None]]
"""Label, colour and style of each case's curve; None for those of the algorithm."""


@dataclass(frozen=True)
class ScaleSettings:
    """Settings of a task at one scale."""

    iterations: int
    """Local steps of a run in all: rounds times I."""
    evaluations: int = 25
    """How often a run is evaluated."""
    shrink: int = 1
    """What the paper's I are divided by, if a run would otherwise have too few rounds."""
    task: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTask:
    """A task of the paper, and how its cases are run at each scale."""

    name: str
    smoke: ScaleSettings
    laptop: ScaleSettings
    paper: ScaleSettings
    datasets: tuple[str, ...] = ()
    """What has to be downloaded; `glove` are word vectors."""
    tuned: bool = False
    """Whether the paper tuned η and γ, instead of giving them in its text."""

    def at(self, scale: RecipeScale) -> ScaleSettings:
        """The settings at a scale."""
        return {"smoke": self.smoke, "laptop": self.laptop, "paper": self.paper}[scale]

    def experiment(self, context: RecipeContext, case: Case, seed: int) -> Experiment:
        """The run of a case; all cases of a task have the same number of iterations."""
        scale = self.at(context.scale)
        steps = max(1, case.local_steps // scale.shrink)
        task = {"name": self.name, **scale.task}
        for dataset in self.datasets:
            if context.scale != "smoke":
                task["scale"] = context.scale
            if (path := context.data_path(dataset)) is not None:
                task["vectors" if dataset == "glove" else "data"] = path
        every = max(1, scale.iterations // scale.evaluations // steps)
        record = {"evaluate_every": every}
        values: dict[str, Any] = {"task": task, "schedule": dict(scale.schedule), "record": record}
        point: dict[str, Any] = {
            "algorithm": case.algorithm,
            "task.similarity": float(case.similarity),
            "budget.local_steps": steps,
            "budget.rounds": max(1, -(-scale.iterations // steps)),
            "seed": seed,
        }
        tuned = context.tuned.get(self.name)
        chosen = tuned.overrides(case.algorithm) if tuned else []
        for override in (*chosen, *context.overrides):
            key = override.partition("=")[0].strip()
            if key in {*point, "algorithm.name"}:
                raise EpisodeError(
                    f"--set {override}: a recipe sets {key} itself, for each of its runs."
                )
            apply_override(values, override)
        return at_point(values, point)

    def results(self, context: RecipeContext, cases: Sequence[Case]) -> RunResults:
        """Read back the runs of some cases."""
        runs: dict[Case, list[StoredRun]] = {case: [] for case in cases}
        for case, seed in itertools.product(cases, range(context.seeds)):
            folder = context.runs / self.experiment(context, case, seed).name
            runs[case].append(read_run(folder))
        task: Any = self.experiment(context, cases[0], 0).task
        sizes = [len(part) for part in task.partition(0).parts]
        iterations_per_epoch = max(1.0, sum(sizes) / (len(sizes) * task.batch_size))
        return RunResults(runs, iterations_per_epoch, self.at(context.scale).shrink)


class RunRecipe(Recipe):
    """A recipe that shows the metrics of runs: one run for each of its cases and seeds."""

    task: PaperTask
    cases: Sequence[Case]
    claims: Sequence[RunClaim] = ()
    """What the paper claims about these runs."""
    published: Mapping[Case, tuple[float, float]] = MappingProxyType({})
    """The paper's training losses and test accuracies."""
    smoke_obstacle = "made-up data"
    """Why claims cannot be tested at scale smoke."""

    def cases_at(self, local_steps: int, similarity: float) -> list[Case]:
        """The cases of all algorithms in one setting."""
        return [case for case in self.cases if case[1:] == (local_steps, similarity)]

    @abstractmethod
    def figures(self, results: RunResults) -> Figures:
        """Rows of panels, by file name."""

    def table(self, context: RecipeContext, results: RunResults) -> Table:
        """Training loss and test accuracy of each case, ours and the paper's."""
        columns = ["Interval", "Similarity", "Algorithm", "Train loss", "Test acc.",
                   "Train loss (paper)", "Test acc. (paper)"]  # fmt: skip
        digits = 1 if all(round(v, 1) == v for _, v in self.published.values()) else 2
        paper = {c: [f"{x:.3f}", f"{y:.{digits}f}%"] for c, (x, y) in self.published.items()}
        rows = [
            [*case_columns(results, c, c in paper), *results.texts(c), *paper.get(c, ["–", "–"])]
            for c in self.cases
        ]
        return Table("", columns, rows, left=3)

    def notes(self, context: RecipeContext) -> list[str]:
        """What a reader must know about these numbers."""
        if context.scale == "smoke":
            return ["Scale smoke uses made-up data: it shows only that the recipe runs.", LETTERS]
        iterations = self.task.at(context.scale).iterations
        text = f"{iterations:,} iterations, {context.seeds} seed(s), on the test split."
        if context.seeds > 1:
            text += " Tables are means over seeds; curves and times are those of the first seed."
        if (tuned := context.tuned.get(self.task.name)) is not None:
            text += f" The study in {tuned.study} chose η and γ on the validation split."
        if context.scale == "laptop":
            text += " Models are smaller and training is shorter than in the paper: compare the "
            text += "order of algorithms, not their values."
        return [text, LETTERS]

    def experiments(self, context: RecipeContext) -> list[Experiment]:
        seeds = range(context.seeds)
        return [self.task.experiment(context, c, seed) for c in self.cases for seed in seeds]

    def missing(self, context: RecipeContext) -> str:
        try:
            self.task.experiment(context, self.cases[0], 0).task.partition(0)
        except EpisodeError as error:
            paths = " ".join(f"--data {name}=PATH" for name in self.task.datasets)
            return f"{error} Here that is {paths}."
        return ""

    def output(self, context: RecipeContext) -> RecipeOutput:
        results = self.task.results(context, self.cases)
        table, claims = self.table(context, results), self.judge(context, results)
        return RecipeOutput({"table": table}, self.figures(results), claims, self.notes(context))

    def claims_at(self, scale: RecipeScale) -> Sequence[RunClaim]:
        """The claims, for recipes whose claims depend on the scale."""
        return self.claims

    def judge(self, context: RecipeContext, results: RunResults) -> list[JudgedClaim]:
        """Judge the claims that can be tested at this scale."""
        claims = self.claims_at(context.scale)
        if context.scale == "smoke":
            return [
                JudgedClaim(c.text, "not testable at this scale", self.smoke_obstacle)
                for c in claims
            ]
        at_paper_scale = context.scale == "paper"
        return [c.judge(results, "" if at_paper_scale else c.paper_scale_only) for c in claims]


def case_columns(results: RunResults, case: Case, any_similarity: bool) -> list[str]:
    """I, s and the algorithm, as the first columns of a table.

    NaiveParallelClip has one local step, and its result does not depend on the similarity.
    """
    similarity = f"{case.similarity:g}%"
    if case.algorithm == PARALLEL:
        return ["1", "any (paper: 100%)" if any_similarity else similarity, NAMES[PARALLEL]]
    return [results.interval(case.local_steps), similarity, NAMES[case.algorithm]]


def panels(results: RunResults, *columns: tuple[LineStyles, str, str]) -> list[list[Panel]]:
    """Training losses above test accuracies; each column has its own curves, axis and title."""

    def panel(metric: str, lines: LineStyles, axis: str, title: str) -> Panel:
        drawn = [
            Line(label, *results.curve(case, metric, axis), case.algorithm, colour, style)
            for case, (label, colour, style) in lines.items()
        ]
        return Panel(title, axis, METRICS[metric], drawn)

    return [[panel(metric, *column) for column in columns] for metric in METRICS]


def loss_and_accuracy(
    results: RunResults, cases: Sequence[Case], axis: str, title: str
) -> list[Panel]:
    """Two panels side by side, in which the cases differ by their algorithm only."""
    lines = {case: (NAMES[case.algorithm], None, None) for case in cases}
    return [row[0] for row in panels(results, (lines, axis, title))]
