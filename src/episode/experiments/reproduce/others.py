"""CIFAR-10, ImageNet and Sentiment140; and the ablation's questions on digits."""

from __future__ import annotations

from typing import ClassVar

from episode.experiments.config import Experiment
from episode.experiments.reproduce import published
from episode.experiments.reproduce.recipe import Cell, Claim, Dish, Kitchen, Recipe, Results
from episode.experiments.reproduce.snli import NEAR, ablation_claims
from episode.experiments.reproduce.tables import (
    PARALLEL,
    Portion,
    Task,
    beside_paper,
    judged,
    notes,
    pair,
)  # fmt: skip

BASELINES = ("fedavg", "celgc", "scaffold", "episode")
SMALL_IMAGES = {"width": 4, "batch_size": 4, "train_evaluated": 40}

CIFAR10 = Task(
    "cifar10",
    {
        "smoke": Portion(8, {"task": SMALL_IMAGES}, evaluations=2, shrink=4),
        "laptop": Portion(240, {"task": {"scale": "laptop"}}, evaluations=10),
        "paper": Portion(14_550, {"task": {"scale": "paper"}}, evaluations=150),
    },
)
IMAGENET = Task(
    "imagenet",
    {
        "smoke": Portion(
            8, {"task": {**SMALL_IMAGES, "image_size": 16}}, evaluations=2, shrink=32
        ),
        "laptop": Portion(256, {"task": {"scale": "laptop"}}, evaluations=8, shrink=4),
        "paper": Portion(450_360, {"task": {"scale": "paper"}}, evaluations=90),
    },
)  # fmt: skip
SENTIMENT140 = Task(
    "sentiment140",
    {
        "smoke": Portion(
            16, {"task": {"hidden": 8, "batch_size": 4, "train_evaluated": 60}}, evaluations=4
        ),
        "laptop": Portion(240, {"task": {"scale": "laptop"}}, evaluations=20),
        "paper": Portion(4_000, {"task": {"scale": "paper"}}, evaluations=40),
    },
    vectors=True,
)  # fmt: skip
DIGITS = Task(
    "digits",
    {
        "smoke": Portion(32, {"task": {"hidden": 16, "time_steps": 8}}, evaluations=4),
        "laptop": Portion(480, {}, evaluations=30),
        "paper": Portion(480, {}, evaluations=30),
    },
)


class Cifar10(Recipe):
    """Figure 2: curves at s = 50 and 70."""

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "CIFAR-10: training curves"
    place: ClassVar[str] = "Appendix E.4: figure"
    datasets: ClassVar[tuple[str, ...]] = ("cifar10",)
    cells: ClassVar[list[Cell]] = [(a, 8, s) for s in (50, 70) for a in BASELINES]

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return CIFAR10.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        r = CIFAR10.results(kitchen, self.cells)
        rows = [
            pair(r, [c for c in self.cells if c[2] == s], "iterations", f"I = 8, s = {s}%")
            for s in (50, 70)
        ]
        best, losses, shown = True, True, []
        for s in (50, 70):
            accuracy = {a: r.accuracy((a, 8, s)) for a in BASELINES}
            loss = {a: r.loss((a, 8, s)) for a in BASELINES}
            best &= max(accuracy, key=lambda a: accuracy[a]) == "episode"
            losses &= loss["episode"] <= 1.05 * min(loss.values())
            shown.append(f"s = {s}: " + _listed(accuracy))
        claims = [
            judged(kitchen, "EPISODE has the best test accuracy in both settings", best,
                   "; ".join(shown)),
            judged(kitchen, "EPISODE's training loss is nearly the best in both settings", losses,
                   "within 5% of the smallest"),
        ]  # fmt: skip
        sheet = beside_paper(CIFAR10, kitchen, r, self.cells, {})
        return Dish({"table": sheet}, {"figure": rows}, claims, notes(kitchen, CIFAR10))


