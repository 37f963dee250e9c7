"""The command line's data side: `episode data fetch|check|where`, `episode partition`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from episode.cli.terminal import AsJson, err, out
from episode.errors import EpisodeError, unknown

data_commands = typer.Typer(
    no_args_is_help=True, help="Get datasets, check them, and see where they are."
)


@data_commands.command(epilog="Example: episode data fetch snli --from ~/Downloads/snli_1.0.zip")
def fetch(
    name: Annotated[str, typer.Argument(help="snli, sentiment140, cifar10, imagenet or glove.")],
    origin: Annotated[
        str | None,
        typer.Option("--from", help="Official folder or archive, or another dataset of the hub."),
    ] = None,
) -> None:
    """Get a dataset once, in its official layout: a download, or files you have.

    Without --from it is downloaded from the Hugging Face hub. A download that was stopped goes on;
    a dataset is there whole, or not at all.
    """
    from episode.data.sources import fetch as source

    with _progress():
        folder = source.fetch(name, origin)
    out.print(str(folder), markup=False)


@data_commands.command(epilog="Example: episode data check cifar10 --data cifar-10-python.tar.gz")
def check(
    name: Annotated[str, typer.Argument(help="snli, sentiment140, cifar10, imagenet or glove.")],
    data: Annotated[
        str | None, typer.Option(help="A folder or archive; by default what was fetched.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every row of a dataset; count labels, compare checksums and official sizes."""
    from episode.data.sources import check as source
    from episode.data.sources.fetch import SOURCES

    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    with _progress():
        folder = source.located(name, data)
        counts, sums = source.read_all(name, folder), source.verify_checksums(name, folder)
    official = source.OFFICIAL_SIZES.get(name, {})
    if as_json:
        out.print_json(data={"folder": str(folder), "splits": counts, "checksums": sums})
        return
    for split, labels in counts.items():
        total = sum(labels.values())
        whole = ""
        if split in official:
            whole = "complete" if total == official[split] else f"of {official[split]:,}: a subset"
        out.print(f"{split:<12} {total:>9,} {whole}", markup=False)
        if len(labels) <= 10:
            parts = ", ".join(f"{label} {n:,}" for label, n in labels.items())
            out.print(f"{'':<12} {parts}", markup=False)
    for line in sums:
        out.print(line, markup=False)
    out.print(f"Every row can be read: {folder}", markup=False)


@data_commands.command(epilog="Example: episode data where")
def where(as_json: AsJson = False) -> None:
    """Say where data are kept, which are there, and how large they are."""
    from episode.data.sources.fetch import SOURCES
    from episode.data.storage import dataset_folder, home

    datasets = {
        name: _size(dataset_folder(name)) if dataset_folder(name).is_dir() else None
        for name in SOURCES
    }
    kept = {part: _size(home() / part) for part in ("prepared", "unpacked", "downloads")}
    if as_json:
        out.print_json(data={"home": str(home()), "datasets": datasets, "caches": kept})
        return
    out.print(f"{home()}   (set EPISODE_HOME to move it)", markup=False)
    for name, size in datasets.items():
        state = f"not here: episode data fetch {name}   ({SOURCES[name].summary})"
        if size is not None:
            state = f"{size / 1e6:,.1f} MB in {dataset_folder(name)}"
        out.print(f"  {name:<14} {state}", markup=False)
    for part, size in kept.items():
        out.print(f"  {part:<14} {size / 1e6:,.1f} MB; may be removed at any time", markup=False)


