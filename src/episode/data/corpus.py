"""Labelled texts as prepared arrays: tokens in one flat array, cut to words that have a vector."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from episode.data.storage import save
from episode.data.word_vectors import Floats, read_vectors
from episode.errors import EpisodeError
from episode.randomness import uniform

UnknownWords = Literal["drop", "mean"]
BEGIN, END = "<s>", "</s>"
CHUNK = 1 << 22
FREQUENT = 2
"""Words that training texts have less often get no vector of their own to learn."""


@dataclass
class Split:
    """Tokens of each column one after the other, as numbers of words; lengths, labels, groups."""

    columns: int
    tokens: list[array[int]] = field(default_factory=list)
    lengths: list[array[int]] = field(default_factory=list)
    labels: array[int] = field(default_factory=lambda: array("i"))
    groups: array[int] = field(default_factory=lambda: array("i"))

    def __post_init__(self) -> None:
        self.tokens = [array("i") for _ in range(self.columns)]
        self.lengths = [array("i") for _ in range(self.columns)]


class Corpus:
    """Reads texts once, token by token; holds each token once, as four bytes."""

    def __init__(self, columns: int, marks: bool = True) -> None:
        self.columns = columns
        self.marks = marks
        """Whether `<s>` and `</s>` stand around every text, as in the paper."""
        self.words: dict[str, int] = {BEGIN: 0, END: 1}
        self.splits: dict[str, Split] = {}
        self._tokenise = tokeniser()
        self._encode = functools.lru_cache(maxsize=4096)(self._encode_text)

    def add(self, split: str, texts: tuple[str, ...], label: int, group: int = 0) -> None:
        """One example; SNLI repeats each premise three times, so the last texts are kept."""
        into = self.splits.setdefault(split, Split(self.columns))
        for column, text in enumerate(texts):
            numbers = self._encode(text)
            into.tokens[column].extend(numbers)
            into.lengths[column].append(len(numbers))
        into.labels.append(label)
        into.groups.append(group)

    def labels(self, split: str) -> set[int]:
        """The labels that a split has."""
        return set(self.splits[split].labels)

    def _encode_text(self, text: str) -> array[int]:
        words = self._tokenise(text)
        if self.marks:
            words = [BEGIN, *words, END]
        known = self.words
        return array("i", [known.setdefault(word, len(known)) for word in words])

    def write(self, folder: Path, vectors: Path | None, unknown: UnknownWords) -> dict[str, Any]:
        """Writes all arrays and the vectors; returns sizes and how much of the text is covered."""
        row_of, matrix, covered = self._rows(vectors, unknown)
        if matrix is not None:
            save(folder, "vectors", matrix)
        tokens = kept = 0
        info: dict[str, Any] = {"splits": {}}
        for name, split in self.splits.items():
            for column in range(self.columns):
                counts = _write_tokens(folder, f"{name}-{column}", split, column, row_of)
                tokens, kept = tokens + counts[0], kept + counts[1]
            save(folder, f"{name}-labels", np.frombuffer(split.labels, np.int32).astype(np.int64))
            save(folder, f"{name}-groups", np.frombuffer(split.groups, np.int32))
            info["splits"][name] = len(split.labels)
        known = len(self.words) - 2
        info["words"] = int(row_of.max()) + 1 if matrix is None else len(matrix)
        info["word_coverage"] = covered / known if known else 1.0
        info["token_coverage"] = kept / tokens if tokens else 1.0
        return info

    def _rows(
        self, vectors: Path | None, unknown: UnknownWords
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int]:
        """Each word's row of the vectors, or -1 where its tokens are dropped."""
        if vectors is None:
            return self._frequent()
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

    def _frequent(self) -> tuple[npt.NDArray[np.int32], None, int]:
        """Rows for words whose vectors are to be learned: those that training texts have twice."""
        counts = np.zeros(len(self.words), np.int64)
        for tokens in self.splits["train"].tokens:
            counts += np.bincount(np.frombuffer(tokens, np.int32), minlength=len(counts))
        counts[:2] = FREQUENT
        kept = counts >= FREQUENT
        rows = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        return rows, None, int(kept.sum()) - 2


def _write_tokens(
    folder: Path, name: str, split: Split, column: int, row_of: npt.NDArray[np.int32]
) -> tuple[int, int]:
    """Translates words to rows and drops those without, piece by piece into the file."""
    numbers = np.frombuffer(split.tokens[column], np.int32)
    lengths = np.frombuffer(split.lengths[column], np.int32)
    keeps = np.empty(len(numbers), np.bool_)
    for start in range(0, len(numbers), CHUNK):
        keeps[start : start + CHUNK] = row_of[numbers[start : start + CHUNK]] >= 0
    kept = np.zeros(len(lengths), np.int64)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    kept[lengths > 0] = np.add.reduceat(keeps, starts[lengths > 0], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    total = int(offsets[-1])
    rows = np.lib.format.open_memmap(
        folder / f"{name}-tokens.npy", mode="w+", dtype=np.int32, shape=(total,)
    )
    at = 0
    for start in range(0, len(numbers), CHUNK):
        piece = numbers[start : start + CHUNK][keeps[start : start + CHUNK]]
        rows[at : at + len(piece)] = row_of[piece]
        at += len(piece)
    rows.flush()
    save(folder, f"{name}-offsets", offsets)
    return len(numbers), total


def _mark_vector(number: int, matrix: Floats) -> Floats:
    """A vector for `<s>` or `</s>` where the file has none: fixed, and as long as the others."""
    direction = uniform(number, np.arange(matrix.shape[1])) - 0.5
    length = np.linalg.norm(matrix, axis=1).mean()
    return np.asarray(direction / np.linalg.norm(direction) * length, np.float32)


def tokeniser() -> Callable[[str], list[str]]:
    """The Penn Treebank's rules, as nltk has them; plain sentences take a shorter way there.

    (nltk tries some thirty patterns on each sentence. Words, commas and a last full stop need none
    of them, unless one of the words is a contraction.)
    """
    try:
        from nltk.tokenize import TreebankWordTokenizer
    except ImportError:
        raise needs_data_extra("Text needs nltk's tokeniser") from None
    by_all_rules: Callable[[str], list[str]] = TreebankWordTokenizer().tokenize

    def tokenise(text: str) -> list[str]:
        if not _PLAIN.fullmatch(text) or _CONTRACTED.search(text):
            return by_all_rules(text)
        if text.endswith("."):
            text = text[:-1] + " ."
        return text.replace(",", " ,").split(" ")

    return tokenise


_PLAIN = re.compile(r"[A-Za-z0-9]+(?:,? [A-Za-z0-9]+)*\.?")
_CONTRACTED = re.compile(r"(?i)\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b")


def needs_data_extra(what: str) -> EpisodeError:
    """The error for a missing optional package."""
    return EpisodeError(f"{what}: pip install 'episode-fl[data]' -c constraints.txt.")


def label_numbers(names: Iterable[str]) -> dict[str, int]:
    """Numbers for labels, in their sorted order."""
    return {name: number for number, name in enumerate(sorted(names))}
