"""The findings of a diagnosis in words: answers, each with the measurements that it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from episode.diagnosis.decisions import CLIPPED, ShortRuns, Votes, matching
from episode.diagnosis.estimate import USUAL_SHARE, Estimates, usual_step_norm
from episode.diagnosis.measure import Point

GLOSSARY = (
    "f is the training loss, f_i that of client i, F_i the same on one batch, and ‖∇f‖ the norm of "
    "a gradient. η is the step size, γ/η the gradient norm above which a step is clipped, and I "
    "the number of local steps that a client takes per round."
)


_STUCK = (
    "In no short run did f fall by a tenth, and the one that got lowest hardly moved in its second "
    "half. Either there is nothing to learn, or the model is stuck, where settings look alike: try "
    "runs of more than {} iterations (rehearsal), or measure from the checkpoint of a run that "
    "learns."
)


_NOT_FIRM = "The answer is not firm, because f hardly fell at any setting."


@dataclass(frozen=True)
class Finding:
    """An answer to one question, and the reason for it."""

    question: str
    answer: str
    because: str
    """Complete sentences: what was measured, what it means, and what to do."""


def clipping(runs: ShortRuns, points: Sequence[Point], e: Estimates) -> Finding:
    """Say whether and from which η on clipping is needed."""
    plain, clipped = runs.plain, runs.clipped
    rivals = matching(runs.runs, algorithm=CLIPPED, local_steps=plain.local_steps)
    halfway = min(r.half for r in rivals)
    because = (
        f"In short runs of {runs.iterations} iterations f began at {plain.before:.3g}. Plain "
        f"(unclipped) steps with η = {plain.eta:.2g} ended at {plain.after:.3g}, clipped steps "
        f"with η = {clipped.eta:.2g} at {clipped.after:.3g}. The fastest clipped run was at "
        f"{halfway:.3g} halfway, so clipping is"
    )
    if runs.needs_clipping:
        slow = f"up to η = {plain.eta:.2g} plain steps work, but take more than twice as long"
        rest = f"; {slow}" if plain.descends else ", and at every η that was tried"
        answer = f"yes at η = {clipped.eta:.2g}{rest}"
        because += (
            " more than twice as fast: use it. Plain steps with the η of clipped ones "
            f"ended at {runs.plain_there.after:.3g}."
        )
    else:
        answer = f"not at η = {plain.eta:.2g}"
        because += " not more than twice as fast: corrected steps do without it."
        if edge := runs.clipping_edge:
            answer += f"; yes at η ≥ {edge[0].eta:.2g}"
            because += (
                f" But at η = {edge[0].eta:.2g}, plain steps ended at {edge[0].after:.3g} and "
                f"clipped ones at {edge[1].after:.3g}: clip if you use step sizes that large."
            )
    firm = _firmness(runs, runs.clipping)
    return Finding("Is clipping needed?", answer, f"{because} {firm} {_curvature(points, e)}")


def _firmness(runs: ShortRuns, votes: Votes) -> str:
    """Say in how many repeats with other batches the answer was the same."""
    count = len(votes.votes)
    if runs.stuck:
        return _NOT_FIRM
    if votes.agreeing == count:
        return f"The answer is firm: it was the same in {count} repeats with other batches."
    return (
        f"The answer is not firm: {votes.agreeing} of {count} repeats with other batches agreed. "
        "Take both as equally good, and try the simpler one first."
    )


def _curvature(points: Sequence[Point], e: Estimates) -> str:
    seen = [c for p in points for c in p.curvature]
    smoothness = [c.smoothness for c in seen]
    correlation = rank_correlation([c.gradient_norm for c in seen], smoothness)
    low, high = e.smoothness.slope_range
    source = "the Hessian" if e.smoothness_from == "Hessian" else "gradients along the path"
    return (
        f"The curvature of the loss, measured from {source}, is {max(smoothness):.3g} at most; its "
        f"lower quartile is {np.quantile(smoothness, 0.25):.3g}. It has a rank correlation of "
        f"{correlation:+.2f} with the gradient norm, and stays below {e.L0:.3g} + "
        f"{e.L1:.3g}·‖∇f_i‖, where the slope L1 is between {low:.3g} and {high:.3g}."
    )


def correction(runs: ShortRuns, points: Sequence[Point], e: Estimates) -> Finding:
    """Say whether corrections for client drift are needed."""
    difference = np.median([p.disagreement for p in points])
    noise = _ratio(difference, np.median([n for p in points for n in p.noise]))
    signal = _ratio(difference, np.median([p.gradient_norm for p in points]))
    chosen = runs.chosen
    advice = "use them" if runs.needs_correction else "they do not pay off, so leave them out"
    return Finding(
        "Are corrections needed?",
        f"{'yes' if runs.needs_correction else 'no'}, at I = {chosen.local_steps}",
        "Corrections keep clients from drifting towards their own data. With "
        f"η = {chosen.eta:.2g} and I = {chosen.local_steps}, f ended at {chosen.after:.3g} with "
        f"them and at {runs.uncorrected.after:.3g} without: {advice}. "
        f"{_firmness(runs, runs.correction)} In the median, client gradients differ from each "
        f"other by {noise} times the noise of a batch, and by {signal} times ‖∇f‖. They stay below "
        f"{e.kappa:.3g} + {e.rho:.3g}·‖∇f‖.",
    )


def trust(runs: ShortRuns) -> Finding:
    """Say whether corrections should be believed only as far as clients measure them to hold."""
    ours, other = runs.trusted, runs.simplest
    advice = "use it" if runs.needs_trust else "that is no better, so leave it out"
    return Finding(
        "Is measured trust worth it?",
        f"{'yes' if runs.needs_trust else 'no'}, at I = {ours.local_steps}",
        "A client can measure at every step how much of its correction still holds, and add only "
        f"that much. With this and clipping (episode_trust, η = {ours.eta:.2g}, I = "
        f"{ours.local_steps}) f ended at {ours.after:.3g}; with {other.algorithm}, η = "
        f"{other.eta:.2g}, I = {other.local_steps}, the best choice without it, at "
        f"{other.after:.3g}: {advice}. {_firmness(runs, runs.trust)}",
    )


def threshold(
    runs: ShortRuns, points: Sequence[Point], e: Estimates, quantiles: dict[str, float]
) -> Finding:
    """Say where to clip; `quantiles` are those of the averaged gradient's norm."""
    theorem = f"gives {e.theorem_threshold:.3g} for the estimated constants"
    if math.isinf(e.theorem_threshold):
        theorem = "never clips, because L1 is estimated as 0"
    if math.isnan(e.theorem_threshold):
        theorem = "does not apply, because L0 or Δ is estimated as 0"
    start = runs.recommended.threshold
    answer = f"start from {start:.2g}, so γ = {start * runs.recommended.eta:.2g}"
    if not runs.recommends_clipping:
        answer = f"none: do not clip (at {start:.2g} or more, clipping costs next to nothing)"
    usual = f"{usual_step_norm(points):.2g} (before multiplying by η)"
    return Finding(
        "Which clipping threshold γ/η?",
        answer,
        f"{USUAL_SHARE:.0%} of the corrected local steps along the path are shorter than {usual}. "
        f"Theorem 1 of the paper {theorem}. The smaller of the two clips only unusually long "
        f"steps. The norm of the averaged gradient is between {quantiles['10%']:.2g} and "
        f"{quantiles['90%']:.2g} in 80% of the samples, with a median of {quantiles['50%']:.2g}.",
    )


