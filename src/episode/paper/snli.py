"""SNLI: the effect of I and s, and the ablation (section 5, appendix G)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from episode.paper import published
from episode.paper.published import NAMES
from episode.paper.recipe import Cell, Claim, Dish, Kitchen, Results
from episode.paper.tables import (
    HUES,
    ONE_PROCESS,
    PARALLEL,
    STROKES,
    OfRuns,
    Portion,
    Strokes,
    Task,
    beside_paper,
    judged,
    notes,
    pair,
    panel,
)  # fmt: skip
from episode.results.curves import Line
from episode.studies.search_space import PAPER_LOCAL_STEPS, PAPER_SIMILARITY

STEP = {"kind": "step", "milestones": [0.6, 0.8], "factor": 0.5}
TASK = Task(
    "snli",
    {
        "smoke": Portion(
            16,
            {"task": {"hidden": 8, "classifier": 8, "batch_size": 4, "train_evaluated": 60},
             "schedule": {"eta": 0.3, "gamma": 0.1, **STEP}},
            evaluations=4,
        ),
        "laptop": Portion(
            2_400,  # EPISODE leaves the hinge loss's plateau at 1 after half of them
            {"task": {"scale": "laptop"}, "schedule": {"eta": 1.0, "gamma": 0.1, **STEP}},
        ),
        "paper": Portion(
            26_825,  # 25 epochs of 8 batches of 64
            {"task": {"scale": "paper"}, "schedule": {"eta": 0.3, "gamma": 0.03, **STEP}},
        ),
    },
    vectors=True,
    tuned_at=("celgc", PAPER_LOCAL_STEPS, PAPER_SIMILARITY),
)  # fmt: skip
PARALLEL_CELL: Cell = (PARALLEL, 1, 30)
PUBLISHED = {PARALLEL_CELL: published.SNLI_PARALLEL, **published.SNLI_ABLATION}
CLIPPED = ("celgc", "episode", "scaffold_clipped")
UNCLIPPED = ("episode_unclipped", "fedavg", "scaffold")
INTERVALS = (2, 4, 8, 16)
SIMILARITIES = (50, 30, 10)
NEAR = 1.5
"""Points of accuracy within which the paper calls two results nearly the same (its own largest
gap so called is 1.3)."""


def cells_of(*algorithms: str) -> list[Cell]:
    """The paper's six settings of each algorithm, and NaiveParallelClip once."""
    return [
        PARALLEL_CELL,
        *((a, i, s) for i, s in published.SNLI_SETTINGS for a in algorithms),
    ]


