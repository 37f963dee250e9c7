"""Figure of the rounds R against ε, I and N: Theorem 1, and the methods of the complexity table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from episode.results.figures import as_image, new_figure
from episode.results.store import write_bytes
from episode.theory.complexity import METHODS, Scenario
from episode.theory.constants import within_floats
from episode.theory.plan import TheoremPlan

STYLES: dict[str, tuple[str, str]] = {
    "Local SGD": ("#009E73", "-."),
    "SCAFFOLD": ("#D55E00", "-."),
    "Clipped SGD": ("#7F7F7F", ":"),
    "Clipping Framework": ("#000000", ":"),
    "CELGC": ("#E69F00", "-"),
    "EPISODE": ("#0072B2", "-"),
}
"""Colour and line of each method, from the palette of Okabe and Ito as in all other figures."""


FLAT = 1.5
"""A curve that changes by less than this factor over its panel counts as flat."""


@within_floats()
def draw_plan(made: TheoremPlan, scenario: Scenario, path: Path) -> None:
    """Write a PNG or SVG (by the ending of the name) of R against ε, I and N."""
    figure = new_figure(figsize=(14, 4.8))
    axes = figure.subplots(1, 3, sharey=True)
    tolerances = [made.epsilon * 2.0**-k for k in range(9)]
    _draw_panel(axes[0], made, scenario, "epsilon", tolerances)
    _draw_panel(axes[1], made, scenario, "local_steps", [2**k for k in range(13)])
    _draw_panel(axes[2], made, scenario, "clients", [2**k for k in range(11)])
    N, I = f"N = {made.clients} clients", f"I = {made.local_steps} local steps"
    axes[0].invert_xaxis()
    axes[0].set(xlabel="ε, tolerance (stricter to the right)", title=f"{N}, {I}")
    axes[1].set(xlabel="I, local steps per round", title=f"{N}, ε = {made.epsilon:g}")
    axes[2].set(xlabel="N, clients", title=f"{I}, ε = {made.epsilon:g}")
    axes[0].set_ylabel("R, communication rounds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"Rounds until the mean gradient norm is at most 3ε; 3ε = {3 * made.epsilon:g} is asked for"
        "\nTheorem 1 with its own factors; methods of Table 1 with every hidden factor set to 1",
        fontsize=11,
    )
    figure.set_layout_engine("constrained")
    write_bytes(path, as_image(figure, path.suffix[1:]))


def _draw_panel(
    axis: Any, made: TheoremPlan, scenario: Scenario, what: str, values: Sequence[float]
) -> None:
    rounds = [replace(made, **{what: value}).rounds for value in values]  # type: ignore[arg-type]
    axis.loglog(values, rounds, color="#0072B2", linewidth=2.4, label="EPISODE, Theorem 1")
    for name, (colour, line) in STYLES.items():
        rows = {v: METHODS[name](replace(scenario, **{what: v})) for v in values}  # type: ignore[arg-type]
        shown = {v: row.rounds for v, row in rows.items() if row.obstacle is None}
        if shown:
            axis.plot(
                *zip(*shown.items(), strict=True), line, color=colour, label=f"{name}, Table 1"
            )
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.axvline(getattr(made, what), color="#bbbbbb", linewidth=1)  # where the plan is
    if max(rounds) < FLAT * min(rounds):
        axis.text(
            0.5, 0.5, _why_flat(made, what), transform=axis.transAxes, ha="center", va="center",
            color="#555555",
        )  # fmt: skip
    elif what != "epsilon":
        _mark_largest_local_steps(axis, made, what, values)


def _why_flat(made: TheoremPlan, what: str) -> str:
    """Say why the theorem's R does not depend on I or N here."""
    more = "local steps" if what == "local_steps" else "clients"
    bound = {"noise": "noise", "drift": "drift"}.get(made.binding, "drift in noise")
    return (
        f"More {more} do not save rounds here:\n{bound} limits the step size η,\n"
        f"as I is above I_max = {made.largest_local_steps:.3g}"
    )


def _mark_largest_local_steps(
    axis: Any, made: TheoremPlan, what: str, values: Sequence[float]
) -> None:
    """Mark where noise stops limiting η: at I = I_max, which is proportional to 1/N."""
    at_one_client = replace(made, clients=1).largest_local_steps
    limit = at_one_client / (made.clients if what == "local_steps" else made.local_steps)
    if values[0] <= limit <= values[-1]:
        axis.axvline(limit, color="#777777", linewidth=1, linestyle="--")
        name = "I_max" if what == "local_steps" else "I_max = I at N"
        axis.annotate(f" {name} = {limit:.3g}", (limit, 0.02), xycoords=("data", "axes fraction"))
