"""Recipes made of runs: their settings at each scale, and tables and curves beside the paper's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from episode.errors import EpisodeError
from episode.paper.claims import JudgedClaim
from episode.paper.published import NAMES, PARALLEL, Case
from episode.paper.recipe import Recipe, RecipeContext, RecipeOutput, RecipeScale
from episode.paper.run_results import RunClaim, RunResults
from episode.results.figures import Line, Panel
from episode.results.store import read_run
from episode.results.text_tables import Sheet
from episode.runs.config import Experiment
from episode.runs.config_values import apply_override
from episode.studies.grid import at_point

ANY_SIMILARITY = "any (paper: 100%)"
"""The similarity of NaiveParallelClip in tables: its result does not depend on it."""
Figures = Mapping[str, list[list[Panel]]]
"""Rows of panels, by file name."""
LineStyles = Mapping[Case, tuple[str, str | None, str | None]]
"""Label, colour and style of each case's curve; None for those of the algorithm."""


@dataclass(frozen=True)
class ScaleSettings:
    """Settings of a task at one scale."""

    iterations: int
    """Local steps of a run in all: rounds times I."""
    config: Mapping[str, Any]
    evaluations: int = 25
    """How often a run is evaluated."""
    shrink: int = 1
    """What the paper's I are divided by, if a run would otherwise have too few rounds."""


@dataclass(frozen=True)
class PaperTask:
    """A task of the paper, and how its cases are run at each scale."""

    name: str
    scales: Mapping[RecipeScale, ScaleSettings]
    datasets: tuple[str, ...] = ()
    """What has to be downloaded; `glove` are word vectors."""
    tuned: bool = False
    """Whether the paper tuned η and γ, instead of giving them in its text."""

    def experiment(self, context: RecipeContext, case: Case, seed: int) -> Experiment:
        """The run of a case; all cases of a task have the same number of iterations."""
        scale = self.scales[context.scale]
        steps = max(1, case.local_steps // scale.shrink)
        values = {section: dict(settings) for section, settings in scale.config.items()}
        values["task"] = {"name": self.name, **values.get("task", {})}
        for dataset in self.datasets:
            if (path := context.data_path(dataset)) is not None:
                values["task"]["vectors" if dataset == "glove" else "data"] = path
        every = max(1, scale.iterations // scale.evaluations // steps)
        values["record"] = {"evaluate_every": every}
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
        runs = {
            case: [
                read_run(context.runs / self.experiment(context, case, seed).name)
                for seed in range(context.seeds)
            ]
            for case in cases
        }
        task = self.experiment(context, cases[0], 0).task
        sizes = [len(part) for part in task.deal(0).parts]  # type: ignore[attr-defined]
        batch: int = task.batch_size  # type: ignore[attr-defined]
        iterations_per_epoch = max(1.0, sum(sizes) / (len(sizes) * batch))
        return RunResults(runs, iterations_per_epoch, self.scales[context.scale].shrink)

    def notes(self, context: RecipeContext) -> list[str]:
        """What a reader must know about the runs."""
        if context.scale == "smoke":
            return ["Scale smoke uses made-up data: it shows only that the recipe runs."]
        iterations = self.scales[context.scale].iterations
        text = f"{iterations:,} iterations, {context.seeds} seed(s), on the test split."
        if context.seeds > 1:
            text += " Tables are means over seeds; curves and times are those of the first seed."
        if (tuned := context.tuned.get(self.name)) is not None:
            text += f" The study in {tuned.study} chose η and γ on the validation split."
        if context.scale == "laptop":
            text += " The model is smaller and training shorter than in the paper: compare the "
            text += "order of algorithms, not their values."
        return [text]


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

    def table(self, context: RecipeContext, results: RunResults) -> Sheet:
        """Training loss and test accuracy of each case, ours and the paper's."""
        columns = ["Interval", "Similarity", "Algorithm", "Train loss", "Test acc.",
                   "Train loss (paper)", "Test acc. (paper)"]  # fmt: skip
        digits = 1 if all(round(v, 1) == v for _, v in self.published.values()) else 2
        paper = {c: [f"{x:.3f}", f"{y:.{digits}f}%"] for c, (x, y) in self.published.items()}
        rows = [
            [*case_columns(results, c, c in paper), *results.texts(c), *paper.get(c, ["–", "–"])]
            for c in self.cases
        ]
        return Sheet("", columns, rows, left=3)

    def notes(self, context: RecipeContext) -> list[str]:
        """What a reader must know about these numbers."""
        return [*self.task.notes(context), LETTERS]

    def experiments(self, context: RecipeContext) -> list[Experiment]:
        seeds = range(context.seeds)
        return [self.task.experiment(context, c, seed) for c in self.cases for seed in seeds]

    def missing(self, context: RecipeContext) -> str:
        task = self.task.experiment(context, self.cases[0], 0).task
        try:
            task.deal(0)  # type: ignore[attr-defined]
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
        judged = []
        for claim in self.claims_at(context.scale):
            if context.scale == "smoke":
                judged.append(claim.not_testable(self.smoke_obstacle))
            elif claim.paper_scale_only and context.scale != "paper":
                reason = f"{claim.paper_scale_only}; here: {claim.shown(results)}"
                judged.append(claim.not_testable(reason))
            else:
                judged.append(claim.judge(results))
        return judged


LETTERS = (
    "I (interval) is the number of local steps that a client takes in a round; s is the similarity "
    "of the clients' data: at 100% all of them have the same mix of labels."
)


def case_columns(results: RunResults, case: Case, any_similarity: bool) -> list[str]:
    """I, s and the algorithm, as the first columns of a table."""
    similarity = f"{case.similarity:g}%"
    if case.algorithm == PARALLEL:
        return ["1", ANY_SIMILARITY if any_similarity else similarity, NAMES[PARALLEL]]
    return [results.interval(case.local_steps), similarity, NAMES[case.algorithm]]


def curves(
    results: RunResults, lines: LineStyles, metric: str, axis: str, title: str = ""
) -> Panel:
    """A panel with one metric's curves of some cases."""
    word = {"train_loss": "training loss", "test_accuracy": "test accuracy"}[metric]
    drawn = []
    for case, (label, colour, style) in lines.items():
        x, y = results.curve(case, metric, axis)
        drawn.append(Line(label, x, y, case.algorithm, colour, style))
    return Panel(title, axis, word, drawn)


def loss_and_accuracy(
    results: RunResults, cases: Sequence[Case], axis: str, title: str
) -> list[Panel]:
    """Two panels: the training loss and the test accuracy of some algorithms in one setting."""
    lines: LineStyles = {case: (NAMES[case.algorithm], None, None) for case in cases}
    metrics = ("train_loss", "test_accuracy")
    return [curves(results, lines, metric, axis, title) for metric in metrics]
