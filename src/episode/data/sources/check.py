"""Whether a dataset is whole: every row read, checksums where they are known."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from episode.data.decoding import verify_images
from episode.data.progress import track
from episode.data.sources import cifar10, imagenet, sentiment140, snli
from episode.data.sources.layout import find, only_in_test, require, source_folder
from episode.data.word_vectors import count_vectors
from episode.errors import EpisodeError

Row = TypeVar("Row")
Counts = dict[str, dict[str, int]]
"""How many examples of each label, by split."""

MANIFEST = "manifest.json"
LISTED = 10_000
"""Above so many files (ImageNet), a manifest would take longer than the check itself."""

OFFICIAL_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""Of CIFAR-10's batches as their authors published them."""

OFFICIAL_SIZES = {
    "snli": {"train": 549_367, "validation": 9_842, "test": 9_824},
    "sentiment140": {"train": 1_600_000, "manual": 359},
    "cifar10": {"train": 50_000, "test": 10_000},
    "imagenet": {"train": 1_281_167, "test": 50_000},
}
"""Examples with a label."""


def located(name: str, given: str | None) -> Path:
    """The folder of a dataset; for word vectors also a file of them, which is read as it is."""
    if given and name.startswith("glove") and (file := Path(given).expanduser()).is_file():
        return file
    return source_folder(name, given)


def is_official(name: str, folder: Path) -> bool:
    """Whether a folder looks like the official layout of this dataset."""
    wanted = {
        "snli": "snli_1.0_train.jsonl",
        "sentiment140": sentiment140.TRAIN,
        "cifar10": cifar10.TRAIN[0],
        "imagenet": "train",
    }
    return find(folder, wanted.get(name, "*.txt*")) is not None


def read_all(name: str, folder: Path) -> Counts:
    """Reads every row of a dataset; an error names the file and row that is wrong."""
    counts = _counts(name, folder)
    for split, labels in counts.items():
        if not any(labels.values()):
            raise EpisodeError(f"{folder} has no {split} row with a label that counts.")
        for label, count in labels.items():
            if count and "train" in counts and not counts["train"][label]:
                raise only_in_test(_where(name, folder, split, list(labels).index(label)), label)
    return counts


def _where(name: str, folder: Path, split: str, label: int) -> str:
    """The first row of a split that has a label, in words."""
    if name == "snli":
        return snli.where(snli.files(folder)[split], label)
    if name == "sentiment140":
        return sentiment140.where(sentiment140.files(folder)[split], label)
    if name == "cifar10":
        return cifar10.where(cifar10.files(folder)[split][0], label)
    folders = imagenet.folders(folder)
    found = imagenet.images(folders[split], imagenet.classes(folders["train"]))
    return str(next(path for path, number in found if number == label))


def _counts(name: str, folder: Path) -> Counts:
    if name == "snli":
        return {
            split: _named(Counter(label for *_, label in _rows(snli.pairs, path)), snli.LABELS)
            for split, path in snli.files(folder).items()
        }
    if name == "sentiment140":
        return {
            split: _named(
                Counter(tweet.label for tweet in _rows(sentiment140.tweets, path)),
                sentiment140.LABELS,
            )
            for split, path in sentiment140.files(folder).items()
        }
    if name == "cifar10":
        return {
            split: _named(
                Counter(
                    int(label)
                    for path in track(paths, f"reading {split} batches", len(paths))
                    for label in cifar10.read_batch(path)[1]
                ),
                cifar10.LABELS,
            )
            for split, paths in cifar10.files(folder).items()
        }
    if name == "imagenet":
        return dict(_read_images(folder))
    file = folder if folder.is_file() else _vector_file(folder)
    return {file.name: {"words": count_vectors(file)}}


def _read_images(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    folders = imagenet.folders(folder)
    names = imagenet.classes(folders["train"])
    for split, root in folders.items():
        found = imagenet.images(root, names)
        verify_images([path for path, _ in found])
        yield split, _named(Counter(label for _, label in found), names)


def _rows(read: Callable[[Path], Iterable[Row]], path: Path) -> Iterable[Row]:
    return track(read(path), f"reading {path.name}")


def _vector_file(folder: Path) -> Path:
    found = [p for pattern in ("*.txt", "*.txt.gz", "*.zip") for p in folder.glob(pattern)]
    if len(found) != 1:
        raise EpisodeError(f"{folder} must hold one file of vectors, but it holds {len(found)}.")
    return found[0]


def verify_checksums(name: str, folder: Path) -> list[str]:
    """What checksums say, one line each; refuses files that changed since they were fetched."""
    lines = []
    manifest = folder / MANIFEST
    if manifest.exists():
        listed: dict[str, str] = json.loads(manifest.read_text())
        for file, expected in track(listed.items(), "comparing checksums", len(listed)):
            path = folder / file
            if not path.exists() or digest(path, "sha256") != expected:
                raise EpisodeError(
                    f"{path} is not what was fetched: remove {folder} and fetch {name} again."
                )
        lines.append(f"{len(listed)} files as they were when fetched (sha256)")
    if name == "cifar10":
        paths = require(folder, OFFICIAL_MD5, "CIFAR-10")
        same = sum(digest(p, "md5") == OFFICIAL_MD5[p.name] for p in paths)
        lines.append(f"{same} of {len(paths)} batches have their official md5")
    return lines


def write_manifest(name: str, folder: Path) -> None:
    """Checksums of all files, to tell later whether they are still the same."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    if len(files) <= LISTED:
        sums = {
            str(path.relative_to(folder)): digest(path, "sha256")
            for path in track(files, "writing checksums", len(files))
        }
        (folder / MANIFEST).write_text(json.dumps(sums, indent=2) + "\n")


def digest(path: Path, algorithm: str) -> str:
    """A file's checksum, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _named(counts: Counter[int], names: tuple[str, ...] | list[str]) -> dict[str, int]:
    return {name: counts[number] for number, name in enumerate(names)}
