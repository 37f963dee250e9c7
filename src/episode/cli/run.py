"""Commands for single runs: `demo`, `run`, `list`, `verify`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli.data import shortcuts
from episode.cli.progress import RunProgress, SweepDisplay
from episode.cli.terminal import (
    AsJson,
    Quiet,
    Settings,
    Track,
    err,
    judged,
    out,
    stoppable,
    strict,
)
from episode.errors import EpisodeError, unknown

if TYPE_CHECKING:
    from episode.federation.job import Job
    from episode.runs.config import Experiment
    from episode.runs.records import Observe, Run


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(epilog="Example: episode demo --folder runs/demo")(demo)
    app.command(epilog="Example: episode run --set algorithm=episode --set task.similarity=10")(run)
    app.command(name="list", epilog="Example: episode list algorithms")(list_names)
    app.command(epilog="Example: episode verify")(verify)


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to write the runs and the picture.", show_default="runs/demo"),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Random seed: other seeds split the data differently.")
    ] = 3,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of rounds of 8 local steps; pixel by pixel, twice as many of 4."
        ),
    ] = 60,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare eleven algorithms on one task, and show what clipping gains on a harder one.

    Prints two tables and draws a picture, in about a minute on two cores. Each algorithm runs at
    its own best setting; on the first task it also runs at one that all share.
    """
    from episode.studies.demo import PICTURE, number_of_runs, run_demo

    if folder is None:
        usual = (seed, rounds) == (3, 60)  # not the seed that the settings were chosen with
        folder = Path("runs/demo" if usual else f"runs/demo-seed{seed}-rounds{rounds}")
    again = f"episode demo --folder {folder}"
    with SweepDisplay(number_of_runs(), quiet) as progress, stoppable(again) as stop:
        found = run_demo(folder, seed, rounds, progress, stop)
    digits, by_pixel = (
        sorted((each.row() for each in part), key=lambda row: -(row["accuracy"] or 0.0))
        for part in (found.digits, found.by_pixel)
    )
    if as_json:
        out.print_json(data=strict({"digits": digits, "by_pixel": by_pixel}))
        return
    _print_demo(digits, by_pixel)
    out.print(f"Curves: {folder / PICTURE}   More about the runs: episode report {folder}")


def _print_demo(digits: list[dict[str, Any]], by_pixel: list[dict[str, Any]]) -> None:
    """Print the tables of the demo, and what they show."""
    from episode.results.run_tables import run_table
    from episode.studies import demo as d

    for part, rows in ((d.DIGITS, digits), (d.BY_PIXEL, by_pixel)):
        shown = [{k: v for k, v in row.items() if k not in ("loss", "status")} for row in rows]
        title = f"{part.title}, {part.local_steps} local steps: test accuracy"
        out.print(run_table(shown, title))
        rounds = d.ITERATIONS // part.local_steps
        out.print(
            "η, γ, accuracy, costs: at the algorithm's own best setting of twelve "
            f"(for {rounds} rounds)."
        )
        if part is d.DIGITS:
            setting = f"η = {d.SHARED[0]:g}, γ = {d.SHARED[1]:g}"
            out.print(f"shared: accuracy at {setting}, the best for CELGC, as the paper tunes.")
        out.print()
        out.print(d.who_is_first(part, rows))
        aside = d.who_needs_an_own_setting if part is d.DIGITS else d.what_clipping_gains
        out.print(aside(rows))
        out.print(d.caution(part))
        out.print()


