"""Pictures of a diagnosis: smoothness, heterogeneity, noise, and short runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from episode.diagnosis.diagnose import Diagnosis
from episode.diagnosis.rehearsal import CLIPPED, PLAIN
from episode.results.figures import as_image, new_figure

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"


def draw(d: Diagnosis, kind: str = "svg") -> dict[str, bytes]:
    """Each picture by its name, as SVG or PNG."""
    made = {}
    for name, panel in PANELS.items():
        figure = new_figure(figsize=(6.4, 4.2), layout="constrained")
        axis = figure.subplots()
        panel(axis, d)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
        made[name] = as_image(figure, kind)
    return made


def smoothness(axis: Any, d: Diagnosis) -> None:
    """Smoothness against gradient norm, log-log, with the envelope."""
    e = d.estimates
    on_path = [c for p in d.points for c in p.path]
    by_hessian = [c for p in d.points for c in p.hessian]
    for name, found, colour, mark in (
        ("along the path, one batch", on_path, ORANGE, "x"),
        ("top eigenvalue of the Hessian", by_hessian, BLUE, "o"),
    ):
        shown = [(c.gradient_norm, c.smoothness) for c in found if c.smoothness > 0]
        if shown:
            x, y = zip(*shown, strict=True)
            axis.plot(x, y, mark, color=colour, ms=4.5, alpha=0.7, label=name)
    norms = [
        c.gradient_norm for p in d.points for c in (p.hessian or p.path) if c.gradient_norm > 0
    ]
    if norms:
        span = np.geomspace(min(norms), max(norms), 100)
        label = f"envelope {e.L0:.3g} + {e.L1:.3g}·‖∇f_i‖"
        axis.plot(span, e.L0 + e.L1 * span, color=GREY, label=label)
    axis.set(xscale="log", yscale="log", xlabel="‖∇f_i‖", ylabel="smoothness")


def heterogeneity(axis: Any, d: Diagnosis) -> None:
    """Clients' gradient norms against the global one, with the envelope."""
    pairs = [(p.gradient_norm, n) for p in d.points for n in p.client_norms]
    axis.plot(*zip(*pairs, strict=True), "o", color=BLUE, ms=4, alpha=0.6, label="clients")
    x = np.linspace(0, max(p.gradient_norm for p in d.points), 100)
    e = d.estimates
    label = f"envelope {e.kappa:.3g} + {e.rho:.3g}·‖∇f‖"
    axis.plot(x, e.kappa + e.rho * x, color=GREY, label=label)
    axis.plot(x, x, ":", color=GREY, label="no heterogeneity")
    axis.set(xlabel="‖∇f‖", ylabel="‖∇f_i‖")


def noise(axis: Any, d: Diagnosis) -> None:
    """Noise of a batch, disagreement of clients and the signal, along the path."""
    steps = [p.step + 1 for p in d.points]
    axis.plot(steps, [p.gradient_norm for p in d.points], "-", color=BLUE, label="‖∇f‖")
    axis.plot(steps, [p.disagreement for p in d.points], "--", color=RED, label="clients differ by")
    middle = [float(np.median(p.noise)) for p in d.points]
    axis.plot(steps, middle, "-.", color=GREEN, label="noise of a batch (median client)")
    axis.fill_between(
        steps, [min(p.noise) for p in d.points], [max(p.noise) for p in d.points],
        color=GREEN, alpha=0.15, label="noise, all clients",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="step of the path, from 1", ylabel="norm")


def step_sizes(axis: Any, d: Diagnosis) -> None:
    """Where f ended in short runs, against η: clipped and plain."""
    first = d.rehearsal.plain.local_steps
    for name, label, colour, mark in (
        (CLIPPED, "clipped", BLUE, "o-"),
        (PLAIN, "plain", ORANGE, "x--"),
    ):
        found = [t for t in d.rehearsal.trials if (t.algorithm, t.local_steps) == (name, first)]
        _ends(axis, d, [(t.eta, t.after) for t in found], label, colour, mark)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    axis.set(xlabel=f"η (I = {first})")


def local_steps(axis: Any, d: Diagnosis) -> None:
    """Where f ended in short runs, against I: with corrections and without."""
    chosen, r = d.rehearsal.chosen, d.rehearsal
    found = [t for t in r.trials if (t.algorithm, t.eta) == (chosen.algorithm, chosen.eta)]
    pairs = [(t.local_steps, t.after) for t in found]
    _ends(axis, d, pairs, f"{chosen.algorithm}, η = {chosen.eta:.2g}", BLUE, "o-")
    for trial, colour, mark in ((r.uncorrected, ORANGE, "x"), (r.remembered, GREEN, "+")):
        _ends(axis, d, [(trial.local_steps, trial.after)], trial.algorithm, colour, mark)
    counts = sorted({t.local_steps for t in found})
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(c) for c in counts])
    axis.set(xlabel="I, local steps in a round (equally many iterations)")


def _ends(axis: Any, d: Diagnosis, pairs: Any, label: str, colour: str, mark: str) -> None:
    """Points and their start; what ended beyond twice the start is shown there."""
    before = d.rehearsal.plain.before
    shown = sorted((x, min(y, before + abs(before))) for x, y in pairs)
    axis.plot(*zip(*shown, strict=True), mark, color=colour, ms=7, label=label)
    axis.axhline(before, color=GREY, linewidth=1)
    axis.set(ylabel=f"f after {d.rehearsal.iterations} iterations (line: before)")


PANELS = {
    "Smoothness against gradient norm": smoothness,
    "Clients' norms against the global norm": heterogeneity,
    "Short runs: step size": step_sizes,
    "Short runs: local steps": local_steps,
    "Noise, disagreement and signal": noise,
}
