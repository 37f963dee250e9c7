"""The theory's commands: `episode plan` and `episode diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from episode.cli.terminal import AsJson, err, out


def _option(name: str, text: str, default: str) -> Any:
    """An option that a diagnosis may stand in for: only without one it has this default."""
    return typer.Option(name, help=text, show_default=default)


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command(
        epilog="Example: episode plan --L0 1 --L1 1 --sigma 1 --kappa 1 --rho 2 --epsilon 0.1"
    )(plan)
    app.command(epilog="Example: episode diagnose digits --html digits.html")(diagnose)


def plan(
    L0: Annotated[float | None, _option("--L0", "‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖.", "1")] = None,
    L1: Annotated[float | None, _option("--L1", "0 means L0-smooth.", "1")] = None,
    sigma: Annotated[
        float | None, _option("--sigma", "Bound on the gradients' noise.", "1")
    ] = None,
    kappa: Annotated[
        float | None, _option("--kappa", "‖∇f_i‖ ≤ κ + ρ‖∇f‖; 0 with rho 1: equal data.", "1")
    ] = None,
    rho: Annotated[float | None, _option("--rho", "1 or more.", "2")] = None,
    delta: Annotated[float | None, _option("--delta", "f(x_0) - min f.", "1")] = None,
    epsilon: Annotated[float, typer.Option(help="The mean gradient norm becomes 3ε.")] = 0.1,
    clients: Annotated[int | None, typer.Option("--clients", "-N", help="N.", show_default="8")] = (
        None
    ),
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", "-I", help="I.", show_default="8")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Take what is not given from a diagnosis (`episode diagnose TASK --json > FILE`).",
        ),
    ] = None,
    C: Annotated[float, typer.Option("--C", help="Of Lemmas 5 and 6; gives A and B.")] = 1.0,
    statement: Annotated[
        str, typer.Option(help="main or appendix: the paper states other numbers in each.")
    ] = "main",
    smoothness: Annotated[
        float | None, typer.Option(help="L, for the methods that need f to be L-smooth.")
    ] = None,
    eta: Annotated[float | None, typer.Option(help="Check your own η (with --gamma).")] = None,
    gamma: Annotated[float | None, typer.Option(help="Check your own γ (with --eta).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw R against I and N into this PNG or SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run from Theorem 1: η, γ, R and the largest useful I, and how six methods compare."""
    from episode.diagnosis.saved_constants import DEFAULT, read_estimated
    from episode.errors import EpisodeError
    from episode.theory.complexity import Setting, fewest, table
    from episode.theory.plan import check
    from episode.theory.plan import plan as make

    known = read_estimated(source) if source else DEFAULT
    constants = known.with_given(
        {"L0": L0, "L1": L1, "sigma": sigma, "kappa": kappa, "rho": rho, "delta": delta}
    )
    clients = known.clients if clients is None else clients
    local_steps = known.local_steps if local_steps is None else local_steps
    settings: dict[str, Any] = {
        "epsilon": epsilon, "clients": clients, "local_steps": local_steps,
        "C": C, "statement": statement,
    }  # fmt: skip
    if (eta is None) != (gamma is None):
        raise EpisodeError("Only one of --eta and --gamma is given: give both, or neither.")
    made = make(constants, **settings)
    setting = Setting(constants, epsilon, clients, local_steps, smoothness)
    own = None
    if eta is not None and gamma is not None:
        own = check(constants, **settings, eta=eta, gamma=gamma)
    if plot:
        from episode.results.figures import check_target
        from episode.theory.plan_figure import draw_plan

        check_target(plot, ".png", ".svg")
        draw_plan(made, setting, plot)
    rows = table(setting)
    if as_json:
        values = made.to_dict() | {"table": [row.to_dict() for row in rows]}
        values["estimated_from"] = known.title if source else None
        values["fewest_rounds"] = fewest(rows)
        values["fewest_iterations"] = fewest(rows, "iterations")
        if own is not None:
            values["own"] = {
                "eta": eta,
                "gamma": gamma,
                "conditions": [c.to_dict() for c in own],
            }
        out.print_json(data=strict(values))
        return
    if source:
        _print_source(known.title, constants)
    _print_plan(made)
    if own is not None:
        out.print(f"\n[bold]Your η = {eta:g}, γ = {gamma:g}[/bold]")
        _print_conditions(own)
    _print_table(rows, setting)
    if plot:
        out.print(f"\nPicture: {plot}", markup=False)