def partition(
    task: Annotated[str, typer.Argument(help="A task whose data are dealt out, such as snli.")],
    similarity: Annotated[
        float | None, typer.Option(help="s: percent of the data dealt out uniformly.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="N.")] = None,
    data: Annotated[str | None, typer.Option(help="The task's data.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting, task.key=value; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Deals out anew.")] = 0,
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
    as_json: AsJson = False,
) -> None:
    """Show who has which labels: a table, and a picture of clients by labels."""
    from episode.data.partition import count_labels
    from episode.results.partition_figure import draw_partition
    from episode.runs.config import read_experiment

    given = {"similarity": similarity, "num_clients": clients, "data": data}
    overrides = [f"task.{k}={json.dumps(v)}" for k, v in given.items() if v is not None]
    experiment = read_experiment(None, [f"task.name={task}", *overrides, *(settings or [])])
    deal = getattr(experiment.task, "deal", None)
    if deal is None:
        raise EpisodeError(f"The task {task} has no examples to deal out: try digits or snli.")
    dealt = deal(seed)
    present, counts = count_labels(dealt.labels, dealt.parts)
    names = [dealt.names[int(n)] for n in present]
    rows = counts.tolist()
    if as_json:
        named = {"names": dealt.clients} if dealt.clients else {}
        out.print_json(data={"labels": names, "clients": rows, **named})
        return
    clients_shown = dealt.clients or tuple(map(str, range(len(rows))))
    _print_partition(names, rows, len(dealt.labels), clients_shown)
    draw_partition(names, rows, picture, _title(task, experiment.task, seed), clients_shown)
    out.print(f"Picture: {picture}", markup=False)


def shortcuts(
    config: Path | None, task: str | None, data: Path | None, model: str | None
) -> list[str]:
    """`--task`, `--data` and `--model` as settings; data alone are somebody's own silos."""
    if model and not (config or task or data):
        raise EpisodeError("--model is for silos of your own: give their folder with --data.")
    if task is None and data is not None:
        task = "silos"
    given = {"task.name": task, "task.data": data and str(data), "task.model": model}
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(epilog="Example: episode partition digits --similarity 30")(partition)
    app.add_typer(data_commands, name="data")


def show_log(console: Console) -> None:
    """What the data side has to say (preparing takes a while) goes to stderr."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(record.getMessage(), markup=False)

    log = logging.getLogger("episode")
    log.handlers = [Handler()]
    log.setLevel(logging.INFO)


def _print_partition(
    names: list[str], rows: list[list[int]], examples: int, clients: Sequence[str]
) -> None:
    shown = len(names) <= 12 and len(rows) <= 40
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for column in ["client", "examples", *(names if shown else ["labels", "most frequent"])]:
        table.add_column(column, justify="left" if column == "most frequent" else "right")
    for client, row in enumerate(rows[:40]):
        most = max(range(len(row)), key=row.__getitem__)
        brief = [str(sum(n > 0 for n in row)), f"{names[most]} ({row[most] / sum(row):.0%})"]
        cells = [f"{n:,}" for n in row] if shown else brief
        table.add_row(clients[client], f"{sum(row):,}", *cells)
    out.print(table)
    dealt = sum(map(sum, rows))
    more = f" (the first 40 of {len(rows)} clients are shown)" if len(rows) > 40 else ""
    out.print(f"{dealt:,} of {examples:,} examples are dealt out{more}.", markup=False)


def _title(task: str, settings: Any, seed: int) -> str:
    kind = getattr(settings, "partition", "similarity" if hasattr(settings, "similarity") else "")
    values = {
        "similarity": f"similarity s = {getattr(settings, 'similarity', 0):g}%",
        "dirichlet": f"Dirichlet, α = {getattr(settings, 'alpha', 0):g}",
        "labels": f"{getattr(settings, 'labels_per_client', 0)} labels per client",
        "users": "one client per user",
    }
    return f"{task}: {values.get(kind, 'one client per silo')}, seed {seed}"


@contextmanager
def _progress() -> Iterator[None]:
    """Within it, work on data is shown on a terminal."""
    from episode.data.progress import shown

    columns = (
        TextColumn("{task.description:<24}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:

        def show(items: Iterable[Any], what: str, total: int | None) -> Iterator[Any]:
            line = progress.add_task(what, total=total)
            yield from progress.track(items, total=total, task_id=line)
            progress.update(line, total=progress.tasks[line].completed)

        with shown(show):
            yield


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
