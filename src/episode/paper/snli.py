"""SNLI: the effect of the number of local steps and of the similarity (section 5)."""

from __future__ import annotations

import math

from episode.paper.comparisons import ACCURACY, LOSS, NEARLY, Metric, Relation, compare
from episode.paper.published import NAMES, PARALLEL, SNLI_ABLATION, SNLI_PARALLEL, Case
from episode.paper.run_recipe import (
    Figures,
    LineStyles,
    PaperTask,
    RunRecipe,
    ScaleSettings,
    curves,
)
from episode.paper.run_results import RunClaim, RunResults

STEP = {"kind": "step", "milestones": [0.6, 0.8], "factor": 0.5}
TASK = PaperTask(
    "snli",
    {
        "smoke": ScaleSettings(
            16,
            {"task": {"hidden": 8, "classifier": 8, "batch_size": 4, "train_evaluated": 60},
             "schedule": {"eta": 0.3, "gamma": 0.1, **STEP}},
            evaluations=4,
        ),
        "laptop": ScaleSettings(
            2_400,  # EPISODE leaves the hinge loss's plateau at 1 after half of them
            {"task": {"scale": "laptop"}, "schedule": {"eta": 1.0, "gamma": 0.1, **STEP}},
        ),
        "paper": ScaleSettings(
            26_825,  # 25 epochs of 8 batches of 64
            {"task": {"scale": "paper"}, "schedule": {"eta": 0.3, "gamma": 0.03, **STEP}},
        ),
    },
    datasets=("snli", "glove"),
    tuned=True,
)  # fmt: skip
PARALLEL_CASE = Case(PARALLEL, 1, 30)
PUBLISHED = {PARALLEL_CASE: SNLI_PARALLEL, **SNLI_ABLATION}
LOCAL_STEPS = (2, 4, 8, 16)
SIMILARITIES = (50, 30, 10)
CELGC_BY_I, EPISODE_BY_I = ([Case(a, i, 30) for i in LOCAL_STEPS] for a in ("celgc", "episode"))
CELGC_BY_S, EPISODE_BY_S = ([Case(a, 4, s) for s in SIMILARITIES] for a in ("celgc", "episode"))


EFFECT_CASES = tuple(case for case in PUBLISHED if case.algorithm in (PARALLEL, "celgc", "episode"))
ROUNDS_TO_LOW_LOSS = Metric(lambda r, case: r.rounds_to(case, 0.4), "{:.0f} rounds")


def _rounds_to_celgcs_loss(r: RunResults, ours: Case) -> tuple[float, int]:
    """The rounds that EPISODE needs to reach CELGC's final loss, and those that CELGC played."""
    celgc = ours._replace(algorithm="celgc")
    return r.rounds_to(ours, r.loss(celgc)), len(r.runs[celgc][0].rounds)


def _is_faster(r: RunResults) -> bool:
    rounds = [_rounds_to_celgcs_loss(r, case) for case in EPISODE_BY_I]
    return all(ours < celgcs for ours, celgcs in rounds)


def _rounds_text(r: RunResults) -> str:
    def show(case: Case) -> str:
        ours, celgcs = _rounds_to_celgcs_loss(r, case)
        return f"{ours if math.isfinite(ours) else 'never'} of {celgcs} rounds"

    return r.listed(EPISODE_BY_I, show)


def _reaches_low_loss(r: RunResults) -> bool:
    ours, *celgcs = (r.rounds_to(c, 0.4) for c in (Case("episode", 4, 30), *CELGC_BY_I))
    return ours < 5000 and min(celgcs) == math.inf


def _worsens(r: RunResults) -> bool:
    at_50, at_30, at_10 = map(r.accuracy, CELGC_BY_S)
    return at_50 > at_30 > at_10 and at_50 - at_10 > 1.5


class SnliEffects(RunRecipe):
    """Training loss and test accuracy as the number of local steps and the similarity vary."""

    name = "snli"
    title = "SNLI: effect of the number of local steps (I) and of the similarity (s)"
    place = "Figure 1, section 5.2"
    task = TASK
    cases = EFFECT_CASES
    published = PUBLISHED
    claims = (
        compare("EPISODE nearly matches NaiveParallelClip's test accuracy for I ≤ 8",
                ACCURACY, [(case, PARALLEL_CASE) for case in EPISODE_BY_I[:3]], NEARLY),
        compare("CELGC lags 2-3% behind NaiveParallelClip for all I (in the paper's own table: 4.1 "
                "to 6.5%)", ACCURACY, [(case, PARALLEL_CASE) for case in CELGC_BY_I],
                Relation(lambda celgc, parallel: celgc <= parallel - 2, "at least 2 points")),
        compare("EPISODE nearly matches NaiveParallelClip with 8 times fewer rounds",
                ACCURACY, [(Case("episode", 8, 30), PARALLEL_CASE)], NEARLY),
        RunClaim("EPISODE needs fewer rounds than CELGC to reach CELGC's training loss",
                 _is_faster, _rounds_text),
        RunClaim("EPISODE reaches training loss 0.4 within 5,000 rounds at I = 4, s = 30; CELGC "
                 "does not with any I", _reaches_low_loss,
                 lambda r: ROUNDS_TO_LOW_LOSS.text(r, Case("episode", 4, 30), *CELGC_BY_I),
                 paper_scale_only="these losses belong to the full model"),
        compare("EPISODE at s = 10 is as good as at s = 50",
                ACCURACY, [(Case("episode", 4, 10), Case("episode", 4, 50))],
                Relation(lambda at_10, at_50: abs(at_10 - at_50) <= 1, "within 1 point")),
        compare("EPISODE at s = 10 is nearly as good as NaiveParallelClip",
                ACCURACY, [(Case("episode", 4, 10), PARALLEL_CASE)], NEARLY),
        RunClaim("CELGC worsens drastically as the clients' data become more different", _worsens,
                 lambda r: ACCURACY.text(r, *CELGC_BY_S),
                 "falling with s, by more than 1.5 points in all"),
        compare("CELGC's training loss at s = 50 is worse than EPISODE's at s = 10",
                LOSS, [(Case("celgc", 4, 50), Case("episode", 4, 10))]),
    )  # fmt: skip

    def figures(self, results: RunResults) -> Figures:
        by_steps, by_similarity = line_styles()
        rows = [
            [
                curves(results, by_steps, metric, "epochs", "(a) effect of I"),
                curves(results, by_steps, metric, "rounds", "(b) effect of I"),
                curves(results, by_similarity, metric, "epochs", "(c) effect of s"),
            ]
            for metric in ("train_loss", "test_accuracy")
        ]
        return {"figure": rows}


def line_styles() -> tuple[LineStyles, LineStyles]:
    """Curves as I varies (at s = 30%) and as s varies (at I = 4).

    As in the paper, colours tell the settings apart and line styles the algorithms.
    """
    by_steps = {PARALLEL_CASE: (NAMES[PARALLEL], "#000000", ":")}
    by_similarity = dict(by_steps)
    for algorithm, style in (("celgc", "--"), ("episode", "-")):
        name = NAMES[algorithm]
        for colour, i in zip(
            ("#0072B2", "#E69F00", "#009E73", "#CC79A7"), LOCAL_STEPS, strict=True
        ):
            by_steps[Case(algorithm, i, 30)] = (f"{name}, I = {i}", colour, style)
        for colour, s in zip(("#D55E00", "#56B4E9", "#7F7F7F"), SIMILARITIES, strict=True):
            by_similarity[Case(algorithm, 4, s)] = (f"{name}, s = {s}%", colour, style)
    return by_steps, by_similarity
