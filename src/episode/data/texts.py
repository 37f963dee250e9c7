"""Labelled texts: tokenised and stored as arrays, and read back as a dataset of batches."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from episode.data.batches import LabelledDataset
from episode.data.storage import PreparedArrays
from episode.data.vocabulary import BEGIN, END, MARKS, Vocabulary
from episode.errors import needs_data_extra
from episode.randomness import Key

CHUNK = 1 << 22
"""Tokens that are translated at a time, to bound memory."""


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

    def compact(self) -> Texts:
        index, columns = self._index[self._selected], len(self._tokens)
        kept: list[Sequences] = []
        for c, tokens in enumerate(self._tokens):
            starts, lengths = index[:, c].numpy(), index[:, columns + c]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            shifts = np.repeat(starts - offsets[:-1].numpy(), lengths.numpy())
            own = tokens[shifts + np.arange(len(shifts))]
            kept.append((torch.from_numpy(own), offsets))
        return Texts(kept, index[:, -1])


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

    def training_counts(self) -> npt.NDArray[np.int64]:
        """Return how often each word occurs in training texts."""
        counts = np.zeros(len(self.words), np.int64)
        for tokens in self.splits["train"].tokens:
            counts += np.bincount(np.frombuffer(tokens, np.int32), minlength=len(counts))
        return counts

    def write(self, folder: Path, vocabulary: Vocabulary) -> dict[str, Any]:
        """Write all arrays, and the vectors if the vocabulary has them.

        Returns:
            The number of examples in each split, the number of words with a vector, and the shares
            of words and of tokens that these cover.
        """
        if vocabulary.vectors is not None:
            np.save(folder / "vectors", vocabulary.vectors)
        tokens = kept = 0
        info: dict[str, Any] = {"splits": {}, "words": vocabulary.rows}
        for name, split in self.splits.items():
            for column in range(self.columns):
                row_of = vocabulary.row_of
                counts = _write_tokens(folder, f"{name}-{column}", split, column, row_of)
                tokens, kept = tokens + counts[0], kept + counts[1]
            labels = np.frombuffer(split.labels, np.int32).astype(np.int64)
            np.save(folder / f"{name}-labels", labels)
            np.save(folder / f"{name}-groups", np.frombuffer(split.groups, np.int32))
            info["splits"][name] = len(split.labels)
        known = len(self.words) - MARKS
        info["word_coverage"] = vocabulary.covered / known if known else 1.0
        info["token_coverage"] = kept / tokens
        info["vocabulary"] = vocabulary.facts
        return info


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
