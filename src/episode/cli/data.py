"""Commands for data: `episode data fetch`, `check` and `where`, and `episode partition`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from episode.cli.commands import group
from episode.cli.terminal import AsJson, err, out
from episode.errors import EpisodeError
from episode.results.plain_text import printable
from episode.results.tables import Table

if TYPE_CHECKING:  # torch takes seconds to import, and help should not
    from episode.results.store import LabelCounts

say = out.print

data_commands = group(
    "Download datasets, check them, and show where they are kept on this machine."
)

DatasetName = Annotated[
    str, typer.Argument(help="snli, sentiment140, cifar10, imagenet, glove or glove-6b.")
]
DataPath = Annotated[
    str | None, typer.Option(help="Folder or archive of the data; by default, what was fetched.")
]


@data_commands.command(epilog="Example: episode data fetch snli --from ~/Downloads/snli_1.0.zip")
def fetch(
    name: DatasetName,
    origin: Annotated[
        str | None,
        typer.Option("--from", help="Folder or archive of the official files, or a hub dataset."),
    ] = None,
) -> None:
    """Fetch a dataset: download it from the Hugging Face hub, or take files that you have.

    Without --from it is downloaded; an interrupted download continues where it stopped. Every row
    is checked, and a dataset is stored completely or not at all.
    """
    from episode.data.sources.fetch import fetch as fetch_dataset

    with _progress():
        folder = fetch_dataset(name, origin)
    say(str(folder))


@data_commands.command(epilog="Example: episode data check cifar10 --data cifar-10-python.tar.gz")
def check(name: DatasetName, data: DataPath = None, as_json: AsJson = False) -> None:
    """Read every row of a dataset, count its labels, and compare checksums and official sizes."""
    from episode.data.sources import source_named
    from episode.data.sources.fetch import verify_checksums

    source = source_named(name)
    with _progress():
        folder = source.locate(data)
        counts, sums = source.check(folder), verify_checksums(source, folder)
    if as_json:
        out.print_json(data={"folder": str(folder), "splits": counts, "checksums": sums})
        return
    for split, labels in counts.items():
        total, official = sum(labels.values()), source.sizes.get(split)
        whole = "" if official is None else f"of {official:,}: a subset"
        say(f"{split:<12} {total:>9,} {'complete' if total == official else whole}")
        if len(labels) <= 10:
            parts = ", ".join(f"{label} {n:,}" for label, n in labels.items())
            say(f"{'':<12} {parts}")
    for line in sums:
        say(line)
    say(f"Every row can be read: {folder}")


@data_commands.command(epilog="Example: episode data where")
def where(as_json: AsJson = False) -> None:
    """Show where data are kept, which datasets are there, and how large they are."""
    from episode.data.sources import SOURCES
    from episode.data.storage import data_folder, dataset_folder

    folders = {name: dataset_folder(name) for name in SOURCES}
    sizes = {name: _size(path) if path.is_dir() else None for name, path in folders.items()}
    caches = {name: _size(data_folder() / name) for name in ("prepared", "unpacked", "downloads")}
    if as_json:
        out.print_json(data={"home": str(data_folder()), "datasets": sizes, "caches": caches})
        return
    say(f"{data_folder()}   (set EPISODE_HOME to move it)")
    for name, size in sizes.items():
        missing = f"not here: episode data fetch {name}   ({SOURCES[name].summary})"
        found = f"{(size or 0) / 1e6:,.1f} MB in {folders[name]}"
        say(f"  {name:<14} {missing if size is None else found}")
    for name, size in caches.items():
        say(f"  {name:<14} {size / 1e6:,.1f} MB; may be removed at any time")


def partition(
    task: Annotated[str, typer.Argument(help="Task with data to distribute, such as digits.")],
    similarity: Annotated[
        float | None,
        typer.Option(
            help="s: percentage of the data that is distributed uniformly; the rest is sorted by "
            "label. With 100 all clients are alike, with 0 each has few labels."
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="N: number of clients.")] = None,
    data: DataPath = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set task.key=value; may be repeated. task.partition=dirichlet draws each label's "
            "shares at random: a small task.alpha (α) gives clients few labels. "
            "task.partition=labels gives each client task.labels_per_client labels.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the distribution.")] = 0,
    picture: Annotated[Path, typer.Option(help="File for the picture, .png or .svg.")] = Path(
        "partition.png"
    ),
    as_json: AsJson = False,
) -> None:
    """Show which client has which labels, as a table and a picture."""
    from episode.results.figures import PICTURES, check_target, draw_partition
    from episode.runs.config import read_experiment

    check_target(picture, *PICTURES)
    given = {"similarity": similarity, "num_clients": clients, "data": data}
    overrides = [f"task.{k}={json.dumps(v)}" for k, v in given.items() if v is not None]
    experiment = read_experiment(None, [f"task.name={task}", *overrides, *(settings or [])])
    found = experiment.task.partition(seed)
    if found is None:
        raise EpisodeError(f"The task {task} has no examples to distribute: try digits or snli.")
    table = experiment.task.label_counts(found, seed)
    if as_json:
        names = {"names": table.clients} if found.clients else {}
        out.print_json(data={"labels": table.labels, "clients": table.counts, **names})
        return
    _print_partition(table, len(found.labels))
    title = f"{task}: {table.title}"
    draw_partition(table.labels, table.counts, picture, title, table.clients)
    say(f"Picture: {picture}")


def shortcuts(
    config: Path | None, task: str | None, data: Path | None, model: str | None
) -> list[str]:
    """Turn `--task`, `--data` and `--model` into settings; --data without --task means silos."""
    if model and not (config or task or data):
        raise EpisodeError("--model is for your own silos: give their folder with --data.")
    if task is None and data is not None:
        task = "silos"
    given = {"task.name": task, "task.data": data and str(data), "task.model": model}
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(epilog="Example: episode partition digits --similarity 30")(partition)
    app.add_typer(data_commands, name="data")


def show_log(console: Console) -> None:
    """Print log messages, such as that data are being prepared, on a console."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(record.getMessage())

    log = logging.getLogger("episode")
    log.handlers = [Handler()]
    log.setLevel(logging.INFO)


