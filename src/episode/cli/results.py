"""The command line's experiments: `sweep`, `compare`, `report`, `watch`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli.progress import SweepDisplay
from episode.cli.terminal import AsJson, Quiet, err, out, speaks, stoppable, strict
from episode.errors import EpisodeError

if TYPE_CHECKING:
    from episode.runs.config import Experiment

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a value, section.key=value; may be repeated."),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once.", show_default="one per core"),
]
Track = Annotated[bool, typer.Option(help="Write TensorBoard events into each run's folder.")]


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    example = "Example: episode sweep --over algorithm=celgc,episode --over seed=0..2"
    app.command(epilog=example)(sweep)
    app.command(epilog="Example: episode compare runs/demo/celgc runs/demo/episode")(compare)
    app.command(epilog="Example: episode report runs/demo")(report)
    app.command(epilog="Example: episode watch runs/demo")(watch)


def sweep(
    config: Annotated[
        Path | None, typer.Argument(help=r"A TOML file; it may hold a \[sweep] table of lists.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(help="A setting and its values: key=a,b,c or seed=0..4; may be repeated."),
    ] = None,
    settings: Settings = None,
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/sweep"),
    jobs: Jobs = None,
    track: Track = False,
    dry_run: Annotated[bool, typer.Option(help="List the runs, run nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a product of settings: algorithms x I x s x seeds, and whatever else a config has.

    Runs that have ended are skipped, those that were stopped go on, and a diverged one is a
    result. At the end: one table with means and spreads over seeds, also as files in the folder.
    """
    from episode.results.groups import grouped
    from episode.results.store import CONFIG, read_run
    from episode.results.text_tables import brief_sheet, counted, final_sheet
    from episode.studies.grid import read_grid
    from episode.studies.sweep import SweepOptions
    from episode.studies.sweep import sweep as play

    experiments, axes = read_grid(config, settings or [], over or [])
    if dry_run:
        _list(experiments, as_json)
        return
    hushed = quiet or not speaks()
    with stoppable(command_line()) as stop, SweepDisplay(len(experiments), hushed) as display:
        options = SweepOptions(folder, jobs, track and speaks(), stop, axes if speaks() else None)
        outcomes = play(experiments, options, display)
    if not speaks():
        return
    places = [folder / e.name for e in experiments]
    groups = grouped([read_run(p) for p in places if (p / CONFIG).is_file()])  # not: died at once
    final_sheet(groups).write(folder / "table")
    if as_json:
        out.print_json(data=strict({"folder": str(folder), "runs": [vars(o) for o in outcomes]}))
    else:
        out.print(brief_sheet(groups, f"{counted(len(experiments), 'run')} in {folder}"))
        out.print(f"Table: {folder}/table.md, .tex, .csv   Report: episode report {folder}")
    failed = [o for o in outcomes if o.status == "failed"]
    for outcome in failed:
        err.print(f"{outcome.name} failed: {outcome.reason}", markup=False)
    if failed:
        raise typer.Exit(1)


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    as_json: AsJson = False,
) -> None:
    """Compare runs: a table, and what differs in their configs."""
    from episode.results.groups import differing_keys, grouped, once, settings_of
    from episode.results.store import find_runs
    from episode.results.text_tables import Sheet, brief_sheet

    runs = find_runs(folders)
    groups = grouped(runs)
    if copies := len(runs) - len(once(runs)):
        err.print(_left_out(copies))
    settings = [settings_of(run.config) for run in runs]
    differing = differing_keys(settings)
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "folder": str(run.folder),
                "status": run.status,
                "settings": {k: s.get(k) for k in differing},
                "summary": run.summary,
            }
            for run, s in zip(runs, settings, strict=True)
        ]
        out.print_json(data=strict(rows))
        return
    out.print(brief_sheet(groups))
    if len(runs) == 1:
        return
    out.print()
    if not differing:
        out.print("Their configs are the same.")
        return
    if len(runs) > 3:
        values = [
            [k, ", ".join(dict.fromkeys(_short(s.get(k)) for s in settings))] for k in differing
        ]
        out.print(Sheet("What differs", ["setting", "values"], values, left=2))
        return
    rows_ = [[k, *(_short(s.get(k)) for s in settings)] for k in differing]
    # A long name ends with the run's id, which tells it from the others.
    names = [run.folder.name for run in runs]
    heads = ["setting", *(n if len(n) <= 20 else f"…{n[-12:]}" for n in names)]
    out.print(Sheet("What differs", heads, rows_, left=len(heads)))


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write.", show_default="report.html in the folder"
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="What stands at the top.")] = "",
) -> None:
    """Write one HTML file about runs: opens offline, with every figure in it.

    Curves by rounds, exchanges, bytes, gradients and seconds; cost to a target; clipping; drift;
    who has which labels; the final table over seeds; and the commands that repeat each run.
    """
    from episode.results.groups import once
    from episode.results.report import write_report
    from episode.results.store import find_runs
    from episode.results.text_tables import counted
    from episode.runs.report_extras import extras_of, report_path

    found = find_runs(folders)
    runs = once(found)
    if copies := len(found) - len(runs):
        err.print(_left_out(copies))
    path = output or report_path(folders)
    write_report(runs, path, title, extras_of(runs))
    out.print(
        f"{path}   ({path.stat().st_size / 1e6:.1f} MB, {counted(len(runs), 'run')})", markup=False
    )


def watch(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, sweeps or studies.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Look once.")] = False,
) -> None:
    """Watch runs as they go; ends when nobody is at work on them any more.

    A run that is neither finished nor at work was stopped: it goes on with --resume. Where the
    output is no terminal, it looks once.
    """
    import time

    from rich.live import Live

    from episode.results.watch import Watch

    watched = Watch(folders)
    if not watched.look() and not watched.at_work():
        raise EpisodeError(f"{folders[0]} holds no runs yet: start one, or give another folder.")
    if once or not out.is_terminal:
        out.print(watched.table())
        return
    with contextlib.suppress(KeyboardInterrupt), Live(watched.table(), console=out) as live:
        while watched.at_work():
            time.sleep(every)
            live.update(watched.table())


def _list(experiments: Sequence[Experiment], as_json: bool) -> None:
    """The runs of a sweep: their names, and what tells them apart."""
    from episode.results.groups import told_apart
    from episode.results.text_tables import Sheet

    if as_json:
        out.print_json(data=[e.name for e in experiments])
        return
    own = told_apart([e.to_dict() for e in experiments])
    rows = [[e.name, str(e.seed), text] for e, text in zip(experiments, own, strict=True)]
    out.print(Sheet("", ["run", "seed", "settings of its own"], rows, left=3))


def _left_out(copies: int) -> str:
    are = "1 run is a copy of another" if copies == 1 else f"{copies} runs are copies of others"
    return f"{are} (the same config and seed): each counts once."


def command_line() -> str:
    """What the user typed, to be typed again."""
    return shlex.join(["episode", *sys.argv[1:]])


def _short(value: Any) -> str:
    from episode.results.groups import plain

    text = "–" if value is None else plain(value)
    return text if len(text) <= 40 else text[:37] + "..."
