"""SNLI 1.0: `snli_1.0_{train,dev,test}.jsonl`, one pair of sentences per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from episode.data.sources.layout import require
from episode.errors import EpisodeError

SPLITS = {"train": "train", "validation": "dev", "test": "test"}
LABELS: tuple[str, ...] = ("entailment", "neutral", "contradiction")
UNDECIDED = "-"
"""The gold label of pairs on which annotators did not agree: left out, as everybody does."""

Pair = tuple[str, str, int]


def files(folder: Path) -> dict[str, Path]:
    """The official file of each split."""
    names = [f"snli_1.0_{official}.jsonl" for official in SPLITS.values()]
    return dict(zip(SPLITS, require(folder, names, "SNLI"), strict=True))


def pairs(path: Path) -> Iterator[Pair]:
    """(premise, hypothesis, label) of each pair with a gold label."""
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (pair := _pair(line, path, number)):
                    yield pair
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None
    if not number:
        raise EpisodeError(f"{path} is empty: get the file again.")


def where(path: Path, label: int) -> str:
    """The first pair of a label, in words."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            pair = _pair(line, path, number) if line.strip() else None
            if pair and pair[2] == label:
                return f"Line {number} of {path}"
    return str(path)


def _pair(line: bytes, path: Path, number: int) -> Pair | None:
    try:
        row = json.loads(line)
        label, premise, hypothesis = row["gold_label"], row["sentence1"], row["sentence2"]
    except UnicodeDecodeError:
        raise EpisodeError(f"Line {number} of {path} is not UTF-8 text.") from None
    except json.JSONDecodeError:
        raise EpisodeError(
            f"Line {number} of {path} is not a JSON object: the file is damaged or cut off."
        ) from None
    except (KeyError, TypeError):
        raise EpisodeError(
            f"Line {number} of {path} must have gold_label, sentence1 and sentence2."
        ) from None
    if label == UNDECIDED:
        return None
    if label not in LABELS:
        raise EpisodeError(
            f"Line {number} of {path} has the label {label!r}: it must be {', '.join(LABELS)} or -."
        )
    if not isinstance(premise, str) or not isinstance(hypothesis, str):
        raise EpisodeError(f"Line {number} of {path} has a sentence that is not text.")
    return premise, hypothesis, LABELS.index(label)
