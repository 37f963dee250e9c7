"""GloVe word vectors, kept as one file as they were downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.data.sources.archives import copy_file
from episode.data.sources.source import LabelTotals, Source
from episode.data.storage import dataset_folder
from episode.data.word_vectors import count_vectors
from episode.errors import EpisodeError


@dataclass(frozen=True)
class GloveSource(Source):
    """One of GloVe's archives of word vectors."""

    name: str
    title: str
    summary: str
    file: str
    """The file in the hub's repository."""
    hub: str = "stanfordnlp/glove"
    landmark: str = "*.txt*"
    is_unpacked: bool = False

    def check(self, folder: Path) -> LabelTotals:
        found = [folder] if folder.is_file() else _files(folder)
        if len(found) != 1:
            raise EpisodeError(
                f"{folder} must contain one file of vectors, but it contains {len(found)}."
            )
        return {found[0].name: {"words": count_vectors(found[0])}}

    def download(self, origin: str | None, cache: Path) -> Any:
        if origin:
            raise EpisodeError(f"There is no file {origin} to take {self.name} from.")
        from huggingface_hub import hf_hub_download

        return hf_hub_download(self.hub, self.file, cache_dir=cache)

    def convert(self, downloaded: Any, folder: Path) -> None:
        copy_file(Path(downloaded), folder / self.file)


GLOVE = GloveSource(
    "glove",
    "GloVe 840B",
    "GloVe 840B, 300 numbers a word, 2.2 GB; the paper's",
    "glove.840B.300d.zip",
)
GLOVE_6B = GloveSource(
    "glove-6b", "GloVe 6B", "GloVe 6B, 50 to 300 numbers a word, 0.9 GB", "glove.6B.zip"
)


def default_vectors() -> Path:
    """Return the file of vectors that was fetched: the paper's, or else GloVe 6B.

    Raises:
        EpisodeError: None was fetched, or there are several to choose from.
    """
    for source in (GLOVE, GLOVE_6B):
        folder = dataset_folder(source.name)
        found = _files(folder)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(p.name for p in found)
            raise EpisodeError(f"{folder} contains {names}: name one of them as task.vectors.")
    raise EpisodeError(
        "There are no word vectors: get them with `episode data fetch glove`, or give a file in "
        "GloVe's text format as task.vectors."
    )


def _files(folder: Path) -> list[Path]:
    return sorted(
        p for kind in ("*.txt", "*.txt.gz", "*.zip") for p in folder.glob(kind) if p.is_file()
    )
