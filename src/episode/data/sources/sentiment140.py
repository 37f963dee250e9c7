"""Sentiment140: tweets with their users, as Latin-1 CSV without a header."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from episode.data.progress import track
from episode.data.sources.source import Row, TextSource
from episode.errors import EpisodeError

COLUMNS = ("polarity", "id", "date", "query", "user", "text")
POLARITIES = {"0": 0, "4": 1}
NEUTRAL = "2"
"""Polarity of tweets that are left out; it occurs in the hand-labelled file only."""


class Sentiment140Source(TextSource):
    """Positive and negative tweets, and a small split that was labelled by hand."""

    name = "sentiment140"
    title = "Sentiment140"
    summary = "1.6 million tweets, 80 MB"
    hub = "stanfordnlp/sentiment140"
    landmark = "training.1600000.processed.noemoticon.csv"
    revision = "refs/convert/parquet"
    sizes = {"train": 1_600_000, "manual": 359}  # noqa: RUF012
    labels = ("negative", "positive")
    file_names = {  # noqa: RUF012
        "train": "training.1600000.processed.noemoticon.csv",
        "manual": "testdata.manual.2009.06.14.csv",
    }
    columns = 1

    def parse(self, path: Path) -> Iterator[Row]:
        number = 0
        try:
            # Latin-1 decodes any bytes; the file contains some UTF-8, which stays as it is.
            with path.open(encoding="latin-1", newline="") as file:
                for number, row in enumerate(csv.reader(file, strict=True), 1):
                    if tweet := _tweet(row, path, f"Row {number}"):
                        yield tweet
        except csv.Error as error:
            raise EpisodeError(
                f"Row {number + 1} of {path} is not CSV ({error}): the file is damaged or cut off."
            ) from None

    def write_split(self, folder: Path, split: str, rows: Any) -> None:
        path = folder / self.file_names[split]
        with path.open("w", encoding="latin-1", errors="replace", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for number, row in enumerate(track(rows, f"sentiment140 {split}", len(rows))):
                rest = number, row.get("date", ""), row.get("query", "")
                writer.writerow([row["sentiment"], *rest, row["user"], row["text"]])


def _tweet(row: list[str], path: Path, place: str) -> Row | None:
    if len(row) != len(COLUMNS):
        raise EpisodeError(
            f"{place} of {path} has {len(row)} columns: it must have {', '.join(COLUMNS)}."
        )
    polarity, _, _, _, user, text = row
    if polarity == NEUTRAL:
        return None
    if polarity not in POLARITIES:
        raise EpisodeError(
            f"{place} of {path} has the polarity {polarity!r}: it must be 0, 2 or 4."
        )
    return Row(POLARITIES[polarity], path, place, (html.unescape(text),), user)


SENTIMENT140 = Sentiment140Source()
