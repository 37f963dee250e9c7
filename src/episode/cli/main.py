"""The command line: `episode demo`, `run`, `data` … . Results on stdout, progress on stderr.

Exit codes: 0 done, 1 the run failed or a check did not hold, 2 a mistake in what was asked.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from episode.cli import paper, results, studies, theory
from episode.cli.data import data_commands, partition, shortcuts, show_log
from episode.cli.flower import app as flower
from episode.cli.terminal import AsJson, Quiet, collect_less, err, out, stoppable, strict
from episode.errors import ClientError, ClusterError, EpisodeError
from episode.version import __version__

if TYPE_CHECKING:
    from episode.runs.records import Observe
    from episode.runs.trainer import Job

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated training that does not blow up: EPISODE and its family of algorithms.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def main() -> NoReturn:
    """Runs the command line; a user's mistake is a sentence and exit code 2, not a traceback."""
    collect_less()
    warnings.showwarning = lambda message, *_: err.print(f"Warning: {message}")
    show_log(err)
    try:
        app(standalone_mode=True)
    except (ClientError, ClusterError) as error:  # of which some have a mistake for their cause
        _fail(str(error), 2 if isinstance(error.__cause__, EpisodeError) else 1)
    except EpisodeError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    sys.exit(0)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command(epilog="Example: episode demo --folder runs/demo")