def step_size(runs: ShortRuns, accepted: Sequence[float]) -> Finding:
    """Say which η to start from; `accepted` are the step sizes of the line search."""
    chosen = runs.recommended if runs.needs_trust else runs.chosen
    tried = sorted({r.eta for r in matching(runs.runs, algorithm=chosen.algorithm)})
    low, middle, high = np.quantile(accepted, [0.25, 0.5, 0.75])
    return Finding(
        "Which step size?",
        f"start from η = {chosen.eta:.2g}",
        f"Of the step sizes tried ({', '.join(f'{eta:.2g}' for eta in tried)}), it is the smallest "
        "whose short run ended about as low as the best. For comparison, gradient descent with a "
        f"line search took steps of {low:.2g} to {high:.2g} (quartiles; median {middle:.2g})."
        + (f" {_NOT_FIRM} A far larger η may be what it takes." if runs.stuck else ""),
    )


def local_steps(runs: ShortRuns) -> Finding:
    """Say how many local steps per round pay off."""
    chosen = runs.recommended if runs.needs_trust else runs.chosen
    tried = matching(runs.runs, algorithm=chosen.algorithm, eta=chosen.eta)
    tried.sort(key=lambda r: r.local_steps)
    ends = ", ".join(f"{r.after:.3g} (I = {r.local_steps}, halfway {r.half:.3g})" for r in tried)
    return Finding(
        "How many local steps per round?",
        f"about I = {chosen.local_steps}",
        "Up to there, doubling I saves communication rounds: f ends as low as it was halfway "
        f"through the run with half as many local steps. f ended at {ends}."
        + ("" if runs.beyond else " Larger I were not tried.")
        + (f" {_NOT_FIRM}" if runs.stuck else ""),
    )


