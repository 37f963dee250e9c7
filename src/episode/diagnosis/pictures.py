"""Figures of a diagnosis: curvature, differences between clients, noise, and the short runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from episode.diagnosis.decisions import CLIPPED, PLAIN, TRUSTED, ShortRun, matching
from episode.diagnosis.diagnose import Diagnosis
from episode.results.figures import as_image, new_figure

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"


def draw(d: Diagnosis) -> dict[str, str]:
    """Return each figure by its title, as an SVG element."""
    made = {}
    for name, panel in PANELS.items():
        figure = new_figure(figsize=(6.4, 4.2), layout="constrained")
        axis = figure.subplots()
        panel(axis, d)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
        image = as_image(figure, "svg").decode()
        made[name] = image[image.index("<svg") :]  # without the declarations of a file of its own
    return made


def smoothness(axis: Any, d: Diagnosis) -> None:
    """Draw curvature against gradient norm, log-log, with its bound."""
    e = d.estimates
    on_path = [c for p in d.points for c in p.path]
    by_hessian = [c for p in d.points for c in p.hessian]
    for name, found, colour, mark in (
        ("from gradients along the path", on_path, ORANGE, "x"),
        ("norm of the Hessian", by_hessian, BLUE, "o"),
    ):
        shown = [(c.gradient_norm, c.smoothness) for c in found if c.smoothness > 0]
        if shown:
            axis.plot(*zip(*shown, strict=True), mark, color=colour, ms=4.5, alpha=0.7, label=name)
    norms = [c.gradient_norm for c in by_hessian or on_path if c.gradient_norm > 0]
    if norms:
        span = np.geomspace(min(norms), max(norms), 100)
        label = f"bound {e.L0:.3g} + {e.L1:.3g}·‖∇f_i‖"
        axis.plot(span, e.L0 + e.L1 * span, color=GREY, label=label)
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="gradient norm of a client, ‖∇f_i‖", ylabel="curvature of its loss")


def heterogeneity(axis: Any, d: Diagnosis) -> None:
    """Draw the clients' gradient norms against the global one, with their bound."""
    pairs = [(p.gradient_norm, n) for p in d.points for n in p.client_norms]
    axis.plot(*zip(*pairs, strict=True), "o", color=BLUE, ms=4, alpha=0.6, label="clients")
    x = np.linspace(0, max(p.gradient_norm for p in d.points), 100)
    e = d.estimates
    label = f"bound {e.kappa:.3g} + {e.rho:.3g}·‖∇f‖"
    axis.plot(x, e.kappa + e.rho * x, color=GREY, label=label)
    axis.plot(x, x, ":", color=GREY, label="if all clients were alike")
    axis.set(xlabel="global gradient norm, ‖∇f‖", ylabel="gradient norm of a client, ‖∇f_i‖")


def noise(axis: Any, d: Diagnosis) -> None:
    """Draw the noise of a batch, the disagreement of clients and the gradient along the path."""
    steps = [p.step + 1 for p in d.points]
    axis.plot(steps, [p.gradient_norm for p in d.points], "-", color=BLUE, label="gradient, ‖∇f‖")
    difference = [p.disagreement for p in d.points]
    axis.plot(steps, difference, "--", color=RED, label="difference between clients")
    low, middle, high = np.quantile([p.noise for p in d.points], [0, 0.5, 1], axis=1)
    axis.plot(steps, middle, "-.", color=GREEN, label="noise of a batch (median client)")
    band = {"color": GREEN, "alpha": 0.15, "label": "noise of a batch (all clients)"}
    axis.fill_between(steps, low, high, **band)
    axis.set(xscale="log", yscale="log", xlabel="step of gradient descent, from 1", ylabel="norm")


def step_sizes(axis: Any, d: Diagnosis) -> None:
    """Draw the final loss of short runs against η: with clipping, without, with measured trust."""
    first, at = d.short_runs.plain.local_steps, d.short_runs.trusted.local_steps
    trusted = "measured trust" if at == first else f"measured trust, I = {at}"
    for name, steps, label, colour, mark in (
        (CLIPPED, first, "with clipping", BLUE, "o-"),
        (PLAIN, first, "without clipping", ORANGE, "x--"),
        (TRUSTED, at, trusted, GREEN, "+:"),
    ):
        found = matching(d.short_runs.runs, algorithm=name, local_steps=steps)
        _final_losses(axis, d, "eta", found, label, colour, mark)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    axis.set(xlabel=f"η, step size (with I = {first} local steps per round)")


def local_steps(axis: Any, d: Diagnosis) -> None:
    """Draw the final loss of short runs against I, with corrections and without."""
    chosen, runs = d.short_runs.chosen, d.short_runs
    found = matching(runs.runs, algorithm=chosen.algorithm, eta=chosen.eta)
    label = f"{chosen.algorithm}, η = {chosen.eta:.2g}"
    _final_losses(axis, d, "local_steps", found, label, BLUE, "o-")
    for run, colour, mark in ((runs.uncorrected, ORANGE, "x"), (runs.remembered, RED, "s")):
        _final_losses(axis, d, "local_steps", [run], run.algorithm, colour, mark)
    ours = matching(runs.runs, algorithm=TRUSTED, eta=runs.trusted.eta)
    label = f"{TRUSTED}, η = {runs.trusted.eta:.2g}"
    _final_losses(axis, d, "local_steps", ours, label, GREEN, "+:")
    counts = sorted({r.local_steps for r in found + ours})
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(c) for c in counts])
    axis.set(xlabel="I, local steps per round (same number of iterations)")


def _final_losses(
    axis: Any, d: Diagnosis, x: str, runs: list[ShortRun], label: str, colour: str, mark: str
) -> None:
    """Draw final losses against setting x; those over twice the initial loss are cut off."""
    before = d.short_runs.plain.before
    shown = sorted((getattr(r, x), min(r.after, before + abs(before))) for r in runs)
    axis.plot(*zip(*shown, strict=True), mark, color=colour, ms=7, label=label)
    axis.axhline(before, color=GREY, linewidth=1)
    axis.set(ylabel=f"f after {d.short_runs.iterations} iterations (line: at the start)")


PANELS = {
    "Curvature against gradient norm": smoothness,
    "Gradient norms of clients": heterogeneity,
    "Short runs: step size": step_sizes,
    "Short runs: local steps": local_steps,
    "Gradient, differences between clients and noise": noise,
}
