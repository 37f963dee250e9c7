"""What the measurements mean, in words: each finding with the figure it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from episode.theory.constants import Smoothing
from episode.theory.estimate import Estimates
from episode.theory.local_steps import Trial, most_useful
from episode.theory.measure import Point
from episode.theory.plan import threshold_of

PRICE = 5.0
"""Clipping is needed where the largest smoothness on the path is this many times that of its
smoothest quarter, and rises with the gradient: a step size that suits that quarter is then far past
the edge of stability (which is at 2) elsewhere. A convention of ours: see docs/theory.md for how
far networks on either side are from it."""
DISAGREEMENT = 0.3
"""Corrections are not needed where clients differ by less than this share of ‖∇f‖."""


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
    correction: bool
    algorithm: str
    eta: float
    threshold: float
    """γ/η to start from; infinite where nothing needs clipping."""
    theorem_threshold: float
    """γ/η of Theorem 1 for the estimated constants; NaN where they admit none."""
    local_steps: int
    price: float
    """Largest smoothness on the path over its lower quartile: what a fixed step size costs."""
    quantiles: dict[str, float]
    """Of ‖G_r‖ over all points and batches."""
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"findings": [f.to_dict() for f in self.findings]}


def starting_threshold(points: Sequence[Point], e: Estimates) -> tuple[float, dict[str, float]]:
    """γ/η = L0/(L1ρ), where smoothness begins to grow, kept within the usual ‖G_r‖; and quantiles.

    It is the theorem's AL0/(BL1ρ) without its 11σ, which exceeds any gradient that is ever seen.
    """
    norms = [n for p in points for n in p.sampled_norms]
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    quantiles = {f"{s:.0%}": float(np.quantile(norms, s)) for s in shares}
    start = e.L0 / (e.L1 * e.rho) if e.L1 > 0 else math.inf
    return min(max(start, quantiles["10%"]), quantiles["50%"]), quantiles


def starting_eta(sizes: Sequence[float]) -> float:
    """The median of the accepted steps."""
    return float(np.median(sizes))


def judge(
    points: Sequence[Point], e: Estimates, sizes: Sequence[float], trials: Sequence[Trial]
) -> Verdict:
    """The verdict, from points, estimates, accepted steps and rounds tried."""
    seen = [c for p in points for c in (p.hessian or p.path)]
    smoothness = [c.smoothness for c in seen]
    largest, usual = max(smoothness), float(np.quantile(smoothness, 0.25))
    price = largest / usual if usual > 0 else 1.0
    rises = rank_correlation([c.gradient_norm for c in seen], smoothness)
    clipping = price >= PRICE and rises > 0
    against_noise = float(
        np.median([p.disagreement / max(_middle(p.noise), 1e-30) for p in points])
    )
    against_signal = float(
        np.median([p.disagreement / max(p.gradient_norm, 1e-30) for p in points])
    )
    correction = against_noise > 1 and against_signal > DISAGREEMENT
    threshold, quantiles = starting_threshold(points, e)
    constants = e.constants()
    theorem = threshold_of(constants, Smoothing()) if constants else math.nan
    eta = starting_eta(sizes)
    steps = most_useful(trials, "corrected" if correction else "uncorrected")
    algorithm = {
        (True, True): "episode_guarded",
        (True, False): "celgc",
        (False, True): "scaffold",
        (False, False): "fedavg",
    }[clipping, correction]
    threshold = threshold if clipping else math.inf
    findings = (
        Finding(
            "Is clipping needed?",
            "yes" if clipping else "no",
            f"the largest smoothness on the path, {largest:.3g}, is {price:.1f} times that of its "
            f"smoothest quarter, {usual:.3g}, and its rank correlation with the gradient norm is "
            f"{rises:+.2f} ({PRICE:g} or more and above 0 mean yes: no one step size suits all); "
            f"the envelope is {e.L0:.3g} + {e.L1:.3g}·‖∇f_i‖, from the {e.smoothness_from}, with "
            f"L1 from {e.smoothness.slope_range[0]:.3g} to {e.smoothness.slope_range[1]:.3g}",
        ),
        Finding(
            "Are corrections needed?",
            "yes" if correction else "no",
            f"clients differ by {against_noise:.2g} times the noise of a batch and by "
            f"{against_signal:.2g} times ‖∇f‖ (medians; above 1 and {DISAGREEMENT:g} means yes); "
            f"the envelope of ‖∇f_i‖ is {e.kappa:.3g} + {e.rho:.3g}·‖∇f‖",
        ),
        _threshold_finding(threshold, theorem, quantiles),
        Finding(
            "Which step size?",
            f"η = {eta:.2g} to start from",
            f"the median of the {len(sizes)} steps along -∇f that lowered f as they should; "
            f"1/(largest smoothness) is {1 / largest if largest else math.inf:.2g}",
        ),
        _steps_finding(steps, trials, correction),
        Finding("Which algorithm?", algorithm, _reason(algorithm)),
    )
    return Verdict(
        clipping, correction, algorithm, eta, threshold, theorem, steps, price, quantiles,
        findings, _limits(e),
    )  # fmt: skip


def _threshold_finding(start: float, theorem: float, q: dict[str, float]) -> Finding:
    beside = f"Theorem 1 with these estimates says {theorem:.3g}"
    if math.isinf(theorem):
        beside = "Theorem 1, whose L1 is estimated as 0 here, would never clip"
    if math.isnan(theorem):
        beside = "Theorem 1 needs an L0 above 0, and none was seen"
    norms = f"‖G_r‖ was from {q['10%']:.2g} to {q['90%']:.2g} (10% to 90%), median {q['50%']:.2g}"
    if math.isinf(start):
        return Finding("Where should γ/η be?", "nowhere: do not clip", f"{norms}; {beside}")
    why = f"L0/(L1ρ), where smoothness begins to grow, kept within the usual norms: {norms}"
    return Finding("Where should γ/η be?", f"{start:.2g} to start from", f"{why}; {beside}")


def _steps_finding(steps: int, trials: Sequence[Trial], correction: bool) -> Finding:
    what = "corrected" if correction else "uncorrected"
    shown = [t for t in trials if t.local_steps in (1, steps, trials[-1].local_steps)]
    changes = ", ".join(f"{getattr(t, what):+.2g} at I = {t.local_steps}" for t in shown)
    more = "; more were not tried" if steps == trials[-1].local_steps else ""
    return Finding(
        "How many local steps before drift dominates?",
        f"about {steps}",
        f"one {what} round with these η and γ changed f by {changes}{more}",
    )


def _reason(algorithm: str) -> str:
    return {
        "episode_guarded": "clips and corrects; `episode` is the same while every round is clipped",
        "celgc": "clips; corrections would add noise and an exchange for nothing",
        "scaffold": "corrects; nothing needs clipping (episode_unclipped corrects more freshly)",
        "fedavg": "nothing needs clipping or correcting, and it talks least",
    }[algorithm]


def _limits(e: Estimates) -> tuple[str, ...]:
    return (
        "Constants are those of the path walked here: where training goes elsewhere, they may be "
        "larger. L0, L1, κ and ρ are bounds over all x, and no measurement can give those.",
        f"Δ is at least {e.delta:.3g}, the way down seen; how far the minimum lies below is not "
        "known.",
        "The noise is that of this batch size; Assumption 1 asks for a bound that always holds, "
        "and 95% of what was seen is not that.",
        "Whether clipping is needed depends on η: with one small enough for the sharpest point, "
        "it is not. The answer is for an η that suits the smoothest quarter of the path.",
        "Local steps are judged by one round; over a whole run fewer may be better.",
        "η, γ/η and I are where to start tuning, not where it ends.",
    )


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: +1 where y rises whenever x does; 0 where one of them does not vary."""
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y)]
    if min(np.ptp(x), np.ptp(y)) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))
