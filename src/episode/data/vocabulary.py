"""Which words a text model knows, and by which row of its embedding.

Rows 0 and 1 belong to the marks `<s>` and `</s>`, unless word vectors have them elsewhere. A word
with the row -1 is left out of its text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from episode.data.word_vectors import Floats, read_vectors
from episode.errors import EpisodeError
from episode.randomness import uniform

UnknownWords = Literal["drop", "mean"]
BEGIN, END = "<s>", "</s>"
"""The marks around every text, as in the paper."""
MARKS = 2
MINIMUM_COUNT = 2
"""Words that occur less often in training texts get no vector when vectors are learned."""


@dataclass(frozen=True)
class Vocabulary:
    """The row of each word of a corpus, by the word's number in it."""

    row_of: npt.NDArray[np.int32]
    rows: int
    """Number of rows of the embedding."""
    covered: int
    """Words, apart from the marks, that have a row of their own."""
    vectors: Floats | None = None
    """The embedding, if it is not learned."""
    facts: dict[str, Any] | None = field(default=None)
    """Checksum and size of the file that decides the rows, for sites to compare."""


def words_with_vectors(words: Mapping[str, int], path: Path, unknown: UnknownWords) -> Vocabulary:
    """Return the words that have a vector in a file.

    Vectors of the marks, and of unknown words, depend on the file only. So two sites with different
    texts use the same ones.
    """
    wanted = words.keys() | {word.lower() for word in words}
    found = read_vectors(path, wanted)
    matrix = found.vectors
    row_of = np.full(len(words), -1, np.int32)
    for word, number in words.items():
        # GloVe 6B is in lower case, 840B is not: a word's own case first.
        row_of[number] = found.rows.get(word, found.rows.get(word.lower(), -1))
    covered = int((row_of[MARKS:] >= 0).sum())
    extra: list[Floats] = []
    for number in range(MARKS):
        if row_of[number] < 0:
            row_of[number] = len(matrix) + len(extra)
            extra.append(_mark_vector(number, found.first))
    if unknown == "mean":
        row_of[row_of < 0] = len(matrix) + len(extra)
        extra.append(found.first.mean(0))
    vectors = np.concatenate([matrix, *[e[None] for e in extra]])
    facts = {"checksum": found.checksum, "size": matrix.shape[1]}
    return Vocabulary(row_of, len(vectors), covered, vectors, facts)


def frequent_words(counts: npt.NDArray[np.int64]) -> Vocabulary:
    """Return the words that occur at least twice in training texts.

    Args:
        counts: How often each word occurs there.
    """
    kept = counts >= MINIMUM_COUNT
    kept[:MARKS] = True
    row_of = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    return Vocabulary(row_of, int(kept.sum()), int(kept.sum()) - MARKS)


def listed_words(words: Mapping[str, int], path: Path) -> Vocabulary:
    """Return the words that a file lists, one on each line; other words are left out."""
    listed = _read_words(path)
    row_of_listed = {word: MARKS + k for k, word in enumerate(listed)}
    row_of = np.full(len(words), -1, np.int32)
    for word, number in words.items():
        row_of[number] = row_of_listed.get(word, row_of_listed.get(word.lower(), -1))
    row_of[:MARKS] = np.arange(MARKS)[: len(words)]
    checksum = f"{zlib.crc32(chr(10).join(listed).encode()):08x}"
    rows, covered = MARKS + len(listed), int((row_of[MARKS:] >= 0).sum())
    return Vocabulary(row_of, rows, covered, facts={"checksum": checksum, "size": rows})


def hashed_words(words: Mapping[str, int], buckets: int) -> Vocabulary:
    """Give every word one of so many rows, by a checksum of its letters in lower case.

    Nobody needs to know anybody's words; words that happen to get the same row are not told apart.
    """
    row_of = np.arange(len(words), dtype=np.int32)
    for word, number in words.items():
        if number >= MARKS:
            row_of[number] = MARKS + zlib.crc32(word.lower().encode()) % buckets
    return Vocabulary(row_of, MARKS + buckets, len(words) - MARKS)


def _read_words(path: Path) -> Sequence[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise EpisodeError(f"The vocabulary {path} cannot be read: {reason}.") from None
    listed = [word for line in lines if (word := line.strip())]
    if not listed:
        raise EpisodeError(f"The vocabulary {path} is empty: give a file with a word on each line.")
    for word in listed:
        if len(word.split()) > 1:
            raise EpisodeError(
                f"The vocabulary {path} has {word!r} on a line: it must have one word on each."
            )
    return list(dict.fromkeys(listed))


def _mark_vector(number: int, vectors: Floats) -> Floats:
    """Return a fixed vector for `<s>` or `</s>`, as long as these are on average."""
    direction = uniform(number, np.arange(vectors.shape[1])) - 0.5
    length = np.linalg.norm(vectors, axis=1).mean()
    return np.asarray(direction / np.linalg.norm(direction) * length, np.float32)
