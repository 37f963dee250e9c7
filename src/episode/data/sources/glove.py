"""Where the word vectors are that no config names: what `episode data fetch glove` has put by."""

from __future__ import annotations

from pathlib import Path

from episode.data.storage import dataset_folder
from episode.errors import EpisodeError


def default_vectors() -> Path:
    """The one file of vectors that was fetched: the paper's, or else GloVe 6B."""
    for folder in (dataset_folder("glove"), dataset_folder("glove-6b")):
        found = sorted(p for kind in ("*.txt", "*.txt.gz", "*.zip") for p in folder.glob(kind))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(p.name for p in found)
            raise EpisodeError(f"{folder} holds {names}: name one of them as task.vectors.")
    raise EpisodeError(
        "There are no word vectors: get them with `episode data fetch glove`, or give a file in "
        "GloVe's text format as task.vectors."
    )
