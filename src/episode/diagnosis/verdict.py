"""Recommended settings, from the measurements and the short runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from episode.diagnosis import findings
from episode.diagnosis.decisions import ShortRuns
from episode.diagnosis.estimate import Estimates, usual_step_norm
from episode.diagnosis.measure import Point


@dataclass(frozen=True)
class Verdict:
    """Recommended settings, the reasons for them, and what cannot be known from here."""

    clipping: bool
    """Whether clipping is needed, at the η that suits corrected steps."""
    correction: bool
    """Whether corrections are needed, at the settings that suit corrected steps."""
    trust: bool
    """Whether measured trust gets lower than any algorithm without it."""
    algorithm: str
    eta: float
    threshold: float
    """γ/η to start from; infinite if `algorithm` does not clip."""
    theorem_threshold: float
    """γ/η of Theorem 1 for the estimated constants; NaN if it does not apply to them."""
    local_steps: int
    plain_eta: float
    """η chosen for plain steps: up to here they work without clipping."""
    clipping_from: float | None
    """Smallest η tried at which only clipped steps worked; None if there was none."""
    price: float
    """Largest smoothness on the path divided by its lower quartile."""
    quantiles: dict[str, float]
    """Quantiles of ‖G_r‖ over all points and batches."""
    findings: tuple[findings.Finding, ...]
    unknown: tuple[str, ...]
    """Limits of the diagnosis."""


def first_threshold(points: Sequence[Point], e: Estimates) -> float:
    """Return the smaller of the usual step norm and the theorem's γ/η.

    The theorem's value is the smaller one if the descent began where gradients are huge.
    """
    # In this order, a theorem's value of NaN is never the minimum.
    return min(usual_step_norm(points), e.theorem_threshold)


def first_eta(step_sizes: Sequence[float], losses: Sequence[float]) -> float:
    """Return the median accepted step size, where the search for η begins.

    Steps after 99.9% of the decrease do not count: near the minimum, rounding decides which steps
    are accepted. `losses` are those before each step.
    """
    decrease = losses[0] - min(losses)
    pairs = zip(step_sizes, losses, strict=False)
    counted = [size for size, before in pairs if before - min(losses) > 1e-3 * decrease]
    return float(np.median(counted or step_sizes))


def reach_verdict(
    points: Sequence[Point], e: Estimates, step_sizes: Sequence[float], runs: ShortRuns
) -> Verdict:
    """Draw conclusions from the points, estimates, accepted step sizes and short runs."""
    smoothness = [c.smoothness for p in points for c in p.curvature]
    usual = float(np.quantile(smoothness, 0.25))
    norms = [n for p in points for n in p.sampled_norms]
    quantiles = {f"{s:.0%}": float(np.quantile(norms, s)) for s in (0.1, 0.25, 0.5, 0.75, 0.9)}
    edge = runs.clipping_edge
    return Verdict(
        clipping=runs.needs_clipping,
        correction=runs.needs_correction,
        trust=runs.needs_trust,
        algorithm=runs.recommended.algorithm,
        eta=runs.recommended.eta,
        threshold=runs.recommended.threshold if runs.recommends_clipping else math.inf,
        theorem_threshold=e.theorem_threshold,
        local_steps=runs.recommended.local_steps,
        plain_eta=runs.plain.eta,
        clipping_from=edge[0].eta if edge else None,
        price=max(smoothness) / usual if usual > 0 else 1.0,
        quantiles=quantiles,
        findings=(
            findings.clipping(runs, points, e),
            findings.correction(runs, points, e),
            findings.trust(runs),
            findings.threshold(runs, points, e, quantiles),
            findings.step_size(runs, step_sizes),
            findings.local_steps(runs),
            findings.algorithm(runs),
        ),
        unknown=findings.limits(e, runs),
    )
