"""The contract of a dataset: its names, and how its official files are found, read and checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from episode.data.progress import track
from episode.data.sources.archives import unpacked
from episode.data.storage import dataset_folder
from episode.errors import EpisodeError

LabelTotals = dict[str, dict[str, int]]
"""How many examples of each label there are, by split."""
DEPTH = 3
"""How many folders below the given one official files are searched for."""


class Source(ABC):
    """A dataset that `episode data` can fetch, check and locate."""

    name: str
    """The name on the command line."""
    title: str
    """The name in messages."""
    summary: str
    """One line: what it is, and how large."""
    hub: str
    """Its repository on the Hugging Face hub."""
    landmark: str
    """A file or folder by which the official files are recognised; may have wildcards."""
    is_unpacked: bool = True
    """Whether zip archives are unpacked; otherwise the data are read from them."""
    sizes: Mapping[str, int] = {}
    """Official numbers of labelled examples, by split."""
    md5: Mapping[str, str] = {}
    """Official checksums, by file name."""

    @abstractmethod
    def check(self, folder: Path) -> LabelTotals:
        """Read everything in a folder of official files, and count the labels.

        Raises:
            EpisodeError: Names the file and row that is wrong.
        """

    @abstractmethod
    def download(self, origin: str | None, cache: Path) -> Any:
        """Download the dataset from the hub, or load it from `origin`; `cache` keeps progress."""

    @abstractmethod
    def convert(self, downloaded: Any, folder: Path) -> None:
        """Write what `download` returned into a folder, as official files."""

    def locate(self, given: str | None) -> Path:
        """Return the folder of the dataset: the given one, or the one that was fetched.

        Args:
            given: A folder, or an archive, which is unpacked once; None for what was fetched.

        Raises:
            EpisodeError: There is no such folder or archive, or nothing was fetched.
        """
        path = dataset_folder(self.name) if given is None else Path(given).expanduser()
        if path.is_dir():
            return path
        if given is None:
            raise EpisodeError(
                f"{self.name} is not on this machine: get it with `episode data fetch "
                f"{self.name}`, or give the folder or archive of its official files as task.data."
            )
        if path.is_file():
            return unpacked(path) if self.is_unpacked else path
        raise EpisodeError(
            f"There is no folder or archive {path}: give the official files of {self.name}."
        )


class Row(NamedTuple):
    """A labelled example: a row of a file, or a file."""

    label: int
    path: Path
    place: str = ""
    """Its place in the file, such as `Line 3`; empty for a whole file."""
    texts: tuple[str, ...] = ()
    user: str = ""


class LabelledSource(Source):
    """A dataset of labelled examples in splits, the first of which is `train`."""

    labels: Sequence[str] = ()
    """Names of the labels 0, 1, …, if they are always the same."""
    revision: str | None = None
    """The hub's branch to download; None for the main one."""
    hub_splits: Sequence[str] = ("train", "test")
    """Names of the splits on the hub, in the order of the splits here."""

    @abstractmethod
    def rows(self, folder: Path) -> dict[str, Iterable[Row]]:
        """Return the labelled examples of each split, which may be read when they are used.

        Raises:
            EpisodeError: A file is missing, or a row is wrong, when it is read.
        """

    def label_names(self, folder: Path) -> Sequence[str]:
        """Return the names of the labels 0, 1, …"""
        return self.labels

    def check(self, folder: Path) -> LabelTotals:
        rows, names = self.rows(folder), self.label_names(folder)
        counts = {split: Counter(row.label for row in own) for split, own in rows.items()}
        self.check_labels(folder, counts)
        return {
            split: {name: found[label] for label, name in enumerate(names)}
            for split, found in counts.items()
        }

    def check_labels(self, folder: Path, labels: Mapping[str, Collection[int]]) -> None:
        """Refuse a split without labels, and a label that is missing from the training split."""
        for split, found in labels.items():
            if not found:
                raise EpisodeError(f"{folder} has no {split} row with a label that counts.")
            for label in sorted(set(found) - set(labels["train"])):
                row = next(row for row in self.rows(folder)[split] if row.label == label)
                place = f"{row.place} of {row.path}" if row.place else str(row.path)
                raise not_trained_on(place, self.label_names(folder)[label])

    def download(self, origin: str | None, cache: Path) -> Any:
        from datasets import load_dataset

        revision = None if origin else self.revision
        return load_dataset(origin or self.hub, revision=revision, cache_dir=str(cache))

    def convert(self, downloaded: Any, folder: Path) -> None:
        for name, split in zip(self.hub_splits, self.sizes, strict=True):
            if name not in downloaded:
                given = ", ".join(downloaded)
                raise EpisodeError(f"The dataset has the splits {given}, but no {name}.")
            self.write_split(folder, split, downloaded[name])

    @abstractmethod
    def write_split(self, folder: Path, split: str, rows: Any) -> None:
        """Write a split's rows from the hub into a folder, as official files."""


class TextSource(LabelledSource):
    """A dataset of labelled texts, with one file for each split."""

    file_names: Mapping[str, str]
    """The official file of each split."""
    columns: int
    """Texts per example."""

    @abstractmethod
    def parse(self, path: Path) -> Iterator[Row]:
        """Read the labelled examples of a file."""

    def files(self, folder: Path) -> dict[str, Path]:
        """Return the path of each split's file."""
        paths = require(folder, self.file_names.values(), self.title)
        return dict(zip(self.file_names, paths, strict=True))

    def rows(self, folder: Path) -> dict[str, Iterable[Row]]:
        return {
            split: track(self._read(path), f"reading {path.name}")
            for split, path in self.files(folder).items()
        }

    def _read(self, path: Path) -> Iterator[Row]:
        try:
            if not path.stat().st_size:
                raise EpisodeError(f"{path} is empty: download the file again.")
            yield from self.parse(path)
        except OSError as error:
            raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None


def find(folder: Path, name: str) -> Path | None:
    """Return the nearest file or folder of this name, here or a few folders below."""
    for depth in range(DEPTH + 1):
        if found := sorted(folder.glob("*/" * depth + name)):
            return found[0]
    return None


def require(folder: Path, names: Iterable[str], title: str) -> list[Path]:
    """Return the paths of official files.

    Raises:
        EpisodeError: Names the first file that is missing.
    """
    paths = []
    for name in names:
        path = find(folder, name)
        if path is None:
            raise EpisodeError(f"{title} needs {name}, but there is none in {folder}.")
        paths.append(path)
    return paths


def not_trained_on(place: str, label: str) -> EpisodeError:
    """Return the error for a row whose label no training row has."""
    return EpisodeError(
        f"{place} has the label {label!r}, which no training row has: a model cannot learn a label "
        "that occurs in test only."
    )
