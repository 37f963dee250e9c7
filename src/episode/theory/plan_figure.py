"""Rounds against I and N: Theorem 1 with its own numbers, and the table's methods."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from episode.results.figures import as_image, new_figure
from episode.results.store import write_bytes
from episode.theory.complexity import METHODS, Setting
from episode.theory.plan import TheoremPlan, largest_local_steps, plan

STYLES: dict[str, tuple[str, str]] = {
    "Local SGD": ("#009E73", "-."),
    "SCAFFOLD": ("#D55E00", "-."),
    "Clipped SGD": ("#7F7F7F", ":"),
    "Clipping Framework": ("#000000", ":"),
    "CELGC": ("#E69F00", "-"),
    "EPISODE": ("#0072B2", "-"),
}
"""As in the other pictures: the colours of Okabe and Ito."""


def draw_plan(made: TheoremPlan, setting: Setting, path: Path) -> None:
    """A PNG (or SVG, by the name's ending) of R against I and against N."""
    figure = new_figure(figsize=(12, 4.8))
    axes = figure.subplots(1, 2, sharey=True)
    _panel(axes[0], made, setting, "local_steps", [2**k for k in range(13)])
    _panel(axes[1], made, setting, "clients", [2**k for k in range(11)])
    axes[0].set_xlabel("I, local steps per round")
    axes[1].set_xlabel("N, clients")
    axes[0].set_ylabel("R, rounds")
    axes[0].set_title(f"N = {made.clients}")
    axes[1].set_title(f"I = {made.local_steps}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"Rounds to a mean gradient norm of 3ε, ε = {made.epsilon:g}")
    figure.set_layout_engine("constrained")
    write_bytes(path, as_image(figure, "svg" if path.suffix == ".svg" else "png"))


def _panel(axis: Any, made: TheoremPlan, setting: Setting, what: str, values: list[int]) -> None:
    prescribed = [
        plan(
            made.constants,
            epsilon=made.epsilon,
            C=made.smoothing.C,
            statement=made.statement,
            **{"clients": made.clients, "local_steps": made.local_steps} | _changed(what, value),
        )
        for value in values
    ]
    label = "EPISODE, Theorem 1"
    axis.loglog(values, [p.rounds for p in prescribed], color="#0072B2", linewidth=2.4, label=label)
    for name, method in METHODS.items():
        settings = (dataclasses.replace(setting, **_changed(what, value)) for value in values)
        rows = [method(s) for s in settings]
        shown = [(v, r.rounds) for v, r in zip(values, rows, strict=True) if r.obstacle is None]
        if shown:
            colour, line = STYLES[name]
            axis.plot(*zip(*shown, strict=True), line, color=colour, label=f"{name}, O(·) with 1")
    _mark_knee(axis, made, what, values)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _changed(what: str, value: int) -> dict[str, Any]:
    return {what: value}


def _mark_knee(axis: Any, made: TheoremPlan, what: str, values: list[int]) -> None:
    """Where the noise term stops to decide; I_max goes as 1/N, so the other panel's knee does."""
    one = largest_local_steps(made.constants, made.epsilon, 1, made.smoothing, made.statement)
    knee = one / (made.clients if what == "local_steps" else made.local_steps)
    if values[0] <= knee <= values[-1]:
        axis.axvline(knee, color="#777777", linewidth=1, linestyle="--")
        name = "I_max" if what == "local_steps" else "N with I_max = I"
        axis.annotate(f" {name} = {knee:.3g}", (knee, 0.02), xycoords=("data", "axes fraction"))