class ImageNet(Recipe):
    """Figure 3 and its table, and the curves of appendix E.5."""

    name: ClassVar[str] = "imagenet"
    title: ClassVar[str] = "ImageNet: table and training curves"
    place: ClassVar[str] = "Figure 2 (table and curves) and appendix E.5"
    datasets: ClassVar[tuple[str, ...]] = ("imagenet",)
    cells: ClassVar[list[Cell]] = [
        (a, i, s) for i, s in published.IMAGENET_SETTINGS for a in BASELINES
    ]

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return IMAGENET.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        r = IMAGENET.results(kitchen, self.cells)
        rows = [
            pair(r, [(a, i, s) for a in BASELINES], "iterations",
                 f"I = {IMAGENET.interval(kitchen, i)}, s = {s:g}%")
            for i, s in published.IMAGENET_SETTINGS
        ]  # fmt: skip
        sheet = beside_paper(IMAGENET, kitchen, r, self.cells, published.IMAGENET)
        main = {"figure": [rows[2]], "curves": rows}
        return Dish({"table": sheet}, main, _imagenet_claims(kitchen, r), notes(kitchen, IMAGENET))


class Sentiment140Steps(Recipe):
    """Curves over training steps."""

    name: ClassVar[str] = "sentiment140-steps"
    title: ClassVar[str] = "Sentiment140: curves over training steps"
    place: ClassVar[str] = "Appendix H: first figure"
    datasets: ClassVar[tuple[str, ...]] = ("sentiment140", "glove")
    axis: ClassVar[str] = "iterations"
    cells: ClassVar[list[Cell]] = [
        (a, 4, s) for s in (20, 10, 0) for a in (PARALLEL, "celgc", "episode")
    ]

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return SENTIMENT140.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        r = SENTIMENT140.results(kitchen, self.cells)
        columns = [
            pair(r, [c for c in self.cells if c[2] == s], self.axis, f"I = 4, s = {s}%")
            for s in (20, 10, 0)
        ]
        rows = [[column[k] for column in columns] for k in (0, 1)]
        sheet = beside_paper(SENTIMENT140, kitchen, r, self.cells, {})
        claims = self.claims(kitchen, r)
        return Dish({"table": sheet}, {"figure": rows}, claims, notes(kitchen, SENTIMENT140))

    def claims(self, kitchen: Kitchen, r: Results) -> list[Claim]:
        """What the paper says about steps."""
        top, ours, celgc = (
            {s: r.accuracy((a, 4, s)) for s in (20, 10, 0)} for a in (PARALLEL, "episode", "celgc")
        )
        gaps = {s: ours[s] - celgc[s] for s in ours}
        shown = "; ".join(f"s = {s}: {top[s]:.1f}, {ours[s]:.1f}, {celgc[s]:.1f}%" for s in ours)
        order = "NaiveParallelClip, EPISODE, CELGC"
        return [
            judged(kitchen, "EPISODE nearly matches NaiveParallelClip",
                   all(ours[s] >= top[s] - NEAR for s in ours),
                   f"{order}: {shown}; within {NEAR} points"),
            judged(kitchen, "EPISODE outperforms CELGC", all(g > 0 for g in gaps.values()), shown),
            judged(kitchen, "The gap between EPISODE and CELGC grows as s falls",
                   gaps[20] < gaps[10] < gaps[0],
                   ", ".join(f"s = {s}: {g:+.1f} points" for s, g in gaps.items())),
            judged(kitchen, "EPISODE does not degrade as s falls", ours[0] >= ours[20] - 1,
                   f"{ours[20]:.1f}% at s = 20, {ours[0]:.1f}% at s = 0; within 1 point"),
        ]  # fmt: skip


