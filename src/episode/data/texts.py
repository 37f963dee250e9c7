"""Labelled texts: tokenised and stored as arrays, and read back as a dataset of batches."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from episode.data.batches import LabelledDataset
from episode.data.storage import PreparedArrays
from episode.data.word_vectors import Floats, read_vectors
from episode.errors import needs_data_extra
from episode.randomness import Key, uniform

UnknownWords = Literal["drop", "mean"]
BEGIN, END = "<s>", "</s>"
"""The marks around every text, as in the paper."""
CHUNK = 1 << 22
"""Tokens that are translated at a time, to bound memory."""
MINIMUM_COUNT = 2
"""Words that occur less often in training texts get no vector when vectors are learned."""


class TextBatch(NamedTuple):
    """A batch: tokens `[columns · batch, time]` (all first texts, then all second ones)."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


Sequences = tuple[Tensor, Tensor]
"""Texts one after the other, as (tokens, offsets): i is `tokens[offsets[i] : offsets[i + 1]]`."""


class Texts(LabelledDataset):
    """Labelled texts, one or more per example (SNLI has two), or a selection of them."""

    batches_at_once = 4  # batches are small: with the code in the cache, four times as fast

    def __init__(self, columns: Sequence[Sequences], labels: Tensor) -> None:
        self._tokens = [tokens.numpy() for tokens, _ in columns]
        starts = [offsets[:-1] for _, offsets in columns]
        lengths = [offsets.diff() for _, offsets in columns]
        # One row per example, so that one look-up finds everything that a batch needs.
        self._index = torch.stack([*starts, *lengths, labels.long()], dim=1)
        super().__init__(self._index[:, -1])

    @classmethod
    def from_prepared(cls, arrays: PreparedArrays, split: str, columns: int) -> Self:
        """Return a split of a prepared corpus."""
        sequences = [
            (arrays[f"{split}-{c}-tokens"], arrays[f"{split}-{c}-offsets"]) for c in range(columns)
        ]
        return cls(sequences, arrays[f"{split}-labels"])

    def gather(self, indices: Tensor, key: Sequence[Key] = ()) -> TextBatch:
        """Return the batch, padded to its longest text; padding repeats each text's last word."""
        # In numpy: torch takes two and a half times as long for so many small operations.
        index = self._index.numpy()[self._selected[indices].numpy()]
        starts, lengths = np.ascontiguousarray(index[:, :-1].T).reshape(2, -1)
        positions = starts[:, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
        parts = zip(self._tokens, np.split(positions, len(self._tokens)), strict=True)
        tokens = np.concatenate([column[inside] for column, inside in parts])
        labels = np.ascontiguousarray(index[:, -1])
        return TextBatch(*map(torch.from_numpy, (tokens, lengths, labels)))


class EncodedSplit:
    """A split's texts: for each column, the words' numbers of all texts one after the other."""

    def __init__(self, columns: int) -> None:
        self.tokens = [array("i") for _ in range(columns)]
        self.lengths = [array("i") for _ in range(columns)]
        self.labels = array("i")
        self.groups = array("i")


class Corpus:
    """Tokenised texts in memory: each token is held once, as four bytes.

    Args:
        columns: Texts per example; SNLI has two.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.words: dict[str, int] = {BEGIN: 0, END: 1}
        self.splits: dict[str, EncodedSplit] = {}
        self._tokenise = tokeniser()
        # SNLI repeats each premise three times, so the encodings of recent texts are kept.
        self._encode = functools.lru_cache(maxsize=4096)(self._encode_text)

    def add(self, split: str, texts: tuple[str, ...], label: int, group: int = 0) -> None:
        """Add one example; `group` is the number of its user or silo."""
        into = self.splits.setdefault(split, EncodedSplit(self.columns))
        for column, text in enumerate(texts):
            numbers = self._encode(text)
            into.tokens[column].extend(numbers)
            into.lengths[column].append(len(numbers))
        into.labels.append(label)
        into.groups.append(group)

    def labels(self, split: str) -> set[int]:
        """Return the labels that occur in a split."""
        return set(self.splits[split].labels) if split in self.splits else set()

    def _encode_text(self, text: str) -> array[int]:
        known = self.words
        words = [BEGIN, *self._tokenise(text), END]
        return array("i", [known.setdefault(word, len(known)) for word in words])

    def write(self, folder: Path, vectors: Path | None, unknown: UnknownWords) -> dict[str, Any]:
        """Write all arrays, and the vectors if there is a file of them.

        Returns:
            The number of examples in each split, the number of words with a vector, and the shares
            of words and of tokens that these cover.
        """
        if vectors is None:
            row_of, covered = self._frequent_words()
            words = int(row_of.max()) + 1
        else:
            row_of, matrix, covered = self._words_with_vectors(vectors, unknown)
            np.save(folder / "vectors", matrix)
            words = len(matrix)
        tokens = kept = 0
        info: dict[str, Any] = {"splits": {}, "words": words}
        for name, split in self.splits.items():
            for column in range(self.columns):
                counts = _write_tokens(folder, f"{name}-{column}", split, column, row_of)
                tokens, kept = tokens + counts[0], kept + counts[1]
            labels = np.frombuffer(split.labels, np.int32).astype(np.int64)
            np.save(folder / f"{name}-labels", labels)
            np.save(folder / f"{name}-groups", np.frombuffer(split.groups, np.int32))
            info["splits"][name] = len(split.labels)
        known = len(self.words) - 2
        info["word_coverage"] = covered / known if known else 1.0
        info["token_coverage"] = kept / tokens
        return info

    def _words_with_vectors(
        self, vectors: Path, unknown: UnknownWords
    ) -> tuple[npt.NDArray[np.int32], Floats, int]:
        """Return each word's row of the vectors (-1 drops it), the vectors, and words found."""
        wanted = self.words.keys() | {word.lower() for word in self.words}
        found, matrix = read_vectors(vectors, wanted)
        row_of = np.full(len(self.words), -1, np.int32)
        for word, number in self.words.items():
            # GloVe 6B is in lower case, 840B is not: a word's own case first.
            row_of[number] = found.get(word, found.get(word.lower(), -1))
        covered = int((row_of[2:] >= 0).sum())
        extra: list[Floats] = []
        for number in range(2):
            if row_of[number] < 0:
                row_of[number] = len(matrix) + len(extra)
                extra.append(_mark_vector(number, matrix))
        if unknown == "mean":
            row_of[row_of < 0] = len(matrix) + len(extra)
            extra.append(matrix.mean(0))
        return row_of, np.concatenate([matrix, *[e[None] for e in extra]]), covered

    def _frequent_words(self) -> tuple[npt.NDArray[np.int32], int]:
        """Return rows of vectors to be learned (-1 drops a rare word), and how many words kept."""
        counts = np.zeros(len(self.words), np.int64)
        for tokens in self.splits["train"].tokens:
            counts += np.bincount(np.frombuffer(tokens, np.int32), minlength=len(counts))
        counts[:2] = MINIMUM_COUNT
        kept = counts >= MINIMUM_COUNT
        return np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32), int(kept.sum()) - 2