def diagnose(
    what: Annotated[
        str | None, typer.Argument(help="A task's name, a TOML config or a run's folder.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a value, section.key=value; may be repeated."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens offline.")] = None,
    steps: Annotated[int, typer.Option(help="Length of the path that is walked.")] = 40,
    points: Annotated[int, typer.Option(help="How many of its points are measured.")] = 12,
    batches: Annotated[int, typer.Option(help="Batches per client to measure on.")] = 8,
    rehearsal: Annotated[
        int, typer.Option(help="Iterations of each short run that tries a setting.")
    ] = 128,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No signs of life.")] = False,
) -> None:
    """Measure a task's smoothness, noise and heterogeneity; say if clipping and corrections help.

    WHAT is a task's name, a TOML config, or a run's folder: then it is measured from where the
    run's checkpoint stands.
    """
    from episode.diagnosis.target import read_subject
    from episode.diagnosis.trajectory import Options
    from episode.results.figures import check_target, new_figure

    options = Options(steps=steps, points=points, batches=batches, rehearsal=rehearsal)
    if html:  # say now, not after a minute, what will not do
        new_figure()
        check_target(html)
    subject = read_subject(what, settings or [])
    say = (lambda _: None) if quiet else (lambda text: err.print(f"{text} ...", markup=False))
    found = subject.diagnose(options, say)
    if html:
        from episode.diagnosis.report import write_html

        write_html(found, html)
    if as_json:
        out.print_json(data=strict(found.to_dict()))
        return
    _print_diagnosis(found)
    if html:
        out.print(f"\nReport: {html}", markup=False)


def _print_diagnosis(d: Any) -> None:
    from episode.diagnosis.report import estimate_rows

    out.print(f"[bold]Diagnosis of {d.title}[/bold]: {d.clients} clients, {d.parameters:,} "
              f"parameters, {len(d.points)} points, {d.seconds:.0f} s")  # fmt: skip
    for f in d.verdict.findings:
        out.print(f"\n{f.question} ", end="", markup=False)
        out.print(f"[bold]{f.answer}[/bold]")
        out.print(f"  {f.because}.", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("estimate", "", "90% range", "meaning"):
        table.add_column(column, no_wrap=True)
    for row in estimate_rows(d):
        table.add_row(*row)
    out.print()
    out.print(table)
    out.print("\n[bold]What this cannot know[/bold]")
    for line in (*d.verdict.unknown, *d.notes):
        out.print(f"- {line}", markup=False)


def _print_source(title: str, constants: Any) -> None:
    values = ", ".join(f"{name} = {value:.4g}" for name, value in constants.to_dict().items())
    out.print(
        f"With what `episode diagnose` saw of {title}: {values}. Estimates along one path, where "
        "the theorem wants bounds that hold everywhere: what follows is no guarantee.\n",
        markup=False,
    )


def _print_plan(made: Any) -> None:
    from math import isinf

    s = made.smoothing
    I_max = made.largest_local_steps
    noiseless = made.constants.sigma == 0
    lines = {
        "A, B (C)": f"{s.A:.4g}, {s.B:.4g} ({s.C:g})",
        "Γ": f"{made.Gamma:.6g}",
        "η at most": f"{made.eta:.6g}  (its {made.binding} bound decides)",
        "γ/η": "∞: never clip, since L1 = 0" if isinf(made.threshold) else f"{made.threshold:.6g}",
        "γ": "∞" if isinf(made.gamma) else f"{made.gamma:.6g}",
        "R at least": f"{made.rounds:,} rounds",
        "T = RI": f"{made.iterations:,} iterations",
        "I_max": (
            "none: without noise, more clients do not shorten the run (T grows with I)"
            if noiseless
            else f"{I_max:.4g}"
            + (": no I gives linear speed-up at this N" if I_max < 1 else " for linear speed-up")
        ),
        "then": f"the mean of ‖∇f(x̄_r)‖ over the rounds is at most 3ε = {3 * made.epsilon:g}",
    }
    title = "homogeneous clients" if made.constants.homogeneous else "heterogeneous clients"
    out.print(f"[bold]Theorem 1[/bold] ({made.statement} statement, {title})")
    for name, text in lines.items():
        out.print(f"  {name:<12} {text}", markup=False)
    out.print("\n[bold]Its conditions[/bold]")
    _print_conditions(made.conditions)


def _print_conditions(conditions: Any) -> None:
    for c in conditions:
        mark = "[green]holds[/green]" if c.holds else "[red]FAILS[/red]"
        out.print(f"  {mark}  ", end="")
        out.print(f"{c.name:<24}{c.formula}: {c.value:.4g} against {c.bound:.4g}", markup=False)


def _print_table(rows: Any, setting: Any) -> None:
    from episode.theory.complexity import fewest

    out.print(
        f"\n[bold]Six methods[/bold] at N = {setting.clients}, I = {setting.local_steps} "
        "(the paper's Table 1; O(·) with a factor of 1)"
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("rounds R", "iterations T", "best T", "I_max"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        mark = "" if row.obstacle is None else " *"
        table.add_row(
            row.method + mark,
            *map(_short, (row.rounds, row.iterations, row.best_iterations)),
            _short(row.largest_local_steps),
        )
    out.print(table)
    for row in rows:
        if row.obstacle is not None:
            out.print(f"* {row.method} is not covered: {row.obstacle}.", markup=False)
    out.print(
        f"Fewest rounds: {', '.join(fewest(rows)) or 'none is covered'}. "
        f"Fewest iterations: {', '.join(fewest(rows, 'iterations')) or 'none is covered'}.",
        markup=False,
    )
    _print_winners(setting)


def _print_winners(setting: Any) -> None:
    """Who needs the fewest rounds, over a grid of I and N around what was asked."""
    from dataclasses import replace

    from episode.theory.complexity import fewest, table

    local_steps, clients = (1, 4, 16, 64, 256), (1, 8, 64)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column("fewest rounds at", no_wrap=True)
    for I in local_steps:
        grid.add_column(f"I = {I}", no_wrap=True)
    for N in clients:
        rows = (table(replace(setting, clients=N, local_steps=I)) for I in local_steps)
        grid.add_row(f"N = {N}", *(", ".join(fewest(row)) or "none" for row in rows))
    out.print()
    out.print(grid)


def _short(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3g}"


def strict(values: Any) -> Any:
    """JSON values, with NaN and infinities as strings."""
    from episode.results.store import dumps

    return json.loads(dumps(values))