def demo(
    folder: Annotated[
        Path | None,
        typer.Option(help="Where runs and picture go.", show_default="runs/demo, and the seed"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Repeats with other data splits and weights.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of 8 local steps.")] = 60,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare all algorithms on one task: a table and a picture."""
    from episode.results.run_tables import run_row, run_table
    from episode.studies.demo import PICTURE, experiments, run_demo

    names = experiments(seed, rounds)
    if folder is None:
        usual = (seed, rounds) == (0, 60)
        folder = Path("runs/demo" if usual else f"runs/demo-seed{seed}-rounds{rounds}")
    with _progress(quiet) as progress, stoppable(f"episode demo --folder {folder}") as stop:
        runs = run_demo(folder, seed, rounds, lambda name, e: _bar(progress, name, e, quiet), stop)
    rows = [run_row(r) for r in runs]
    if as_json:
        out.print_json(data=strict(rows))
        return
    out.print(run_table(rows, f"{len(names)} algorithms, one budget: digits, labels sorted"))
    out.print()
    out.print(_verdict({row["algorithm"]: row for row in rows}))
    out.print(f"Curves: {folder / PICTURE}   Runs: {folder}/<algorithm>/rounds.jsonl")


@app.command(epilog="Example: episode run --set algorithm=episode --set task.similarity=10")
def run(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file or a run's folder; without, all defaults.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a value, section.key=value; may be repeated."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where clients run: simulation, distributed or flower.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run is written; by default below runs/.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A task by name (episode list tasks), or my_task.py:MyTask.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The task's data; without --task, a folder with a folder per silo."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The task's model, such as lstm.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the folder's run stopped.")] = False,
    monitor: Annotated[bool, typer.Option(help="Warn when the run leaves the theory.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Check and print the config, run nothing.")] = False,
    track: results.Track = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment from a TOML config, and write its folder.

    CONFIG is a TOML file or a run's folder; without it, every setting has its default, and
    --dry-run prints them. A run that diverges is a result: its status says so.
    Your own silos, a folder each: episode run --data silos/ --model lstm
    """
    from episode.runs.config import read_experiment, to_toml
    from episode.runs.trainer import job_of, join
    from episode.studies.sweep import observers, play_job

    settings = [*shortcuts(config, task, data, model), *(settings or [])]
    settings += [f"engine.name={engine}"] if engine else []
    experiment, cluster = join(lambda: read_experiment(config, settings))
    speaks = cluster is None or cluster.writes
    if folder is None:
        folder = config if config and config.is_dir() else Path("runs") / experiment.name
        if resume and not (folder / "config.json").exists():
            raise EpisodeError(
                "Which run is to go on? Give its folder: episode run FOLDER --resume"
            )
    with cluster.together() if cluster else nullcontext():
        job = job_of(experiment, cluster)
        job.plan.check(job.task.num_clients)
        if dry_run:
            text = to_toml(experiment.to_dict())
            out.print_json(data=experiment.to_dict()) if as_json else out.print(text, markup=False)
            return
        if speaks and (folder / "config.json").exists() and not (resume or _restarted()):
            raise EpisodeError(
                f"{folder} holds a run already: go on with --resume, or choose another --folder."
            )
        again = f"episode run {folder} --resume"
        with _progress(quiet or not speaks) as progress, stoppable(again, cluster) as stop:
            bar = _bar(progress, experiment.algorithm.label, experiment, quiet or not speaks)
            if monitor and speaks:
                job, bar = _watched(job, bar)
            with observers(folder, track and speaks, bar) as observe:
                result = play_job(job, experiment, folder, observe, stop)
    if cluster:
        cluster.leave()
    summary = {**result.summary, "folder": str(folder)}
    if not speaks:
        return
    if as_json:
        out.print_json(data=strict(summary))
    else:
        _print_summary(summary)


@app.command(name="list", epilog="Example: episode list algorithms")
def list_names(
    kind: Annotated[str, typer.Argument(help="algorithms, tasks, engines or all.")] = "all",
    as_json: AsJson = False,
) -> None:
    """List algorithms, tasks and engines, one line each.

    KIND is algorithms, tasks, engines or all.
    """
    from episode.errors import unknown
    from episode.runs.catalogue import catalogue

    kinds = catalogue()
    if kind not in (*kinds, "all"):
        raise unknown("list of", kind, [*kinds, "all"])
    chosen = kinds if kind == "all" else {kind: kinds[kind]}
    if as_json:
        out.print_json(data=chosen)
        return
    for title, entries in chosen.items():
        out.print(f"[bold]{title}[/bold]")
        for name, line in entries.items():
            out.print(f"  {name:<20} {line}", markup=False)


@app.command(epilog="Example: episode verify")
def verify(as_json: AsJson = False) -> None:
    """Prove the maths: every check, its figure and its bound."""
    from episode.testing import verify as checks

    done = []
    for check in checks():
        done.append(check)
        if not as_json:
            mark = "[green]ok[/green]  " if check.passed else "[red]FAIL[/red]"
            out.print(mark, end=" ")
            out.print(str(check), markup=False)
    failed = sum(not check.passed for check in done)
    if as_json:
        out.print_json(data=strict([vars(c) | {"passed": c.passed} for c in done]))
    else:
        out.print(f"{len(done) - failed} of {len(done)} checks hold.")
    if failed:
        raise typer.Exit(1)


app.command(epilog="Example: episode partition digits --similarity 30")(partition)
app.add_typer(data_commands, name="data")
app.add_typer(flower, name="flower")
results.register(app)
studies.register(app)
paper.register(app)
theory.register(app)


def _watched(job: Job, observe: Observe) -> tuple[Job, Observe]:
    from episode.runs.monitor import Monitor, also

    watch = Monitor(say=lambda text: err.print(f"Warning: {text}", markup=False))
    return watch.watch(job), also(watch, observe)


def _restarted() -> bool:
    """Whether torchrun has started this process anew, after one of the run was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as progress:
        yield progress


def _bar(progress: Progress, name: str, experiment: Any, quiet: bool) -> Any:
    """Shows each round's loss, ‖G_r‖ and whether it was clipped."""
    total = experiment.plan().rounds_to_play
    task = progress.add_task(name, total=total, state="")
    if progress.disable and not err.is_terminal and not quiet:
        err.print(f"{name}: {total} rounds ...", markup=False)  # a sign of life in a log

    def observe(record: dict[str, Any]) -> None:
        norm = record["global_norm"]
        state = f"loss {record['loss']:.3g}"
        state += "" if norm is None else f"  ‖G‖ {norm:.3g}"
        state += "  clipped" if record["clipped"] else ""
        progress.update(task, completed=record["round"] + 1, state=state)

    return observe


def _print_summary(summary: dict[str, Any]) -> None:
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
        "folder": summary["folder"],
    }
    for name, text in lines.items():
        out.print(f"{name:<16} {text}", markup=False)


def _cluster_lines(cluster: dict[str, Any] | None) -> dict[str, str]:
    if cluster is None:
        return {}
    traffic = cluster["since_last_start"]
    megabytes = traffic["bytes"] / 1e6
    text = f"{cluster['ranks']}; {traffic['collectives']:,} collectives of {megabytes:,.1f} MB"
    return {"ranks": f"{text} in all since the last start"}


def _verdict(rows: dict[str, dict[str, Any]]) -> str:
    """What the table shows, in words; a loss above that of guessing is a failure."""
    guessing = math.log(10)
    gain = 100 * ((rows["episode"]["accuracy"] or 0) - (rows["celgc"]["accuracy"] or 0))
    failed = [n for n, r in rows.items() if r["status"] != "finished" or r["loss"] > guessing]
    text = f"EPISODE is {gain:.0f} points of accuracy ahead of CELGC."
    if failed:
        text += f" Worse than guessing (loss above {guessing:.2f}): {', '.join(failed)}."
    return text


def _fail(message: str, code: int) -> NoReturn:
    rank = os.environ.get("RANK")
    where = f" on rank {rank}" if rank and not message.startswith("Rank ") else ""
    err.print(f"Error{where}: {message}", markup=False)
    sys.exit(code)
