"""Silos as they lie on a disk: a folder per silo, of tables of texts or of folders of images."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from episode.data.corpus import needs_data_extra
from episode.data.sources.imagenet import SUFFIXES as IMAGES
from episode.errors import EpisodeError

TABLES = {".csv", ".jsonl", ".parquet"}
HELD_OUT = {"test": "test", "validation": "validation", "val": "validation", "dev": "validation"}
"""Files (or folders of images) of these names are no training data."""

Kind = Literal["texts", "images"]


class Row(NamedTuple):
    """A text or an image's path, its label, and whence it came."""

    split: str
    content: str
    label: str
    where: str


@dataclass(frozen=True)
class Columns:
    """The names of the two columns that count."""

    text: str = "text"
    label: str = "label"


def silo_folders(root: Path) -> list[Path]:
    """One folder per silo, by name."""
    if not root.is_dir():
        raise EpisodeError(
            f"There is no folder {root} in {Path.cwd()}: give one with a folder for each silo, "
            "as seen from where you are."
        )
    found = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise EpisodeError(f"{root} has no folders in it: each silo's data go into one of its own.")
    return found


def _found_in(silo: Path) -> str:
    other = sorted(p.name for p in silo.iterdir() if p.is_file())
    return f" that can be read ({other[0]} cannot)" if other else ""


def kind_of(silos: list[Path]) -> Kind:
    """Whether silos hold tables or images; all must hold the same."""
    kinds: dict[Kind, Path] = {}
    for silo in silos:
        tables = any(p.suffix.lower() in TABLES for p in silo.iterdir())
        images = any(p.suffix.lower() in IMAGES for p in silo.glob("**/*"))
        if not tables and not images:
            raise EpisodeError(
                f"The silo {silo} has no data{_found_in(silo)}: put .csv, .jsonl or .parquet files "
                "there, or images in a folder for each label."
            )
        kinds.setdefault("texts" if tables else "images", silo)
    if len(kinds) > 1:
        raise EpisodeError(f"{kinds['texts']} holds texts and {kinds['images']} images: use one.")
    return next(iter(kinds))


def files_of(silo: Path, kind: Kind) -> list[Path]:
    """A silo's tables or images, by name."""
    if kind == "texts":
        return sorted(p for p in silo.iterdir() if p.suffix.lower() in TABLES)
    return sorted(p for p in silo.glob("**/*") if p.suffix.lower() in IMAGES)


def texts(silo: Path, columns: Columns) -> Iterator[Row]:
    """Every row of a silo's tables."""
    for path in files_of(silo, "texts"):
        split = HELD_OUT.get(path.stem.lower(), "train")
        for number, row in _rows(path):
            where = f"Row {number} of {path}"
            if None in row:
                raise EpisodeError(
                    f"{where} has more fields than columns: a text with a comma goes into quotes."
                )
            if missing := [c for c in (columns.text, columns.label) if c not in row]:
                raise EpisodeError(
                    f"{where} has the columns {', '.join(map(str, row))}, but no {missing[0]}: all "
                    "silos need the same two, named by task.text_column and task.label_column."
                )
            text, label = row[columns.text], _label(row[columns.label], where)
            if not isinstance(text, str):
                raise EpisodeError(f"{where} has {text!r} for its text: it must be text.")
            yield Row(split, text, label, where)


def _label(value: Any, where: str) -> str:
    """A label's name, the same in every kind of table: 1.0 is 1, and True is true."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        value = "" if math.isnan(value) else f"{value:g}" if value % 1 else int(value)
    if value is not None and not isinstance(value, (str, int)):
        raise EpisodeError(f"{where} has {value!r} for its label: it must be text or a number.")
    if value is None or not str(value).strip():
        raise EpisodeError(f"{where} has no label: fill it in, or leave the row out.")
    return str(value).strip()


def images(silo: Path) -> Iterator[Row]:
    """Every image of a silo: in a folder of its label, below train or test or not."""
    for path in files_of(silo, "images"):
        *outer, label = path.relative_to(silo).parent.parts or ("",)
        if not label or len(outer) > 1 or (not outer and label.lower() in HELD_OUT):
            raise EpisodeError(
                f"{path} has no label: images go to {silo}/<label>/, or {silo}/test/<label>/."
            )
        split = HELD_OUT.get(outer[0].lower(), "train") if outer else "train"
        yield Row(split, str(path), label, str(path))


def _rows(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    read = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}[path.suffix.lower()]
    number = 0
    try:
        for number, row in enumerate(read(path), 1):
            yield number, row
    except UnicodeDecodeError:
        raise EpisodeError(
            f"{path} is not UTF-8 text, at row {number + 1} or soon after: convert it."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (csv.Error, json.JSONDecodeError) as error:
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
            row = json.loads(line)
            if not isinstance(row, dict):
                raise EpisodeError(f"Row {number} of {path} is no JSON object.")
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
    except (pa.ArrowInvalid, OSError):
        raise EpisodeError(f"{path} is no parquet file, or is damaged.") from None
