"""What the text tasks share: word vectors, prepared tokens, and what to do with unknown words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from episode.data.corpus import Corpus, UnknownWords
from episode.data.sources.glove import default_vectors
from episode.data.sources.layout import only_in_test
from episode.data.storage import Prepared, fingerprint, log, prepared
from episode.data.word_vectors import vectors_file
from episode.errors import EpisodeError
from episode.models.text import Cell, Pooling, frozen_words
from episode.tasks.losses import LossName
from episode.tasks.partitioned import DealtSettings


class Source(Protocol):
    """The module of a dataset's official files."""

    LABELS: tuple[str, ...]

    def where(self, path: Path, label: int, /) -> str:
        """The first row of a label, in words."""


class TextSettings(DealtSettings):
    """Words without a vector are dropped, as in the paper; batches end with their longest text."""

    vectors: str | None = None
    """A file in GloVe's format; without, what `episode data fetch glove` has put by."""
    cell: Cell = "rnn"
    pooling: Pooling = "max"
    """`zero_padded_max` lets padding take part in the maximum, as in the authors' code."""
    loss: LossName = "cross_entropy"
    unknown_words: UnknownWords = "drop"

    def prepare_texts(
        self,
        name: str,
        files: Mapping[str, Path],
        columns: int,
        fill: Callable[[Corpus], None],
        source: Source,
    ) -> Prepared:
        """Tokens and vectors, read from the official files once; says how much is covered."""
        vectors = Path(self.vectors).expanduser() if self.vectors else default_vectors()
        key = {
            "files": [fingerprint(path) for path in files.values()],
            "vectors": [str(vectors.name), fingerprint(vectors_file(vectors))],
            "unknown_words": self.unknown_words,
        }

        def build(folder: Path) -> dict[str, Any]:
            corpus = Corpus(columns)
            fill(corpus)
            for split, path in files.items():
                if split not in corpus.splits:
                    raise EpisodeError(f"{path} has no row with a label that counts.")
                for label in sorted(corpus.labels(split) - corpus.labels("train")):
                    raise only_in_test(source.where(path, label), source.LABELS[label])
            info = corpus.write(folder, vectors, self.unknown_words)
            log.info(
                "%s: %s of the tokens and %s of the words have a vector in %s.",
                name, f"{info['token_coverage']:.1%}", f"{info['word_coverage']:.1%}", vectors.name,
            )  # fmt: skip
            return info

        return prepared(name, key, build)


def words_of(ready: Prepared) -> nn.Embedding:
    """The prepared vectors, frozen."""
    return frozen_words(ready["vectors"])
