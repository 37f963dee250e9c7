"""Commands about many runs: `sweep`, `compare`, `report` and `watch`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from episode.cli.progress import SweepDisplay
from episode.cli.terminal import (
    AsJson,
    Jobs,
    Quiet,
    Settings,
    Track,
    command_line,
    err,
    out,
    speaks,
    stoppable,
    strict,
)
from episode.errors import EpisodeError
from episode.results import groups, silo_tables, store
from episode.results.report import default_path, write_report
from episode.results.run_tables import full_table, short_table
from episode.results.tables import Table, counted
from episode.results.watch import Watcher

if TYPE_CHECKING:
    from episode.runs.config import Experiment

RunFolders = Annotated[
    list[Path], typer.Argument(help="Run folders, or folders that contain some, such as a sweep.")
]


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    example = "Example: episode sweep --over algorithm=celgc,episode --over seed=0..2"
    app.command(epilog=example)(sweep)
    app.command(epilog="Example: episode compare runs/demo")(compare)
    app.command(epilog="Example: episode report runs/demo")(report)
    app.command(epilog="Example: episode watch runs/demo")(watch)


def sweep(
    config: Annotated[
        Path | None, typer.Argument(help=r"TOML config; a \[sweep] table of lists is combined.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(help="Setting to vary: key=a,b,c or key=0..4; may be repeated."),
    ] = None,
    settings: Settings = None,
    folder: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/sweep"),
    jobs: Jobs = None,
    track: Track = False,
    dry_run: Annotated[bool, typer.Option(help="List the runs without starting them.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of some settings, such as algorithms and seeds.

    Runs that have ended are skipped and interrupted runs are resumed, so the same command can be
    given again at any time. A run that diverges does not stop the others. The final table has
    means and standard deviations over seeds; it is also written to files in the folder. To see
    all settings that can be varied, use episode run --dry-run.
    """
    from episode.studies.grid import read_grid
    from episode.studies.sweep import SweepOptions, sweep as play

    experiments, axes = read_grid(config, settings or [], over or [])
    if dry_run:
        _list(experiments, as_json)
        return
    silent = quiet or not speaks()
    with stoppable(command_line()) as stop, SweepDisplay(len(experiments), silent) as display:
        options = SweepOptions(folder, jobs, track and speaks(), stop, axes if speaks() else None)
        outcomes = play(experiments, options, display)
    if not speaks():
        return
    started = [folder / e.name for e in experiments if (folder / e.name / store.CONFIG).is_file()]
    configurations = groups.group_runs([store.read_run(path) for path in started])
    full_table(configurations).write(folder / "table")
    if as_json:
        out.print_json(data=strict({"folder": str(folder), "runs": [vars(o) for o in outcomes]}))
    else:
        out.print(short_table(configurations, f"{counted(len(experiments), 'run')} in {folder}"))
        out.print(f"Table: {folder}/table.md, .tex, .csv   Report: episode report {folder}")
    failed = [o for o in outcomes if o.status == "failed"]
    for outcome in failed:
        err.print(f"{outcome.name} failed: {outcome.reason}")
    if failed:
        raise typer.Exit(1)