class SnliEffects(OfRuns):
    """Training loss and test accuracy as I and s vary."""

    name: ClassVar[str] = "snli"
    title: ClassVar[str] = "SNLI: effect of I by epochs and by rounds, effect of s"
    place: ClassVar[str] = "Figure 1 (section 5.2)"
    datasets: ClassVar[tuple[str, ...]] = ("snli", "glove")
    task: ClassVar[Task] = TASK
    cells: ClassVar[list[Cell]] = cells_of("celgc", "episode")

    def dish(self, kitchen: Kitchen, results: Results) -> Dish:
        by_interval, by_similarity = effect_strokes()
        rows = [
            [
                panel(results, by_interval, figure, "epochs", "(a) effect of I"),
                panel(results, by_interval, figure, "rounds", "(b) effect of I"),
                panel(results, by_similarity, figure, "epochs", "(c) effect of s"),
            ]
            for figure in ("train_loss", "test_accuracy")
        ]
        sheet = beside_paper(TASK, kitchen, results, self.cells, PUBLISHED)
        claims = self._claims(kitchen, results)
        return Dish({"table": sheet}, {"figure": rows}, claims, notes(kitchen, TASK))

    def _claims(self, kitchen: Kitchen, r: Results) -> list[Claim]:
        top = r.accuracy(PARALLEL_CELL)
        by_i = {i: r.accuracy(("episode", i, 30)) for i in INTERVALS}
        celgc = {i: r.accuracy(("celgc", i, 30)) for i in INTERVALS}
        words = f"NaiveParallelClip {top:.1f}%; EPISODE " + _by("I", by_i)
        resilient = {s: r.accuracy(("episode", 4, s)) for s in SIMILARITIES}
        worsened = {s: r.accuracy(("celgc", 4, s)) for s in SIMILARITIES}
        rounds = {
            i: (r.rounds_to_loss(("episode", i, 30), r.loss(("celgc", i, 30))),
                len(r.runs[("celgc", i, 30)][0].rounds))
            for i in INTERVALS
        }  # fmt: skip
        worst, best = r.loss(("celgc", 4, 50)), r.loss(("episode", 4, 10))
        reached = r.rounds_to_loss(("episode", 4, 30), 0.4)
        return [
            judged(kitchen, "EPISODE nearly matches NaiveParallelClip's test accuracy for I ≤ 8",
                   all(by_i[i] >= top - NEAR for i in (2, 4, 8)), f"{words}; within {NEAR} points"),
            judged(kitchen, "CELGC lags 2-3% behind NaiveParallelClip for all I "
                   "(in the paper's own table: 4.1 to 6.5%)",
                   all(celgc[i] <= top - 2 for i in INTERVALS),
                   f"NaiveParallelClip {top:.1f}%; CELGC {_by('I', celgc)}; at least 2 points"),
            judged(kitchen, "EPISODE nearly matches NaiveParallelClip with 8 times fewer rounds",
                   by_i[8] >= top - NEAR, f"{top:.1f}% against {by_i[8]:.1f}% at I = 8"),
            judged(kitchen, "EPISODE needs fewer rounds than CELGC to reach CELGC's training loss",
                   all(e is not None and e < c for e, c in rounds.values()),
                   "; ".join(f"I = {i}: {e or 'never'} of {c}" for i, (e, c) in rounds.items())),
            judged(kitchen, "EPISODE reaches training loss 0.4 within 5,000 rounds at I = 4, "
                   "s = 30; CELGC does not with any I",
                   reached is not None and reached < 5000
                   and all(r.rounds_to_loss(("celgc", i, 30), 0.4) is None for i in INTERVALS),
                   f"EPISODE: {reached or 'never'}", "these losses belong to the full model"),
            judged(kitchen, "EPISODE at s = 10 is as good as at s = 50",
                   abs(resilient[10] - resilient[50]) <= 1,
                   f"{_by('s', resilient)}; within 1 point"),
            judged(kitchen, "EPISODE at s = 10 is nearly as good as NaiveParallelClip",
                   resilient[10] >= top - NEAR, f"{resilient[10]:.1f}% against {top:.1f}%"),
            judged(kitchen, "CELGC worsens drastically with more heterogeneity",
                   worsened[50] > worsened[30] > worsened[10]
                   and worsened[50] - worsened[10] > NEAR,
                   f"{_by('s', worsened)}; falling, by more than {NEAR} points in all"),
            judged(kitchen, "CELGC's training loss at s = 50 is worse than EPISODE's at s = 10",
                   worst > best, f"{worst:.3f} against {best:.3f}"),
        ]  # fmt: skip


class SnliAblation(OfRuns):
    """What the corrections and the clipping contribute."""

    name: ClassVar[str] = "snli-ablation"
    title: ClassVar[str] = "SNLI: ablation of corrections and clipping"
    place: ClassVar[str] = "Table 3 and Figure 7 (appendix G)"
    datasets: ClassVar[tuple[str, ...]] = ("snli", "glove")
    task: ClassVar[Task] = TASK
    cells: ClassVar[list[Cell]] = cells_of(*CLIPPED, *UNCLIPPED)

    def dish(self, kitchen: Kitchen, results: Results) -> Dish:
        sheet = beside_paper(TASK, kitchen, results, self.cells, PUBLISHED)
        shown = [c for c in self.cells if c[1:] == (4, 30)] + [PARALLEL_CELL]
        loss, accuracy = pair(results, shown, "epochs", "I = 4, s = 30%")
        low, high = _range_of(x for x in loss.lines if x.algorithm not in UNCLIPPED)
        loss = replace(loss, y_limits=(low, high))  # the paper's too leaves the unclipped outside
        claims = ablation_claims(
            kitchen, results, published.SNLI_SETTINGS, PARALLEL_CELL, guessing=35.0
        )
        claims.append(_slowest(kitchen, results, self.cells))
        return Dish({"table": sheet}, {"figure": [[loss, accuracy]]}, claims, notes(kitchen, TASK))


