"""What the measurements mean, in words: each finding with the figure it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from episode.diagnosis.estimate import Estimates
from episode.diagnosis.measure import Point
from episode.diagnosis.rehearsal import CLIPPED, PLAIN, REMEMBERED, UNCORRECTED, Rehearsal, Trial
from episode.theory.constants import Smoothing
from episode.theory.plan import threshold_of

HEALTHY = 0.95
"""γ/η is at most what this share of the corrected steps on the path stay below, so that clipping
stops what is out of the ordinary and leaves the rest alone. (The theorem's γ/η has 11σ in it to the
same end: noise alone never clips.) The same share as in the estimate of σ."""


@dataclass(frozen=True)
class Finding:
    """One answer, and what it rests on."""

    question: str
    answer: str
    because: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What to do, and what cannot be known from here."""

    clipping: bool
    """Whether it is needed at `eta`."""
    correction: bool
    """Whether it is needed at `eta` and `local_steps`."""
    algorithm: str
    eta: float
    threshold: float
    """γ/η to start from; infinite where nothing needs clipping."""
    theorem_threshold: float
    """γ/η of Theorem 1 for the estimated constants; NaN where they admit none."""
    local_steps: int
    plain_eta: float
    """The η chosen for plain steps: up to here they do without clipping."""
    clipping_from: float | None
    """The smallest η tried at which plain steps fell off and clipped ones did not."""
    price: float
    """Largest smoothness on the path over its lower quartile."""
    quantiles: dict[str, float]
    """Of ‖G_r‖ over all points and batches."""
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"findings": [f.to_dict() for f in self.findings]}


def healthy_norm(points: Sequence[Point]) -> float:
    """The norm that most corrected local steps on the path stay below."""
    return float(np.quantile([n for p in points for n in p.step_norms], HEALTHY))


def theorem_threshold(e: Estimates) -> float:
    """γ/η of Theorem 1 for the estimates; NaN where they admit none."""
    constants = e.constants()
    return threshold_of(constants, Smoothing()) if constants else math.nan


def first_threshold(points: Sequence[Point], e: Estimates) -> float:
    """The smaller of the two: the theorem's is for a path that began where gradients are huge."""
    healthy, theorem = healthy_norm(points), theorem_threshold(e)
    return theorem if theorem < healthy else healthy


def first_eta(sizes: Sequence[float], losses: Sequence[float]) -> float:
    """The median of the accepted steps, where the search for η begins; f stands before each.

    Steps after all but a thousandth of the way was made do not count: near the bottom rounding
    decides what is accepted.
    """
    way = losses[0] - min(losses)
    counted = [
        size
        for size, before in zip(sizes, losses, strict=False)
        if before - min(losses) > 1e-3 * way
    ]
    return float(np.median(counted or sizes))


def judge(points: Sequence[Point], e: Estimates, sizes: Sequence[float], r: Rehearsal) -> Verdict:
    """The verdict, from points, estimates, accepted steps and short runs."""
    seen = [c for p in points for c in (p.hessian or p.path)]
    smoothness = [c.smoothness for c in seen]
    largest, usual = max(smoothness), float(np.quantile(smoothness, 0.25))
    price = largest / usual if usual > 0 else 1.0
    rises = rank_correlation([c.gradient_norm for c in seen], smoothness)
    curvature = (
        f"smoothness on the path is {usual:.3g} in its smoothest quarter and {largest:.3g} at most "
        f"(rank correlation with the gradient norm {rises:+.2f}); its envelope is {e.L0:.3g} + "
        f"{e.L1:.3g}·‖∇f_i‖, from the {e.smoothness_from}, with L1 from "
        f"{e.smoothness.slope_range[0]:.3g} to {e.smoothness.slope_range[1]:.3g}"
    )
    norms = [n for p in points for n in p.sampled_norms]
    quantiles = {f"{s:.0%}": float(np.quantile(norms, s)) for s in (0.1, 0.25, 0.5, 0.75, 0.9)}
    algorithm = _algorithm(r)
    return Verdict(
        r.clipping,
        r.correction,
        algorithm,
        r.chosen.eta,
        r.chosen.threshold if r.clipping else math.inf,
        theorem_threshold(e),
        r.chosen.local_steps,
        r.plain.eta,
        r.edge[0].eta if r.edge else None,
        price,
        quantiles,
        (
            _clipping(r, curvature),
            _correction(r, points, e),
            _threshold(r, points, e, quantiles),
            _eta(r, sizes),
            _local_steps(r),
            Finding("Which algorithm?", algorithm, _reason(algorithm, r)),
        ),
        _limits(e, r),
    )


