"""Getting datasets from official files or through Hugging Face `datasets`: all or nothing."""

from __future__ import annotations

import contextlib
import csv
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from episode.data.corpus import needs_data_extra
from episode.data.progress import track
from episode.data.sources import check, cifar10, sentiment140, snli
from episode.data.sources.layout import copy_file, is_archive, unpack
from episode.data.storage import dataset_folder, home, log, make_folder
from episode.errors import EpisodeError, unknown


@dataclass(frozen=True)
class Source:
    """A dataset that can be fetched."""

    summary: str
    hub: str
    revision: str | None = None
    file: str | None = None
    """One file of the hub's repository, for what is no table of rows."""
    convert: Callable[[Any, Path], None] | None = None
    """Writes the hub's rows in the official layout."""


def fetch(name: str, origin: str | None = None) -> Path:
    """The dataset's folder, in its official layout; got from `origin` if it is not there yet.

    `origin` is a folder or archive of the official files, or a dataset of the hub (or a folder that
    `datasets` can load); without, the usual one. A download that was stopped goes on where it was.
    """
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    target = dataset_folder(name)
    if target.is_dir():
        if origin:
            log.info("%s is here already; remove %s to take it from %s.", name, target, origin)
        return target

    def write(folder: Path) -> None:
        try:
            _fill(name, origin, folder)
        except EpisodeError as error:  # the part is gone when this is read
            whence = Path(origin).expanduser() if origin else Path(SOURCES[name].hub)
            copy = folder / whence.name if whence.is_file() else folder
            text = str(error).replace(str(copy), str(whence)).replace(str(folder), str(whence))
            raise EpisodeError(text) from None

    make_folder(target, write)
    shutil.rmtree(_downloads(name), ignore_errors=True)  # one copy is enough
    return target


def _fill(name: str, origin: str | None, folder: Path) -> None:
    source = SOURCES[name]
    path = Path(origin).expanduser() if origin else None
    if path is not None and path.is_file():
        _copy_file(path, folder)
    elif path is not None and path.is_dir() and check.is_official(name, path):
        _copy_folder(path, folder)
    elif source.file is not None:
        if origin:
            raise EpisodeError(f"There is no file {origin} to take {name} from.")
        downloaded = _from_hub(name, source.hub, lambda: _hub_file(name))
        copy_file(Path(downloaded), folder / source.file)
    else:
        assert source.convert is not None
        rows = _from_hub(name, origin or source.hub, lambda: _hub_rows(name, origin))
        source.convert(rows, folder)
    check.read_all(name, folder)
    check.write_manifest(name, folder)


def _copy_file(path: Path, folder: Path) -> None:
    """Archives are unpacked, but for word vectors, which are read as they are."""
    if is_archive(path) and "glove" not in path.name.lower():
        unpack(path, folder)
    else:
        copy_file(path, folder / path.name)


def _copy_folder(path: Path, folder: Path) -> None:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    for file in track(files, f"copying {path.name}", len(files)):
        target = folder / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _from_hub(name: str, origin: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (EpisodeError, KeyboardInterrupt):
        raise
    except ImportError:
        raise needs_data_extra("Downloads need the package datasets") from None
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
        raise EpisodeError(
            f"{name} could not be fetched from {origin} ({reason}): check the connection and the "
            "name, or give the official files with --from."
        ) from error


def _downloads(name: str) -> Path:
    """Where a download is kept until the dataset is whole."""
    return home() / "downloads" / name


def _hub_file(name: str) -> str:
    from huggingface_hub import hf_hub_download

    source = SOURCES[name]
    assert source.file is not None
    return str(hf_hub_download(source.hub, source.file, cache_dir=_downloads(name)))


def _hub_rows(name: str, origin: str | None) -> Any:
    from datasets import load_dataset

    source = SOURCES[name]
    revision = None if origin else source.revision
    return load_dataset(origin or source.hub, revision=revision, cache_dir=str(_downloads(name)))


def _split(rows: Any, name: str) -> Any:
    if name not in rows:
        raise EpisodeError(f"The dataset has the splits {', '.join(rows)}, but no {name}.")
    return rows[name]


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise EpisodeError(f"The dataset's rows have no column {error}.") from None


def _write_snli(rows: Any, folder: Path) -> None:
    for split, official in snli.SPLITS.items():
        part = _split(rows, split)
        path = folder / f"snli_1.0_{official}.jsonl"
        with path.open("w", encoding="utf-8") as file, _columns():
            for row in track(part, f"snli {split}", len(part)):
                gold = snli.UNDECIDED if row["label"] < 0 else snli.LABELS[row["label"]]
                pair = {
                    "gold_label": gold,
                    "sentence1": row["premise"],
                    "sentence2": row["hypothesis"],
                }
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")


def _write_sentiment140(rows: Any, folder: Path) -> None:
    files = {"train": sentiment140.TRAIN, "test": sentiment140.MANUAL}
    for split, official in files.items():
        part = _split(rows, split)
        path = folder / official
        with path.open("w", encoding="latin-1", errors="replace", newline="") as file, _columns():
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for number, row in enumerate(track(part, f"sentiment140 {split}", len(part))):
                polarity, query = row["sentiment"], row.get("query", "")
                writer.writerow(
                    [polarity, number, row.get("date", ""), query, row["user"], row["text"]]
                )


def _write_cifar10(rows: Any, folder: Path) -> None:
    for split, names in {"train": cifar10.TRAIN, "test": (cifar10.TEST,)}.items():
        part = _split(rows, split)
        size = -(-len(part) // len(names))
        for k, name in enumerate(names):
            chosen = range(k * size, min((k + 1) * size, len(part)))
            images, labels = [], []
            with _columns():
                for i in track(chosen, f"cifar10 {name}", len(chosen)):
                    row = part[i]
                    pixels = np.asarray((row.get("img") or row["image"]).convert("RGB"), np.uint8)
                    images.append(pixels.transpose(2, 0, 1).reshape(-1))
                    labels.append(int(row["label"]))
            with (folder / name).open("wb") as file:
                pickle.dump({"data": np.stack(images), "labels": labels}, file, protocol=2)


def _write_imagenet(rows: Any, folder: Path) -> None:
    from datasets import Image

    for split, official in {"train": "train", "validation": "val"}.items():
        part = _split(rows, split).cast_column("image", Image(decode=False))
        with _columns():
            for number, row in enumerate(track(part, f"imagenet {split}", len(part))):
                place = folder / official / f"{row['label']:04d}"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{number:07d}.JPEG").write_bytes(row["image"]["bytes"])


SOURCES = {
    "snli": Source("SNLI 1.0, 90 MB", "stanfordnlp/snli", convert=_write_snli),
    "sentiment140": Source(
        "1.6 million tweets, 80 MB",
        "stanfordnlp/sentiment140",
        "refs/convert/parquet",
        convert=_write_sentiment140,
    ),
    "cifar10": Source("CIFAR-10, 170 MB", "uoft-cs/cifar10", convert=_write_cifar10),
    "imagenet": Source(
        "ImageNet 2012, 150 GB; asks for an account", "ILSVRC/imagenet-1k", convert=_write_imagenet
    ),
    "glove": Source(
        "GloVe 840B, 300 numbers a word, 2.2 GB; the paper's",
        "stanfordnlp/glove",
        file="glove.840B.300d.zip",
    ),
    "glove-6b": Source(
        "GloVe 6B, 50 to 300 numbers a word, 0.9 GB", "stanfordnlp/glove", file="glove.6B.zip"
    ),
}