def algorithm(runs: ShortRuns) -> Finding:
    """Say which algorithm to use."""
    if runs.needs_trust:
        steps = runs.recommended.local_steps
        cheaper = (
            f" CELGC takes one, and with I = {steps // 2} two in as many iterations: if exchanges "
            "are what you pay for, try that, too."
        )
        return Finding(
            "Which algorithm?",
            runs.recommended.algorithm,
            "It clips steps that are too long, and corrects for client drift with fresh gradients "
            "as far as each client measures them to hold. That takes two exchanges per round."
            f"{cheaper if steps % 2 == 0 else ''} The "
            f"best choice without measured trust is {runs.simplest.algorithm} with "
            f"η = {runs.simplest.eta:.2g} and I = {runs.simplest.local_steps}.",
        )
    clips = "clips steps that are too long" if runs.needs_clipping else "does not clip"
    if not runs.needs_correction:
        because = f"It {clips} and does not correct for client drift, as found above."
    else:
        kind = "fresh" if runs.needs_fresh_correction else "stored"
        because = (
            f"It {clips} and corrects for client drift with {kind} gradients. f ended at "
            f"{runs.chosen.after:.3g} with fresh gradients, which take two exchanges per round, "
            f"and at {runs.remembered.after:.3g} with stored ones, which take one. "
            f"{_firmness(runs, runs.fresh_correction)}"
        )
    return Finding("Which algorithm?", runs.simplest.algorithm, because)


def limits(e: Estimates, runs: ShortRuns) -> tuple[str, ...]:
    """Say what the diagnosis cannot know."""
    return (
        *([_STUCK.format(runs.iterations)] if runs.stuck else []),
        "The constants were measured along one path. L0, L1, κ and ρ are bounds over all models, "
        "which no measurement can give: they may be larger where training goes.",
        f"Δ is at least {e.delta:.3g}, the decrease of f that was seen; the minimum may be lower.",
        "The noise is that of this batch size. The theory wants a bound that always holds, but σ "
        "covers only 95% of the batches that were seen.",
        f"η and I come from single short runs of {runs.iterations} iterations with a constant step "
        f"size, the other answers from {len(runs.clipping.votes)} of each. A long run may need a "
        "smaller η or fewer local steps near its end.",
        "Runs were compared by training loss only, not by a test score.",
        "Two short runs count as equal if one ends no higher than the other was at some time in "
        "its last quarter; then the simpler method is recommended. Clipping counts as needed only "
        "if plain steps end higher than clipped ones were halfway.",
        "η, γ/η and I are starting points for tuning, not its result.",
    )


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation: +1 if y rises whenever x does, 0 if either is constant."""
    if min(np.ptp(x), np.ptp(y)) == 0:
        return 0.0
    ranks = np.argsort(np.argsort([x, y]))
    return float(np.corrcoef(*ranks)[0, 1])


def _ratio(a: np.floating, b: np.floating) -> str:
    return f"{a / b:.2g}" if b > 0 else "∞"