def _algorithm(r: Rehearsal) -> str:
    steps = CLIPPED if r.clipping else PLAIN
    if not r.correction:
        return UNCORRECTED[steps]
    return steps if r.freshness else REMEMBERED[steps]


def _clipping(r: Rehearsal, curvature: str) -> Finding:
    p, c, there = r.plain, r.clipped, r.plain_there
    runs = f"in {r.iterations} iterations from f = {p.before:.3g}"
    fastest = min(_first_trials(r, CLIPPED), key=lambda t: t.half)
    halfway = f"clipped ones were at {fastest.half:.3g} half-way at best (η = {fastest.eta:.2g})"
    if r.clipping:
        answer = f"yes at η = {c.eta:.2g}"
        because = (
            f"{runs}, clipped steps came to {c.after:.3g} at that η, plain ones to "
            f"{there.after:.3g}; at their best η plain ones came to "
            f"{min(t.after for t in _first_trials(r, PLAIN)):.3g}, and {halfway}"
        )
        slow = f"; up to {p.eta:.2g} plain steps hold, and take more than twice as long"
        answer += slow if p.descends else ", and at all η that were tried"
    else:
        answer = f"not at η = {p.eta:.2g}"
        because = (
            f"{runs}, plain steps came to {p.after:.3g} at that η, clipped ones to {c.after:.3g} "
            f"at theirs, {c.eta:.2g}; {halfway}"
        )
        if r.edge:
            plain, clipped = r.edge
            answer += f"; yes at η ≥ {plain.eta:.2g}"
            because += (
                f"; at η = {plain.eta:.2g} plain steps came to {plain.after:.3g}, clipped ones to "
                f"{clipped.after:.3g}"
            )
    return Finding("Is clipping needed?", answer, f"{because}; {curvature}")


def _first_trials(r: Rehearsal, algorithm: str) -> list[Trial]:
    """The short runs of an algorithm that were made to choose its η."""
    kind = algorithm, r.plain.local_steps
    return [t for t in r.trials if (t.algorithm, t.local_steps) == kind]


def _correction(r: Rehearsal, points: Sequence[Point], e: Estimates) -> Finding:
    apart = _median([p.disagreement for p in points])
    noise = _ratio(apart, _median([n for p in points for n in p.noise]))
    signal = _ratio(apart, _median([p.gradient_norm for p in points]))
    return Finding(
        "Are corrections needed?",
        f"{'yes' if r.correction else 'no'}, at I = {r.chosen.local_steps}",
        f"with them f came to {r.chosen.after:.3g}, without to {r.uncorrected.after:.3g}, at this "
        f"η and I; clients differ by {noise} times the noise of a batch and by {signal} "
        f"times ‖∇f‖ (medians); the envelope of ‖∇f_i‖ is {e.kappa:.3g} + {e.rho:.3g}·‖∇f‖",
    )


