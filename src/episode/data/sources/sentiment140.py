"""Sentiment140: tweets with their users, as Latin-1 CSV without a header."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from episode.data.sources.layout import require
from episode.errors import EpisodeError

TRAIN = "training.1600000.processed.noemoticon.csv"
MANUAL = "testdata.manual.2009.06.14.csv"
COLUMNS = ("polarity", "id", "date", "query", "user", "text")
POLARITIES = {"0": 0, "4": 1}
NEUTRAL = "2"
"""Occurs in the hand-labelled file only, and is left out."""
LABELS: tuple[str, ...] = ("negative", "positive")


class Tweet(NamedTuple):
    """A tweet with a polarity; HTML entities are characters again."""

    user: str
    text: str
    label: int


def files(folder: Path) -> dict[str, Path]:
    """The training file and the hand-labelled one."""
    train, manual = require(folder, (TRAIN, MANUAL), "Sentiment140")
    return {"train": train, "manual": manual}


def tweets(path: Path) -> Iterator[Tweet]:
    """The polar tweets of a file, in its order."""
    row_number = 0
    try:
        # Latin-1 decodes any bytes; the file holds some UTF-8, which stays as it is.
        with path.open(encoding="latin-1", newline="") as file:
            for row_number, row in enumerate(csv.reader(file, strict=True), 1):
                if tweet := _tweet(row, path, row_number):
                    yield tweet
    except csv.Error as error:
        raise EpisodeError(
            f"Row {row_number + 1} of {path} is not CSV ({error}): the file is damaged or cut off."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None
    if not row_number:
        raise EpisodeError(f"{path} is empty: get the file again.")


def where(path: Path, label: int) -> str:
    """The first tweet of a label, in words."""
    with path.open(encoding="latin-1", newline="") as file:
        for number, row in enumerate(csv.reader(file, strict=True), 1):
            tweet = _tweet(row, path, number)
            if tweet and tweet.label == label:
                return f"Row {number} of {path}"
    return str(path)


def _tweet(row: list[str], path: Path, number: int) -> Tweet | None:
    if len(row) != len(COLUMNS):
        raise EpisodeError(
            f"Row {number} of {path} has {len(row)} columns: it must have {', '.join(COLUMNS)}."
        )
    polarity, user, text = row[0], row[4], row[5]
    if polarity == NEUTRAL:
        return None
    if polarity not in POLARITIES:
        raise EpisodeError(
            f"Row {number} of {path} has the polarity {polarity!r}: it must be 0, 2 or 4."
        )
    return Tweet(user, html.unescape(text), POLARITIES[polarity])
