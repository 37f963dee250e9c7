"""Silos on a disk: one folder each, with tables of texts or with folders of images."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from episode.data.sources.imagenet import IMAGE_SUFFIXES
from episode.errors import EpisodeError, needs_data_extra
from episode.files import parse_json

HELD_OUT = {"test": "test", "validation": "validation", "val": "validation", "dev": "validation"}
"""Files (or folders of images) with these names are not trained on."""

Kind = Literal["texts", "images"]
KINDS: dict[Kind, tuple[str, set[str]]] = {
    "texts": ("*", {".csv", ".jsonl", ".parquet"}),
    "images": ("**/*", IMAGE_SUFFIXES),
}
"""Where files of each kind are in a silo's folder, and how their names end."""


class Row(NamedTuple):
    """One example: a text or the path of an image, its label, and its place for messages."""

    silo: int
    """Number of the silo, from 0."""
    split: str
    content: str
    label: str
    place: str


def silo_folders(root: Path) -> list[Path]:
    """Return the folder of each silo, sorted by name.

    Raises:
        EpisodeError: There is no such folder, or it has no folders in it.
    """
    if not root.is_dir():
        raise EpisodeError(
            f"There is no folder {root} in {Path.cwd()}: give the path of a folder that has one "
            "folder for each silo."
        )
    found = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise EpisodeError(
            f"{root} has no folders in it: put each silo's data into its own folder."
        )
    return found


def own_folder(folder: Path) -> Path:
    """Return the folder of a single silo, as an absolute path.

    Raises:
        EpisodeError: There is no such folder, or the data are in folders of silos below it.
    """
    if not folder.is_dir():
        raise EpisodeError(f"There is no folder {folder}: give the folder of this site's data.")
    return folder.resolve()


def kind_of(silos: list[Path]) -> Kind:
    """Return whether the silos hold tables of texts or images.

    Raises:
        EpisodeError: A silo has neither, or some have texts and some have images.
    """
    kinds: dict[Kind, Path] = {}
    for silo in silos:
        found: list[Kind] = [kind for kind in KINDS if files_of(silo, kind)]
        if not found:
            other = sorted(p.name for p in silo.iterdir() if p.is_file())
            hint = f" that can be read ({other[0]} cannot)" if other else ""
            raise EpisodeError(
                f"The silo {silo} has no data{hint}: put .csv, .jsonl or .parquet files there, "
                "or images in a folder for each label."
            )
        kinds.setdefault(found[0], silo)
    if len(kinds) > 1:
        raise EpisodeError(
            f"{kinds['texts']} holds texts and {kinds['images']} images: all silos must hold the "
            "same kind of data."
        )
    return next(iter(kinds))


def files_of(silo: Path, kind: Kind) -> list[Path]:
    """Return a silo's tables or images, sorted by name.

    Raises:
        EpisodeError: A pipe or a device has such a name: reading it might never end.
    """
    pattern, suffixes = KINDS[kind]
    named = [p for p in silo.glob(pattern) if p.suffix.lower() in suffixes and not p.is_dir()]
    for path in named:
        if not path.is_file():
            raise EpisodeError(f"{path} is not a regular file: remove it from the silo.")
    return sorted(named)


def texts(silos: Mapping[int, Path], text_column: str, label_column: str) -> Iterator[Row]:
    """Read every row of the tables of silos, which are given by their number."""
    for silo, path in _numbered_files(silos, "texts"):
        split = HELD_OUT.get(path.stem.lower(), "train")
        for number, row in _rows(path):
            place = f"Row {number} of {path}"
            if None in row:
                raise EpisodeError(
                    f"{place} has more fields than columns: put a text with a comma into quotes."
                )
            if missing := [c for c in (text_column, label_column) if c not in row]:
                raise EpisodeError(
                    f"{place} has the columns {', '.join(map(str, row))}, but no {missing[0]}: all "
                    "silos need the same two, named by task.text_column and task.label_column; for "
                    "tables of numbers, use --model mlp."
                )
            text, label = row[text_column], _label(row[label_column], place)
            if not isinstance(text, str):
                kind = type(text).__name__  # never the value: a site's messages reach the server
                raise EpisodeError(f"{place} has a {kind} for its text: it must be a string.")
            yield Row(silo, split, text, label, place)


