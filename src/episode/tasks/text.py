"""Settings of the text tasks: word vectors, recurrent cell, and words without a vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from episode.data.sources.glove import default_vectors
from episode.data.sources.source import TextSource
from episode.data.storage import PreparedArrays, fingerprint, log
from episode.data.texts import Corpus, Texts
from episode.data.vocabulary import UnknownWords, words_with_vectors
from episode.data.word_vectors import require_vectors
from episode.models.text import Cell, Pooling
from episode.tasks.partitioned import PartitionedSettings


class TextSettings(PartitionedSettings):
    """By default words without a vector are dropped; batches end with their longest text."""

    source: ClassVar[TextSource]
    site_settings: ClassVar[tuple[str, ...]] = ("data", "vectors")

    vectors: str | None = None
    """A file in GloVe's text format; by default what `episode data fetch glove` fetched."""
    cell: Cell = "rnn"
    """Kind of the recurrence."""
    pooling: Pooling = "max"
    """`zero_padded_max` lets padding take part in the maximum, as in the authors' code."""
    unknown_words: UnknownWords = "drop"
    """Drop words that have no vector, or give them the mean of the file's first 1,000 vectors."""

    def dataset(self, arrays: PreparedArrays, split: str) -> Texts:
        return Texts.from_prepared(arrays, split, self.source.columns)

    def prepared_from(self, folder: Path) -> dict[str, Any]:
        vectors = self._vectors_file()
        return {
            "files": [fingerprint(path) for path in self.source.files(folder).values()],
            "vectors": [vectors.name, fingerprint(require_vectors(vectors))],
            "unknown_words": self.unknown_words,
        }

    def write_arrays(self, folder: Path, target: Path) -> dict[str, Any]:
        corpus = Corpus(self.source.columns)
        users: dict[str, int] = {}
        rows = self.source.rows(folder)
        for split, own in rows.items():
            for row in own:
                corpus.add(split, row.texts, row.label, users.setdefault(row.user, len(users)))
        self.source.check_labels(folder, {split: corpus.labels(split) for split in rows})
        vectors = self._vectors_file()
        known = words_with_vectors(corpus.words, vectors, self.unknown_words)
        info = corpus.write(target, known)
        log.info(
            "%s: %s of the tokens and %s of the words have a vector in %s.",
            self.source.name, f"{info['token_coverage']:.1%}", f"{info['word_coverage']:.1%}",
            vectors.name,
        )  # fmt: skip
        return info

    def _vectors_file(self) -> Path:
        return Path(self.vectors).expanduser() if self.vectors else default_vectors()