def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file or a run's folder; without it, defaults are used."),
    ] = None,
    settings: Settings = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Where clients run: simulation, flower, or my_engine.py:MyEngine."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to write the run.", show_default="a new folder in runs/"),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task: a name from episode list tasks, or my_task.py:MyTask."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The task's data. Without --task: a folder with one folder per silo."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model: lstm for texts, mlp for numbers, resnet18 for images."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the folder's run stopped.")] = False,
    monitor: Annotated[
        bool, typer.Option(help="Warn when training leaves the regime that the theory covers.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Check and print the config without running it.")
    ] = False,
    track: Track = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment and write its folder.

    CONFIG is a TOML file or the folder of a run. Without it every setting has its default, and
    --dry-run prints them all. A run that diverges is a result, and its status says so.
    Your own silos, one folder each: episode run --data silos/ --model lstm
    """
    from episode.runs.config import read_experiment, to_toml
    from episode.runs.trainer import prepared

    settings = [*shortcuts(config, task, data, model), *(settings or [])]
    settings += [f"engine.name={engine}"] if engine else []
    with prepared(lambda: read_experiment(config, settings)) as (experiment, job):
        if dry_run:
            text = to_toml(experiment.to_dict())
            out.print_json(data=experiment.to_dict()) if as_json else out.print(text)
            return
        folder = _folder(folder, config, experiment, resume)
        speaks = job.processes.writes
        if speaks and (folder / "config.json").exists() and not (resume or _restarted()):
            raise EpisodeError(
                f"{folder} already holds a run: go on with --resume, or choose another --folder."
            )
        with (
            RunProgress(quiet or not speaks) as progress,
            stoppable(_again(folder, experiment), job.processes) as stop,
        ):
            bar = progress.bar(experiment.algorithm.label, experiment)
            result = _train(job, folder, bar, stop, monitor, track)
    if speaks:
        _print_result({**result.summary, "folder": str(folder)}, as_json)


def list_names(
    kind: Annotated[
        str, typer.Argument(help="What to list: algorithms, tasks, engines or all.")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """List algorithms, tasks and engines, one line each."""
    from episode.catalogue import catalogue

    kinds = catalogue()
    if kind not in (*kinds, "all"):
        raise unknown("list of", kind, [*kinds, "all"])
    chosen = kinds if kind == "all" else {kind: kinds[kind]}
    if as_json:
        out.print_json(data=chosen)
        return
    for title, entries in chosen.items():
        out.print(title, style="bold")
        for name, line in entries.items():
            out.print(f"  {name:<20} {line}")


def verify(as_json: AsJson = False) -> None:
    """Verify the maths: print every check with its value and its bound."""
    from episode.testing import verify as checks

    done = []
    for check in checks():
        done.append(check)
        if not as_json:
            out.print("ok  " if check.passed else "FAIL", end=" ", style=judged(check.passed))
            out.print(str(check))
    failed = sum(not check.passed for check in done)
    if as_json:
        out.print_json(data=strict([vars(c) | {"passed": c.passed} for c in done]))
    else:
        out.print(f"{len(done) - failed} of {len(done)} checks hold.")
    if failed:
        raise typer.Exit(1)


def _again(folder: Path, experiment: Experiment) -> str:
    """Return the command that goes on with a run, naming the code that its config names."""
    from episode.results.named_code import options_that_name

    return shlex.join(
        ["episode", "run", str(folder), "--resume", *options_that_name(experiment.to_dict())]
    )


def _folder(given: Path | None, config: Path | None, experiment: Experiment, resume: bool) -> Path:
    """Return where the run is written."""
    if given is not None:
        return given
    folder = config if config and config.is_dir() else Path("runs") / experiment.name
    if resume and not (folder / "config.json").exists():
        raise EpisodeError("--resume needs the run's folder: episode run FOLDER --resume")
    return folder


def _train(
    job: Job, folder: Path, bar: Observe, stop: Callable[[], bool], monitor: bool, track: bool
) -> Run:
    from episode.runs.monitor import Monitor
    from episode.runs.observers import combined, tracked
    from episode.runs.trainer import train

    watch = None
    if monitor:
        monitors = Monitor(say=lambda text: err.print(f"Warning: {text}"))
        job = monitors.watch(job)
        watch = monitors if job.processes.writes else None
    with tracked(folder, track and job.processes.writes, combined(watch, bar)) as observe:
        return train(job, folder, observe, stop)


def _restarted() -> bool:
    """Whether torchrun has restarted this process after another of the run was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _print_result(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        out.print_json(data=strict(summary))
        return
    megabytes = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    lines = {
        "status": summary["status"] + (f": {summary['reason']}" if "reason" in summary else ""),
        "rounds": f"{summary['rounds']:,}",
        "exchanges": f"{summary['exchanges']:,}",
        "MB": f"{megabytes:,.1f}",
        "gradients": f"{summary['gradients']:,}",
        "seconds": f"{summary['seconds']:.1f}",
        **_cluster_lines(summary.get("cluster")),
        "local loss": f"{summary['loss']:.6g} (mean of the last round's local steps)",
        **{name: f"{value:.6g}" for name, value in summary["metrics"].items()},
        **_silo_line(summary.get("per_client", {})),
        "folder": summary["folder"],
    }
    for name, text in lines.items():
        out.print(f"{name:<16} {text}")


def _silo_line(silos: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Name the silo that the model serves worst, by the first metric that silos were evaluated for.

    The loss of the local steps, which every run has, is none of them.
    """
    names = sorted(silos.keys() - {"loss"}, key=lambda name: ("accuracy" not in name, name))
    if not names:
        return {}
    worst = silos[names[0]]
    return {"worst silo": f"{names[0]} {worst['worst']:.6g} ({worst['worst_client']})"}


def _cluster_lines(cluster: dict[str, Any] | None) -> dict[str, str]:
    if cluster is None:
        return {}
    traffic = cluster["since_last_start"]
    megabytes = traffic["bytes"] / 1e6
    text = f"{cluster['ranks']}; {traffic['collectives']:,} collectives, {megabytes:,.1f} MB"
    return {"ranks": f"{text} since the last start"}