def compare(
    folders: RunFolders,
    per_silo: Annotated[
        bool,
        typer.Option("--per-silo", help="Compare the runs silo by silo: who gains, who loses."),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(help="With --per-silo: the metric to show.", show_default="an accuracy"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a table of runs, and the settings in which they differ.

    Runs that differ only in their seed share a row, with mean and standard deviation. With
    --per-silo, the table has a row for each silo and a column for each algorithm.
    """
    if metric is not None and not per_silo:
        raise EpisodeError("--metric chooses what --per-silo shows: give both.")
    runs = store.find_runs(folders)
    configurations = groups.group_runs(runs)
    _warn_of_copies(len(runs) - len(groups.without_copies(runs)))
    if per_silo:
        _compare_silos(configurations, metric, as_json)
        return
    settings = [groups.settings_of(run.config) for run in runs]
    differing = groups.differing_keys(settings)
    if as_json:
        rows = [
            {"folder": str(run.folder), "status": run.status,
             "settings": {k: own.get(k) for k in differing}, "summary": run.summary}
            for run, own in zip(runs, settings, strict=True)
        ]  # fmt: skip
        out.print_json(data=strict(rows))
        return
    out.print(short_table(configurations))
    if len(runs) > 1:
        out.print()
        values = {k: [groups.value_text(s.get(k), 40) for s in settings] for k in differing}
        out.print(_differences(runs, values) if values else "Their configs are the same.")


def _compare_silos(
    configurations: Sequence[groups.Group], metric: str | None, as_json: bool
) -> None:
    shown, columns = silo_tables.silo_columns(configurations, metric)
    if as_json:
        out.print_json(data=strict(silo_tables.as_json(shown, columns)))
        return
    out.print(silo_tables.silo_table(shown, columns))
    out.print()
    for remark in silo_tables.remarks(shown, columns):
        out.print(remark, markup=False)
    others = [name for name in silo_tables.silo_metrics(configurations) if name != shown]
    if others:
        out.print(f"With --metric: {', '.join(others)}.", markup=False)


def report(
    folders: RunFolders,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write.", show_default="report.html in the folder"
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
) -> None:
    """Write one HTML file about runs, which opens in any browser, also offline.

    It shows final metrics over seeds, curves against rounds, exchanges, bytes, gradients or
    seconds, the cost to reach a target, which silos gain and which lose, clipping, drift, who has
    which labels, and how to repeat each run.
    """
    found = store.find_runs(folders)
    runs = groups.without_copies(found)
    _warn_of_copies(len(found) - len(runs))
    path = default_path(folders) if output is None else output
    write_report(runs, path, title)
    megabytes = path.stat().st_size / 1e6
    out.print(f"{path}   ({megabytes:.1f} MB, {counted(len(runs), 'run')})")


def watch(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, sweeps or studies.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Print the table once and exit.")] = False,
) -> None:
    """Show a live table of runs until none of them is running any more.

    A run with the status "stopped" was interrupted: continue it with episode run FOLDER --resume.
    The column ‖G‖, γ/η compares the norm of the mean gradient with the clipping threshold. If the
    output is not a terminal, the table is printed once.
    """
    watcher = Watcher(folders)
    if not watcher.update() and not watcher.is_active():
        raise EpisodeError(f"{folders[0]} contains no runs: start one, or give another folder.")
    if once or not out.is_terminal:
        out.print(watcher.table())
        return
    with contextlib.suppress(KeyboardInterrupt), Live(watcher.table(), console=out) as live:
        while watcher.is_active():
            time.sleep(every)
            live.update(watcher.table())


def _list(experiments: Sequence[Experiment], as_json: bool) -> None:
    """Print the names of a sweep's runs, and the settings in which they differ."""
    if as_json:
        out.print_json(data=[e.name for e in experiments])
        return
    descriptions = groups.describe_differences([e.to_dict() for e in experiments])
    rows = [[e.name, str(e.seed), text] for e, text in zip(experiments, descriptions, strict=True)]
    out.print(Table("", ["run", "seed", "differing settings"], rows, left=3))


def _differences(runs: Sequence[store.StoredRun], values: dict[str, list[str]]) -> Table:
    """Tabulate differing settings, with a column for each run if there are up to three."""
    if len(runs) > 3:
        heads = ["setting", "values"]
        rows = [[key, ", ".join(dict.fromkeys(found))] for key, found in values.items()]
    else:  # a long folder name ends with the id of the run, which is enough to recognize it
        names = [run.folder.name for run in runs]
        heads = ["setting", *(n if len(n) <= 20 else f"…{n[-12:]}" for n in names)]
        rows = [[key, *found] for key, found in values.items()]
    return Table("Differing settings", heads, rows, left=len(heads))


def _warn_of_copies(copies: int) -> None:
    if copies:
        are = "1 run is a copy of another" if copies == 1 else f"{copies} runs are copies of others"
        err.print(f"{are} (the same config and seed): each counts once.")