def _threshold(r: Rehearsal, points: Sequence[Point], e: Estimates, q: dict[str, float]) -> Finding:
    theorem = theorem_threshold(e)
    beside = f"Theorem 1 with these estimates says {theorem:.3g}"
    if math.isinf(theorem):
        beside = "Theorem 1, whose L1 is estimated as 0 here, would never clip"
    if math.isnan(theorem):
        beside = "Theorem 1 needs an L0 above 0, and none was seen"
    start = r.chosen.threshold
    because = (
        f"{HEALTHY:.0%} of the corrected steps on the path are below {healthy_norm(points):.2g} "
        f"(times η), and {beside}; the smaller of the two clips only what is out of the ordinary; "
        f"‖G_r‖ was from {q['10%']:.2g} to {q['90%']:.2g} (10% to 90%), median {q['50%']:.2g}"
    )
    answer = f"{start:.2g} to start from, so γ = {start * r.chosen.eta:.2g}"
    if not r.clipping:
        answer = f"nowhere: do not clip (at {start:.2g} or more it costs next to nothing)"
    return Finding("Where should γ/η be?", answer, because)


def _eta(r: Rehearsal, sizes: Sequence[float]) -> Finding:
    tried = sorted({t.eta for t in r.trials if t.algorithm == r.chosen.algorithm})
    quarter, half, most = np.quantile(sizes, [0.25, 0.5, 0.75])
    return Finding(
        "Which step size?",
        f"η = {r.chosen.eta:.2g} to start from",
        f"the smallest of those that ended equally low, of "
        f"{', '.join(f'{eta:.2g}' for eta in tried)}; steps along -∇f that lowered f as they "
        f"should were from {quarter:.2g} to {most:.2g} (quartiles), median {half:.2g}",
    )


def _local_steps(r: Rehearsal) -> Finding:
    c = r.chosen
    tried = sorted(
        (t for t in r.trials if (t.algorithm, t.eta) == (c.algorithm, c.eta)),
        key=lambda t: t.local_steps,
    )
    shown = ", ".join(f"{t.after:.3g} ({t.half:.3g}) at I = {t.local_steps}" for t in tried)
    more = "" if r.beyond else "; more were not tried"
    return Finding(
        "How many local steps before drift dominates?",
        f"about {c.local_steps}",
        f"up to there doubling I saves rounds: it ends as low as half as many local steps were "
        f"half-way; at the end (half-way) f was {shown}{more}",
    )


def _reason(algorithm: str, r: Rehearsal) -> str:
    clips = "clips, local steps too" if r.clipping else "nothing needs clipping at this η"
    if not r.correction:
        return f"{clips}; corrections would add an exchange for nothing"
    memory = REMEMBERED[r.chosen.algorithm]
    if not r.freshness:
        return (
            f"{clips}; corrects from memory, in one exchange a round: it came to "
            f"{r.remembered.after:.3g}, fresh corrections to {r.chosen.after:.3g}"
        )
    beside = f"{memory}, which corrects from memory, came to {r.remembered.after:.3g} only"
    return f"{clips}; corrects with fresh gradients ({beside})"


def _limits(e: Estimates, r: Rehearsal) -> tuple[str, ...]:
    return (
        "Constants are those of the path walked here: where training goes elsewhere, they may be "
        "larger. L0, L1, κ and ρ are bounds over all x, and no measurement can give those.",
        f"Δ is at least {e.delta:.3g}, the way down seen; how far the minimum lies below is not "
        "known.",
        "The noise is that of this batch size; Assumption 1 asks for a bound that always holds, "
        "and 95% of what was seen is not that.",
        f"η, I and both answers are about {r.iterations} iterations from here, once each, with "
        "constant steps: a long run may want a smaller η or fewer local steps towards its end.",
        "All is about how far f comes down on the training data; what that does to a test score "
        "was not looked at.",
        "Two short runs are taken for equal where one ends no higher than the other was at some "
        "time in its last quarter; then the simpler way is named. Clipping is called needed only "
        "where plain steps end higher than clipped ones were half-way.",
        "η, γ/η and I are where to start tuning, not where it ends.",
    )


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: +1 where y rises whenever x does; 0 where one of them does not vary."""
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y)]
    if min(np.ptp(x), np.ptp(y)) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2g}" if b > 0 else "∞"


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
