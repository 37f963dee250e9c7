"""Settings of the words that a text model knows: given vectors, a list, buckets, or learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from episode.data.storage import fingerprint
from episode.data.texts import Corpus
from episode.data.vocabulary import (
    UnknownWords,
    Vocabulary,
    frequent_words,
    hashed_words,
    listed_words,
    words_with_vectors,
)
from episode.data.word_vectors import require_vectors
from episode.errors import EpisodeError
from episode.tasks.agreement import vectors_facts
from episode.tasks.classification import ClassificationSettings


class WordSettings(ClassificationSettings):
    """By default vectors are learned for the words that occur at least twice in the silos."""

    vectors: str | None = None
    """A file in GloVe's text format; by default vectors of `vector_size` are learned."""
    vocabulary: str | None = None
    """A file with a word on each line: the words whose vectors are learned."""
    word_buckets: int | None = Field(default=None, ge=1)
    """Learn so many vectors, and give each word one of them by its letters: no list is needed."""
    vector_size: int = Field(default=50, ge=1)
    """Numbers in the vector of a word, if vectors are learned."""
    unknown_words: UnknownWords = "drop"
    """Drop words that have no vector, or give them the mean of the file's first 1,000 vectors."""

    @model_validator(mode="after")
    def _one_source_of_words(self) -> Self:
        given = [n for n in ("vectors", "vocabulary", "word_buckets") if getattr(self, n)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: give one of them")
        return self

    def check_words_at_sites(self) -> None:
        """Raise an error if sites would have to show their words to agree on them."""
        if not (self.vectors or self.vocabulary or self.word_buckets):
            raise EpisodeError(
                "Sites that keep their texts cannot agree on words: give task.word_buckets (for "
                "example 4096), task.vectors or task.vocabulary."
            )

    def vocabulary_of(self, corpus: Corpus) -> Vocabulary:
        """Return which words of a corpus the model knows."""
        if vectors := _path(self.vectors):
            return words_with_vectors(corpus.words, vectors, self.unknown_words)
        if vocabulary := _path(self.vocabulary):
            return listed_words(corpus.words, vocabulary)
        if self.word_buckets:
            return hashed_words(corpus.words, self.word_buckets)
        return frequent_words(corpus.training_counts())

    def words_facts(self) -> dict[str, Any] | None:
        """Return checksum and size of the file that decides the words, if there is one."""
        if vectors := _path(self.vectors):
            return vectors_facts(vectors)
        vocabulary = _path(self.vocabulary)
        return listed_words({}, vocabulary).facts if vocabulary else None

    def words_key(self) -> dict[str, Any]:
        """Return what decides the rows of words, as JSON values."""
        vectors, vocabulary = _path(self.vectors), _path(self.vocabulary)
        return {
            "unknown_words": self.unknown_words,
            # With the name, because one archive may hold several files.
            "vectors": vectors and [vectors.name, fingerprint(require_vectors(vectors))],
            "vocabulary": vocabulary and listed_words({}, vocabulary).facts,
            "word_buckets": self.word_buckets,
        }


def _path(name: str | None) -> Path | None:
    return Path(name).expanduser() if name else None
