"""Commands that use the theory: `episode plan` and `episode diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli.terminal import AsJson, Quiet, Settings, err, judged, out, strict
from episode.diagnosis.saved_constants import DEFAULT, read_saved_constants
from episode.errors import EpisodeError
from episode.results.figures import PICTURES, check_target, new_figure
from episode.results.tables import Table
from episode.theory.complexity import Scenario, comparison, fewest, table
from episode.theory.constants import Constants, within_floats
from episode.theory.plan import Condition, TheoremPlan, plan as make_plan
from episode.theory.plan_figure import draw_plan

if TYPE_CHECKING:
    from episode.diagnosis.diagnose import Diagnosis


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(
        epilog="Example: episode plan --L0 1 --L1 1 --sigma 1 --kappa 1 --rho 2 --epsilon 0.1"
    )(plan)
    app.command(epilog="Example: episode diagnose digits --html digits.html")(diagnose)


def _option(text: str, default: str, *names: str) -> Any:
    """Declare an option whose default applies only without --from."""
    return typer.Option(*names, help=text, show_default=default)


@within_floats()
def plan(
    L0: Annotated[
        float | None,
        _option("Curvature bound: ‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖, where f_i is the loss of client i.",
                "1", "--L0"),
    ] = None,
    L1: Annotated[
        float | None,
        _option("How fast curvature may grow with the gradient (see --L0); 0 if it does not.",
                "1", "--L1"),
    ] = None,
    sigma: Annotated[float | None, _option("σ: bound on the noise of a gradient.", "1")] = None,
    kappa: Annotated[
        float | None,
        _option("κ: how much clients differ, ‖∇f_i‖ ≤ κ + ρ‖∇f‖, where f is the mean of the f_i; "
                "0 (with ρ = 1) if all are alike.", "1"),
    ] = None,
    rho: Annotated[float | None, _option("ρ: see --kappa; 1 or more.", "2")] = None,
    delta: Annotated[
        float | None, _option("Δ: how far the loss can fall, f(x_0) - min f.", "1")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="ε: tolerance; the mean gradient norm will be at most 3ε.")
    ] = 0.1,
    clients: Annotated[int | None, _option("N: number of clients.", "8", "--clients", "-N")] = None,
    local_steps: Annotated[
        int | None, _option("I: local steps of a client per round.", "8", "--local-steps", "-I")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take what is not given from a diagnosis "
                     "(`episode diagnose TASK --json > FILE`)."),
    ] = None,
    C: Annotated[
        float, typer.Option("--C", help="C of the paper's Lemmas 5 and 6; it sets A and B.")
    ] = 1.0,
    statement: Annotated[
        str, typer.Option(help="Theorem 1 as in the main text or the appendix: main, appendix.")
    ] = "main",
    smoothness: Annotated[
        float | None,
        typer.Option(help="L: curvature bound that holds everywhere, for methods that need it."),
    ] = None,
    eta: Annotated[
        float | None, typer.Option(help="η: step size of your own to check (with --gamma).")
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="γ: clipping parameter of your own to check (with --eta); gradients "
                     "with a norm above γ/η are clipped."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the rounds R against ε, I and N as PNG or SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Plan a run by the paper's Theorem 1: step size, clipping, rounds and local steps.

    Also compares the communication of six methods. The theorem assumes the worst case: to find
    settings for training, use `episode diagnose`.
    """
    known = read_saved_constants(source) if source else DEFAULT
    constants = known.override(
        {"L0": L0, "L1": L1, "sigma": sigma, "kappa": kappa, "rho": rho, "delta": delta}
    )
    clients = known.clients if clients is None else clients
    local_steps = known.local_steps if local_steps is None else local_steps
    if (eta is None) != (gamma is None):
        raise EpisodeError("Only one of --eta and --gamma is given: give both, or neither.")
    counts = {"clients": clients, "local_steps": local_steps}
    made = make_plan(constants, epsilon=epsilon, C=C, statement=statement, **counts)
    scenario = Scenario(constants, epsilon, clients, local_steps, smoothness)
    own = None if eta is None or gamma is None else made.check(eta, gamma)
    if plot:
        check_target(plot, *PICTURES)
        draw_plan(made, scenario, plot)
    if as_json:
        values = made.to_dict() | comparison(scenario)
        values["estimated_from"] = known.title if source else None
        if own:
            conditions = [c.to_dict() for c in own]
            values["own"] = {"eta": eta, "gamma": gamma, "conditions": conditions}
        out.print_json(data=strict(values))
        return
    if source:
        _print_source(known.title, constants)
    _print_plan(made)
    if own:
        out.print(f"\nYour own η = {eta:g}, γ = {gamma:g}", style="bold")
        _print_conditions(own)
    _print_methods(scenario)
    if plot:
        out.print(f"\nFigure: {plot}")