class Sentiment140Time(Sentiment140Steps):
    """Curves over running time."""

    name: ClassVar[str] = "sentiment140-time"
    title: ClassVar[str] = "Sentiment140: curves over running time"
    place: ClassVar[str] = "Appendix H: second figure"
    axis: ClassVar[str] = "minutes"

    def claims(self, kitchen: Kitchen, r: Results) -> list[Claim]:
        """What the paper says about time: at the moment when EPISODE ends."""
        best, shown = True, []
        for s in (20, 10, 0):
            limit = r.curve(("episode", 4, s), "test_accuracy", "minutes")[0][-1]
            reached = {}
            for a in (PARALLEL, "celgc", "episode"):
                x, y = r.curve((a, 4, s), "test_accuracy", "minutes")
                reached[a] = 100 * max((v for t, v in zip(x, y, strict=True) if t <= limit),
                                       default=0.0)  # fmt: skip
            best &= max(reached, key=lambda a: reached[a]) == "episode"
            shown.append(f"s = {s}, {limit:.1f} min: " + _listed(reached))
        why = "in one process an exchange costs next to nothing"
        text = "In a fixed time EPISODE's test accuracy is above CELGC's and NaiveParallelClip's"
        return [judged(kitchen, text, best, "; ".join(shown), why)]


class Digits(Recipe):
    """Not in the paper: its ablation on data that need no download."""

    name: ClassVar[str] = "digits"
    title: ClassVar[str] = "Digits: the ablation's questions without a download"
    place: ClassVar[str] = "not in the paper"
    settings: ClassVar[tuple[tuple[int, float], ...]] = ((8, 0), (8, 10), (8, 30))
    cells: ClassVar[list[Cell]] = [
        (PARALLEL, 1, 0),
        *((a, i, s) for i, s in settings for a in (
            "celgc", "episode", "scaffold_clipped", "episode_unclipped", "fedavg", "scaffold")),
    ]  # fmt: skip

    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        return DIGITS.experiments(kitchen, self.cells)

    def serve(self, kitchen: Kitchen) -> Dish:
        r = DIGITS.results(kitchen, self.cells)
        sheet = beside_paper(DIGITS, kitchen, r, self.cells, {})
        rows = [pair(r, [self.cells[0], *(c for c in self.cells if c[1:] == (8, 0))],
                     "iterations", "I = 8, s = 0%")]  # fmt: skip
        claims = ablation_claims(kitchen, r, self.settings, self.cells[0], guessing=15.0)
        text = "Real digits; the paper has no such table. What it claims of SNLI is asked of them."
        if kitchen.scale == "smoke":
            claims = [Claim.of(c.text, None, "32 iterations of a small model") for c in claims]
        return Dish({"table": sheet}, {"figure": rows}, claims, [text])


def _imagenet_claims(kitchen: Kitchen, r: Results) -> list[Claim]:
    first = {True: 0, False: 0}
    for i, s in published.IMAGENET_SETTINGS:
        losses = {a: r.loss((a, i, s)) for a in BASELINES}
        accuracies = {a: r.accuracy((a, i, s)) for a in BASELINES}
        first[True] += min(losses, key=lambda a: losses[a]) == "episode"
        first[False] += max(accuracies, key=lambda a: accuracies[a]) == "episode"
    total = len(published.IMAGENET_SETTINGS)
    drops = {a: r.accuracy((a, 64, 70)) - r.accuracy((a, 64, 50)) for a in BASELINES}
    far = {a: r.accuracy((a, 128, 60)) for a in BASELINES}
    return [
        judged(kitchen, "EPISODE has the smallest training loss in every setting",
               first[True] == total, f"in {first[True]} of {total}"),
        judged(kitchen, "EPISODE has the best test accuracy in every setting",
               first[False] == total, f"in {first[False]} of {total}"),
        judged(kitchen, "From s = 70 to s = 50 EPISODE loses less accuracy than CELGC and SCAFFOLD",
               drops["episode"] < min(drops["celgc"], drops["scaffold"]),
               _listed(drops, " points")),
        judged(kitchen, "EPISODE stays ahead when I doubles",
               max(far, key=lambda a: far[a]) == "episode", _listed(far)),
    ]  # fmt: skip


def _listed(values: dict[str, float], unit: str = "%") -> str:
    return ", ".join(f"{published.NAMES[a]} {v:.1f}{unit}" for a, v in values.items())
