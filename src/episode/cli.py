"""The command line: `episode demo`, `run`, `list`, `verify`. Results on stdout, progress on stderr.

Exit codes: 0 done, 1 the run failed or a check did not hold, 2 a mistake in what was asked.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from episode.errors import ClientError, EpisodeError
from episode.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated training that does not blow up: EPISODE and its family of algorithms.",
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def main() -> NoReturn:
    """Runs the command line; a user's mistake is a sentence and exit code 2, not a traceback."""
    warnings.showwarning = lambda message, *_: err.print(f"Warning: {message}")
    try:
        app(standalone_mode=True)
    except ClientError as error:
        _fail(str(error), 1)
    except EpisodeError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except KeyboardInterrupt:
        _fail("Interrupted. A run with a folder goes on with --resume.", 130)
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
    folder: Annotated[Path, typer.Option(help="Where runs and picture go.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Repeats with other data splits and weights.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of 8 local steps.")] = 60,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare all algorithms on one task: a table and a picture."""
    from episode.demo import PICTURE, experiments, run_demo
    from episode.results.tables import as_table, comparison

    names = experiments(seed, rounds)
    with _progress(quiet) as progress:
        runs = run_demo(folder, seed, rounds, lambda name, e: _bar(progress, name, e))
    rows = comparison(runs)
    if as_json:
        out.print_json(data=_strict(rows))
        return
    out.print(as_table(rows, f"{len(names)} algorithms, one budget: digits, labels sorted"))
    out.print()
    out.print(_verdict({row["algorithm"]: row for row in rows}))
    out.print(f"Curves: {folder / PICTURE}   Runs: {folder}/<algorithm>/rounds.jsonl")


@app.command(epilog="Example: episode run --set algorithm=episode --set task.similarity=10")
def run(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file or a run's folder; without, all defaults.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value: section.key=value.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run is written; by default below runs/.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the folder's run stopped.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Check and print the config, run nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment from a TOML config, and write its folder."""
    from episode.experiments.config import read_experiment, to_toml
    from episode.experiments.run import execute, job_of

    experiment = read_experiment(config, settings or [])
    if folder is None:
        folder = config if config and config.is_dir() else Path("runs") / experiment.name
    job = job_of(experiment)
    job.plan.check(job.task.num_clients)
    if dry_run:
        text = to_toml(experiment.to_dict())
        out.print_json(data=experiment.to_dict()) if as_json else out.print(text, markup=False)
        return
    if (folder / "config.json").exists() and not resume:
        raise EpisodeError(
            f"{folder} holds a run already: go on with --resume, or choose another --folder."
        )
    with _progress(quiet) as progress:
        result = execute(job, folder, _bar(progress, experiment.algorithm.label, experiment))
    summary = {**result.summary, "folder": str(folder)}
    if as_json:
        out.print_json(data=_strict(summary))
    else:
        _print_summary(summary)


@app.command(name="list", epilog="Example: episode list algorithms")
def list_names(
    kind: Annotated[str, typer.Argument(help="algorithms, tasks, engines or all.")] = "all",
    as_json: AsJson = False,
) -> None:
    """List algorithms, tasks and engines, one line each."""
    from episode.errors import unknown
    from episode.experiments.catalogue import catalogue

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
        out.print_json(data=_strict([vars(c) | {"passed": c.passed} for c in done]))
    else:
        out.print(f"{len(done) - failed} of {len(done)} checks hold.")
    if failed:
        raise typer.Exit(1)


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


def _bar(progress: Progress, name: str, experiment: Any) -> Any:
    """Shows each round's loss, ‖G_r‖ and whether it was clipped."""
    total = experiment.plan().rounds_to_play
    task = progress.add_task(name, total=total, state="")

    def observe(record: dict[str, Any]) -> None:
        norm = record["global_norm"]
        state = f"loss {record['loss']:.3g}"
        state += "" if norm is None else f"  ‖G‖ {norm:.3g}"
        state += "  clipped" if record["clipped"] else ""
        progress.update(task, completed=record["round"] + 1, state=state)

    return observe


def _print_summary(summary: dict[str, Any]) -> None:
    figures = summary.pop("figures")
    for key, value in {**summary, **figures}.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        out.print(f"{key:<16} {text}", markup=False)


def _verdict(rows: dict[str, dict[str, Any]]) -> str:
    """What the table shows, in words; a loss above that of guessing is a failure."""
    guessing = math.log(10)
    gain = 100 * ((rows["episode"]["accuracy"] or 0) - (rows["celgc"]["accuracy"] or 0))
    failed = [n for n, r in rows.items() if r["status"] != "finished" or r["loss"] > guessing]
    text = f"EPISODE is {gain:.0f} points of accuracy ahead of CELGC."
    if failed:
        text += f" Worse than guessing (loss above {guessing:.2f}): {', '.join(failed)}."
    return text


def _strict(values: Any) -> Any:
    from episode.results.store import dumps

    return json.loads(dumps(values))


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"Error: {message}", markup=False)
    sys.exit(code)