def number_columns(silos: Mapping[int, Path], label_column: str) -> list[str]:
    """Return the columns of numbers, in the order of the first table.

    Raises:
        EpisodeError: There is no column but that of the label.
    """
    _, path = next(_numbered_files(silos, "texts"))
    _, first = next(_rows(path))
    columns = [str(name) for name in first if name not in (None, label_column)]
    if not columns:
        raise EpisodeError(f"{path} has no columns of numbers beside {label_column}.")
    return columns


def numbers(silos: Mapping[int, Path], columns: Sequence[str], label_column: str) -> Iterator[Row]:
    """Read every row of the tables of silos; the content of a row is its numbers, as text."""
    for silo, path in _numbered_files(silos, "texts"):
        split = HELD_OUT.get(path.stem.lower(), "train")
        for number, row in _rows(path):
            place = f"Row {number} of {path}"
            if set(row) != {*columns, label_column}:
                raise EpisodeError(
                    f"{place} has the columns {', '.join(map(str, row))}, but needs "
                    f"{', '.join(columns)} and {label_column} (task.label_column): all silos need "
                    "the same."
                )
            content = " ".join(repr(_number(row[name], name, place)) for name in columns)
            yield Row(silo, split, content, _label(row[label_column], place), place)


def _number(value: Any, column: str, place: str) -> float:
    """Return a finite number; a message never has the value, as it may reach a server."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise EpisodeError(
            f"{place} has no number in the column {column}: fill it in, encode it as a number, or "
            "remove the row or the column."
        )
    return found


def _label(value: Any, place: str) -> str:
    """Return a label's name, the same in every kind of table: 1 for 1.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        value = "" if math.isnan(value) else f"{value:g}" if value % 1 else int(value)
    if value is not None and not isinstance(value, (str, int)):
        kind = type(value).__name__
        raise EpisodeError(f"{place} has a {kind} for its label: it must be text or a number.")
    if value is None or not str(value).strip():
        raise EpisodeError(f"{place} has no label: fill it in, or remove the row.")
    return str(value).strip()


def images(silos: Mapping[int, Path]) -> Iterator[Row]:
    """List every image of the silos, given by their number; an image's folder is its label."""
    for silo, path in _numbered_files(silos, "images"):
        root = silos[silo]
        *outer, label = path.relative_to(root).parent.parts or ("",)
        if not label or len(outer) > 1 or (not outer and label.lower() in HELD_OUT):
            raise EpisodeError(
                f"{path} has no label: put images into {root}/<label>/, or {root}/test/<label>/."
            )
        split = HELD_OUT.get(outer[0].lower(), "train") if outer else "train"
        yield Row(silo, split, str(path), label, str(path))


def _numbered_files(silos: Mapping[int, Path], kind: Kind) -> Iterator[tuple[int, Path]]:
    return ((number, file) for number, silo in silos.items() for file in files_of(silo, kind))


def _rows(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    read = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}[path.suffix.lower()]
    number = 0
    try:
        for number, row in enumerate(read(path), 1):
            yield number, row
    except UnicodeDecodeError:
        raise EpisodeError(
            f"{path} is not UTF-8 text, at row {number + 1} or soon after: convert the file."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (csv.Error, ValueError) as error:
        raise EpisodeError(f"Row {number + 1} of {path} cannot be read ({error}).") from None
    if not number:
        raise EpisodeError(f"{path} has no rows.")


def _csv(path: Path) -> Iterator[dict[Any, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, strict=True)


def _jsonl(path: Path) -> Iterator[dict[Any, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = parse_json(line)
            if not isinstance(row, dict):
                raise EpisodeError(f"Row {number} of {path} is not a JSON object.")
            yield row


def _parquet(path: Path) -> Iterator[dict[Any, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise needs_data_extra("Parquet files need pyarrow") from None
    try:
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        raise EpisodeError(f"{path} is no parquet file, or it is damaged.") from None
