"""SNLI 1.0: `snli_1.0_{train,dev,test}.jsonl`, one pair of sentences per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from episode.data.progress import track
from episode.data.sources.source import Row, TextSource
from episode.errors import EpisodeError
from episode.files import parse_json

UNDECIDED = "-"
"""The gold label of pairs on which the annotators did not agree: left out, as is usual."""


class SnliSource(TextSource):
    """Pairs of sentences: the first entails, contradicts or says nothing about the second."""

    name = "snli"
    title = "SNLI"
    summary = "SNLI 1.0, 90 MB"
    hub = "stanfordnlp/snli"
    landmark = "snli_1.0_train.jsonl"
    sizes = {"train": 549_367, "validation": 9_842, "test": 9_824}  # noqa: RUF012
    labels = ("entailment", "neutral", "contradiction")
    file_names = {  # noqa: RUF012
        "train": "snli_1.0_train.jsonl",
        "validation": "snli_1.0_dev.jsonl",
        "test": "snli_1.0_test.jsonl",
    }
    hub_splits = ("train", "validation", "test")
    columns = 2

    def parse(self, path: Path) -> Iterator[Row]:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (row := self._row(line, path, f"Line {number}")):
                    yield row

    def write_split(self, folder: Path, split: str, rows: Any) -> None:
        with (folder / self.file_names[split]).open("w", encoding="utf-8") as file:
            for row in track(rows, f"snli {split}", len(rows)):
                pair = {
                    "gold_label": UNDECIDED if row["label"] < 0 else self.labels[row["label"]],
                    "sentence1": row["premise"],
                    "sentence2": row["hypothesis"],
                }
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")

    def _row(self, line: bytes, path: Path, place: str) -> Row | None:
        wrong = f"{place} of {path}"
        try:
            row = parse_json(line)
            label, premise, hypothesis = row["gold_label"], row["sentence1"], row["sentence2"]
        except UnicodeDecodeError:
            raise EpisodeError(f"{wrong} is not UTF-8 text.") from None
        except ValueError:
            raise EpisodeError(
                f"{wrong} is not a JSON object: the file is damaged or cut off."
            ) from None
        except (KeyError, TypeError):
            raise EpisodeError(f"{wrong} must have gold_label, sentence1 and sentence2.") from None
        if label == UNDECIDED:
            return None
        if label not in self.labels:
            allowed = ", ".join(self.labels)
            raise EpisodeError(f"{wrong} has the label {label!r}: it must be {allowed} or -.")
        if not isinstance(premise, str) or not isinstance(hypothesis, str):
            raise EpisodeError(f"{wrong} has a sentence that is not text.")
        return Row(self.labels.index(label), path, place, (premise, hypothesis))


SNLI = SnliSource()