def _write_tokens(
    folder: Path, name: str, split: EncodedSplit, column: int, row_of: npt.NDArray[np.int32]
) -> tuple[int, int]:
    """Write a column's tokens as rows of the vectors, without words that have no row.

    Returns:
        The number of tokens, and how many of them were kept.
    """
    numbers = np.frombuffer(split.tokens[column], np.int32)
    lengths = np.frombuffer(split.lengths[column], np.int32)
    rows = np.empty_like(numbers)
    for start in range(0, len(numbers), CHUNK):
        rows[start : start + CHUNK] = row_of[numbers[start : start + CHUNK]]
    keeps = rows >= 0
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    kept = np.add.reduceat(keeps, starts, dtype=np.int64)  # no text is empty: all have both marks
    np.save(folder / f"{name}-tokens", rows[keeps])
    np.save(folder / f"{name}-offsets", np.concatenate([[0], np.cumsum(kept)]))
    return len(numbers), int(kept.sum())


def _mark_vector(number: int, matrix: Floats) -> Floats:
    """Return a fixed vector for `<s>` or `</s>`, as long as the others are on average."""
    direction = uniform(number, np.arange(matrix.shape[1])) - 0.5
    length = np.linalg.norm(matrix, axis=1).mean()
    return np.asarray(direction / np.linalg.norm(direction) * length, np.float32)


def tokeniser() -> Callable[[str], list[str]]:
    """Return nltk's Penn Treebank tokeniser, with a short cut for plain sentences.

    (nltk tries some thirty patterns on each sentence. Words, commas and a final full stop need none
    of them, unless one of the words is a contraction.)

    Raises:
        EpisodeError: nltk is not installed.
    """
    try:
        from nltk.tokenize import TreebankWordTokenizer
    except ImportError:
        raise needs_data_extra("Text needs nltk's tokeniser") from None
    with_all_rules: Callable[[str], list[str]] = TreebankWordTokenizer().tokenize

    def tokenise(text: str) -> list[str]:
        if not _PLAIN.fullmatch(text) or _CONTRACTED.search(text):
            return with_all_rules(text)
        if text.endswith("."):
            text = text[:-1] + " ."
        return text.replace(",", " ,").split(" ")

    return tokenise


_PLAIN = re.compile(r"[A-Za-z0-9]+(?:,? [A-Za-z0-9]+)*\.?")
_CONTRACTED = re.compile(r"(?i)\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b")