def diagnose(
    what: Annotated[
        str | None, typer.Argument(help="Name of a task, a TOML config, or the folder of a run.")
    ] = None,
    settings: Settings = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a report with figures, which opens offline.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent to measure along.")] = 40,
    points: Annotated[int, typer.Option(help="Points of this descent to measure at.")] = 12,
    batches: Annotated[int, typer.Option(help="Batches per client to measure on.")] = 8,
    rehearsal: Annotated[
        int, typer.Option(help="Iterations of each short test run that tries out settings.")
    ] = 128,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure curvature, noise and differences between clients, and recommend how to train.

    It tells whether gradient clipping, corrections for client drift, and measuring how far these
    still hold are worth it, and which step size and number of local steps to start from. For the
    folder of a run, measuring starts from its checkpoint.
    """
    from episode.diagnosis.options import DiagnosisOptions
    from episode.diagnosis.target import read_target

    options = DiagnosisOptions(steps=steps, points=points, batches=batches, rehearsal=rehearsal)
    if html:  # fail now rather than after a minute of measuring
        new_figure()
        check_target(html)
    target = read_target(what, settings or [])
    observe = (lambda _: None) if quiet else (lambda text: err.print(f"{text} ..."))
    found = target.diagnose(options, observe)
    if html:
        from episode.diagnosis.report import write_html

        write_html(found, html)
    if as_json:
        out.print_json(data=strict(found.to_dict()))
        return
    _print_diagnosis(found)
    if html:
        out.print(f"\nReport: {html}")


def _print_diagnosis(d: Diagnosis) -> None:
    from episode.diagnosis.findings import GLOSSARY
    from episode.diagnosis.report import estimates_table

    out.print(f"Diagnosis of {d.title}", style="bold", end="")
    out.print(f": {d.clients} clients, {d.parameters:,} parameters, measured at {len(d.points)} "
              f"points in {d.seconds:.0f} s")  # fmt: skip
    out.print(GLOSSARY)
    for f in d.verdict.findings:
        out.print(f"\n{f.question} ", end="")
        out.print(f.answer, style="bold")
        out.print(f"  {f.because}")
    out.print()
    out.print(estimates_table(d))
    out.print("\nLimits of this diagnosis", style="bold")
    for line in (*d.verdict.unknown, *d.notes):
        out.print(f"- {line}")


def _print_source(title: str, constants: Constants) -> None:
    values = ", ".join(f"{name} = {value:.4g}" for name, value in vars(constants).items())
    out.print(
        f"With the constants that `episode diagnose` estimated for {title}: {values}. They were "
        "measured along one path, but the theorem wants bounds that hold everywhere: what follows "
        "is no guarantee.\n",
    )


def _print_plan(made: TheoremPlan) -> None:
    alike = "all clients alike" if made.constants.homogeneous else "clients that differ"
    out.print("Theorem 1 of the paper", style="bold", end="")
    out.print(f" ({made.statement} statement, {alike})")
    limit = made.largest_local_steps
    speed_up = f"{limit:.4g}, the largest I at which N clients are N times as fast as one"
    if limit < 1:
        speed_up = f"{limit:.4g}: at no I are N clients N times as fast as one"
    if made.constants.sigma == 0:
        speed_up = "none: without noise, more clients do not shorten the run"
    s, clips = made.smoothing, made.constants.L1 > 0
    lines = {
        "η at most": f"{made.eta:.6g}, the step size (limited by its {made.binding} bound)",
        "γ/η": f"{made.threshold:.6g}, the gradient norm above which steps are clipped"
        if clips else "∞: never clip, since L1 = 0",
        "γ": f"{made.gamma:.6g}, the clipping parameter" if clips else "∞",
        "R at least": f"{made.rounds:,} rounds of I = {made.local_steps} local steps",
        "T = RI": f"{made.iterations:,} iterations per client",
        "I_max": speed_up,
        "A, B, Γ": f"{s.A:.4g}, {s.B:.4g}, {made.Gamma:.6g}, factors of the conditions below",
        "Result": f"the mean gradient norm of all rounds is at most 3ε = {3 * made.epsilon:g}",
    }  # fmt: skip
    for name, text in lines.items():
        out.print(f"  {name:<12} {text}")
    out.print("\nConditions of the theorem", style="bold")
    _print_conditions(made.conditions)


def _print_conditions(conditions: Sequence[Condition]) -> None:
    for c in conditions:
        out.print("  holds  " if c.holds else "  FAILS  ", style=judged(c.holds), end="")
        out.print(f"{c.name:<24}{c.formula}: {c.value:.4g}, bound {c.bound:.4g}")


def _print_methods(scenario: Scenario) -> None:
    out.print("\nSix methods", style="bold", end="")
    out.print(
        f" at N = {scenario.clients}, I = {scenario.local_steps} "
        "(Table 1 of the paper, with every hidden factor set to 1)\n"
        "Best T is the number of iterations at the best I; it is reached for I up to I_max."
    )
    costs = table(scenario)
    rows = []
    for cost in costs:
        values = (cost.rounds, cost.iterations, cost.best_iterations, cost.largest_local_steps)
        rows.append([cost.method + (" *" if cost.obstacle else ""), *map(_short, values)])
    out.print(Table("", ["method", "rounds R", "iterations T", "best T", "I_max"], rows))
    for cost in costs:
        if cost.obstacle:
            out.print(f"* The theory of {cost.method} does not apply: {cost.obstacle}.")
    winners = {what: ", ".join(fewest(costs, what)) or "none" for what in ("rounds", "iterations")}
    out.print(" ".join(f"Fewest {what}: {names}." for what, names in winners.items()) + "\n")
    steps = (1, 4, 16, 64, 256)
    rows = []
    for N in (1, 8, 64):
        scenarios = [replace(scenario, clients=N, local_steps=I) for I in steps]
        rows.append([f"N = {N}", *(", ".join(fewest(table(s))) or "none" for s in scenarios)])
    out.print(Table("", ["fewest rounds at", *(f"I = {I}" for I in steps)], rows, left=6))


def _short(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3g}"