def _print_partition(counts: LabelCounts, examples: int) -> None:
    labels, rows = counts.labels, counts.counts
    shown = len(labels) <= 12 and len(rows) <= 40
    columns = ["client", "examples", *(labels if shown else ["labels", "most frequent"])]
    table = Table("", columns, left=0)
    for client, row in zip(counts.clients, rows[:40], strict=False):
        most = max(range(len(row)), key=row.__getitem__)
        brief = [str(sum(n > 0 for n in row)), f"{labels[most]} ({row[most] / sum(row):.0%})"]
        cells = [f"{n:,}" for n in row] if shown else brief
        table.rows.append([client, f"{sum(row):,}", *cells])
    out.print(table)
    distributed = sum(map(sum, rows))
    more = f" (the first 40 of {len(rows)} clients are shown)" if len(rows) > 40 else ""
    say(f"{distributed:,} of {examples:,} examples are distributed{more}.")


@contextmanager
def _progress() -> Iterator[None]:
    """Show the progress of work on data, if stderr is a terminal."""
    from episode.data.progress import show_progress

    words = TextColumn("{task.description:<24}", markup=False)
    bar = words, BarColumn(bar_width=24), MofNCompleteColumn()
    quiet = not err.is_terminal
    with Progress(*bar, TimeRemainingColumn(), console=err, disable=quiet) as progress:

        def display(items: Iterable[Any], what: str, total: int | None) -> Iterator[Any]:
            line = progress.add_task(printable(what, one_line=True), total=total)
            yield from progress.track(items, total=total, task_id=line)
            progress.update(line, total=progress.tasks[line].completed)

        with show_progress(display):
            yield


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