def _slowest(kitchen: Kitchen, r: Results, cells: list[Cell]) -> Claim:
    parallel = r.seconds(PARALLEL_CELL) / 60
    others = max(r.seconds(c) for c in cells if c != PARALLEL_CELL) / 60
    return judged(
        kitchen, "NaiveParallelClip requires more time than any other algorithm", parallel > others,
        f"{parallel:.2f} min; the slowest of the others {others:.2f}", ONE_PROCESS,
    )  # fmt: skip


def _range_of(lines: Iterable[Line]) -> tuple[float, float]:
    """From the lowest to the highest value of some curves, and a little more."""
    values = [y for line in lines for y in line.y if math.isfinite(y)] or [0.0, 1.0]
    room = 0.05 * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + room


def ablation_claims(
    kitchen: Kitchen,
    r: Results,
    settings: tuple[tuple[int, float], ...],
    parallel: Cell,
    guessing: float,
) -> list[Claim]:
    """What the paper concludes from its ablation; `guessing` is the most that luck reaches."""

    def row(algorithm: str) -> dict[tuple[int, float], float]:
        return {(i, s): r.accuracy((algorithm, i, s)) for i, s in settings}

    episode, celgc, clipped = row("episode"), row("celgc"), row("scaffold_clipped")
    bare = {n: max(row(n).values()) for n in UNCLIPPED}
    best = max(max(row(n).values()) for n in (*CLIPPED, *UNCLIPPED))
    worse = [k for k in episode if not clipped[k] < episode[k]]
    not_better = [k for k in celgc if not clipped[k] > celgc[k]]
    return [
        judged(kitchen, "SCAFFOLD (clipped) does better than CELGC in every setting "
               "(in the paper's own table: in 4 of 6)",
               not not_better, _settings(not_better, len(celgc), clipped, celgc)),
        judged(kitchen, "SCAFFOLD (clipped) does worse than EPISODE in every setting",
               not worse, _settings(worse, len(episode), clipped, episode)),
        judged(kitchen, "EPISODE (unclipped) fails to learn",
               bare["episode_unclipped"] <= guessing,
               f"at most {bare['episode_unclipped']:.1f}%; guessing: up to {guessing:g}%"),
        judged(kitchen, "FedAvg and SCAFFOLD are no better than guessing",
               max(bare["fedavg"], bare["scaffold"]) <= guessing,
               f"FedAvg at most {bare['fedavg']:.1f}%, SCAFFOLD {bare['scaffold']:.1f}%; "
               f"guessing: up to {guessing:g}%"),
        judged(kitchen, "NaiveParallelClip is the best of all by accuracy",
               r.accuracy(parallel) >= best, f"{r.accuracy(parallel):.1f}% against {best:.1f}%"),
    ]  # fmt: skip


def effect_strokes() -> tuple[Strokes, Strokes]:
    """Curves as I varies (at s = 30%), and as s varies (at I = 4): colours tell the settings."""
    parallel = {PARALLEL_CELL: (NAMES[PARALLEL], "#000000", STROKES[PARALLEL])}
    by_interval: dict[Cell, tuple[str, str | None, str | None]] = {**parallel}
    by_similarity: dict[Cell, tuple[str, str | None, str | None]] = {**parallel}
    for algorithm in ("celgc", "episode"):
        name, stroke = NAMES[algorithm], STROKES[algorithm]
        for hue, i in zip(HUES, INTERVALS, strict=True):
            by_interval[(algorithm, i, 30)] = (f"{name}, I = {i}", hue, stroke)
        for hue, s in zip(("#D55E00", "#56B4E9", "#7F7F7F"), SIMILARITIES, strict=True):
            by_similarity[(algorithm, 4, s)] = (f"{name}, s = {s}%", hue, stroke)
    return by_interval, by_similarity


def _by(letter: str, values: dict[int, float]) -> str:
    return ", ".join(f"{letter} = {k}: {v:.1f}%" for k, v in values.items())


def _settings(
    failing: list[tuple[int, float]],
    total: int,
    ours: dict[tuple[int, float], float],
    other: dict[tuple[int, float], float],
) -> str:
    text = f"in {total - len(failing)} of {total} settings"
    listed = [f"I = {i}, s = {s:g}: {ours[i, s]:.1f}% and {other[i, s]:.1f}%" for i, s in failing]
    return f"{text}; not at {'; '.join(listed)}" if listed else text
