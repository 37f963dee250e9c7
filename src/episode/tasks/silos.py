"""Everybody's own silos: a folder per silo becomes a federation, by config alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from episode.data import silos
from episode.data.corpus import Corpus, UnknownWords, label_numbers
from episode.data.decoding import ImageFiles, verify_images
from episode.data.sources.layout import only_in_test
from episode.data.storage import Prepared, fingerprint, prepared, save
from episode.data.texts import Texts
from episode.data.word_vectors import vectors_file
from episode.errors import EpisodeError
from episode.models.lstm import TextClassifier
from episode.models.resnet import LAYOUTS, Norm, ResNet
from episode.models.text import Pooling, frozen_words
from episode.randomness import permutation
from episode.tasks.classification import classifier
from episode.tasks.losses import LossName
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import VALIDATION_SHARE, Deal
from episode.tasks.precision import Precision
from episode.tasks.settings import TaskSettings

LARGE = 128
SPLITS = ("train", "validation", "test")


class Silos(TaskSettings):
    """Each folder below `data` is a client: tables of text and label, or folders of images.

    Files named test.* and validation.* are held out; a silo that has none holds out a share of its
    rows. Without `vectors`, word vectors are learned with the model.
    """

    summary: ClassVar[str] = "your own silos: a folder each, of csv, jsonl, parquet or images"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.3, "gamma": 0.3},
        "budget": {"rounds": 50, "local_steps": 4},
        "record": {"evaluate_every": 5},
    }

    data: str
    model: Literal["lstm", "gru", "rnn", "resnet8", "resnet18", "resnet32", "resnet50"] = "lstm"
    batch_size: int = Field(default=32, ge=1)
    loss: LossName = "cross_entropy"
    evaluate_on: Literal["test", "validation"] = "test"
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Of a silo's rows, where it has no test file."""
    train_evaluated: int = Field(default=2000, ge=0)
    precision: Precision = "float32"
    text_column: str = "text"
    label_column: str = "label"
    vectors: str | None = None
    """A file in GloVe's format; without, vectors of `vector_size` are learned."""
    vector_size: int = Field(default=50, ge=1)
    unknown_words: UnknownWords = "drop"
    hidden: int = Field(default=64, ge=1)
    layers: int = Field(default=1, ge=1)
    bidirectional: bool = True
    pooling: Pooling = "max"
    image_size: int = Field(default=32, ge=8)
    width: int | None = Field(default=None, ge=1)
    norm: Norm = "group"

    def build(self, seed: int, device: str) -> NeuralTask:
        ready, folders = self._prepare()
        parts = {split: _parts(ready, split, len(folders)) for split in SPLITS}
        train, held_out = self._hold_out(parts)
        data = {split: self._dataset(ready, split) for split in SPLITS if split in _splits(ready)}
        first = data["train"]
        own = torch.cat([rows for source, rows in held_out if source == "train"] or [_NOTHING])
        apart = torch.cat([rows for source, rows in held_out if source != "train"] or [_NOTHING])
        if len(own) and len(apart):
            raise EpisodeError(
                f"Some silos of {self.data} have a {self.evaluate_on} file and some have not: "
                "give one to all, or to none."
            )
        chosen = first.select(own) if len(own) else data[self.evaluate_on].select(apart)
        return classifier(
            self,
            self._model(ready),
            self.loss,
            clients=[first.select(rows) for rows in train],
            train=first.select(torch.cat(train)),
            held_out=chosen,
            names=ready.info["labels"],
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        ready, folders = self._prepare()
        train, _ = self._hold_out({s: _parts(ready, s, len(folders)) for s in SPLITS})
        names = tuple(folder.name for folder in folders)
        return Deal(ready["train-labels"], tuple(ready.info["labels"]), train, names)

    def _prepare(self) -> tuple[Prepared, list[Path]]:
        folders = silos.silo_folders(Path(self.data).expanduser())
        kind = silos.kind_of(folders)
        wanted = "images" if self.model in LAYOUTS else "texts"
        if kind != wanted:
            fitting = "resnet18" if kind == "images" else "lstm"
            raise EpisodeError(
                f"The silos in {self.data} hold {kind}, but {self.model} reads {wanted}: "
                f"use --model {fitting}."
            )
        files = [file for folder in folders for file in silos.files_of(folder, kind)]
        key: dict[str, Any] = {
            "kind": kind,
            "columns": [self.text_column, self.label_column],
            "files": [fingerprint(file) for file in files],
            "unknown_words": self.unknown_words,
            "vectors": None,
        }
        if self.vectors:  # with the name, for the files of one archive
            given = Path(self.vectors).expanduser()
            key["vectors"] = [given.name, fingerprint(vectors_file(given))]
        write = self._write_texts if kind == "texts" else _write_images
        return prepared("silos", key, lambda folder: write(folder, folders)), folders

    def _write_texts(self, folder: Path, folders: list[Path]) -> dict[str, Any]:
        columns = silos.Columns(self.text_column, self.label_column)
        labels = _labels(lambda: (row for f in folders for row in silos.texts(f, columns)))
        corpus = Corpus(columns=1)
        for number, silo in enumerate(folders):
            for row in silos.texts(silo, columns):
                corpus.add(row.split, (row.content,), labels[row.label], number)
        vectors = Path(self.vectors).expanduser() if self.vectors else None
        return {**corpus.write(folder, vectors, self.unknown_words), "labels": list(labels)}

    def _dataset(self, ready: Prepared, split: str) -> Any:
        if self.model in LAYOUTS:
            files = [Path(f) for f in ready.info["files"][split]]
            return ImageFiles(files, ready[f"{split}-labels"], self.image_size)
        return Texts.of(ready, split, 1)

    def _hold_out(
        self, parts: dict[str, list[Tensor]]
    ) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        """Each silo's training rows, and the held-out ones with the split they are rows of."""
        train, held_out = [], []
        for silo, rows in enumerate(parts["train"]):
            shares = {"test": self.test_share, "validation": VALIDATION_SHARE}
            left = rows[permutation(len(rows), 0, "silo", silo)]
            for split in ("test", "validation"):
                explicit = parts[split][silo]
                taken = 0 if len(explicit) else max(1, round(shares[split] * len(left)))
                if split == "validation" and self.evaluate_on == "test":
                    taken = 0
                if split == self.evaluate_on:
                    pair = (split, explicit) if len(explicit) else ("train", left[:taken])
                    held_out.append(pair)
                left = left[taken:]
            if not len(left):
                raise EpisodeError(f"Silo {silo + 1} of {self.data} has too few rows to train on.")
            train.append(left.sort().values)
        return train, held_out

    def _model(self, ready: Prepared) -> Callable[[], nn.Module]:
        classes = len(ready.info["labels"])

        def make() -> nn.Module:
            if self.model in LAYOUTS:
                large = self.image_size >= LARGE
                return ResNet(self.model, classes, large=large, norm=self.norm, width=self.width)
            words = (
                frozen_words(ready["vectors"])
                if self.vectors
                else nn.Embedding(ready.info["words"], self.vector_size)
            )
            return TextClassifier(
                words, self.hidden, self.layers, classes, self.model,  # type: ignore[arg-type]
                self.bidirectional, self.pooling,
            )  # fmt: skip

        return make


_NOTHING = torch.empty(0, dtype=torch.int64)


def _splits(ready: Prepared) -> dict[str, int]:
    return dict(ready.info["splits"])


def _parts(ready: Prepared, split: str, count: int) -> list[Tensor]:
    if split not in _splits(ready):
        return [_NOTHING] * count
    groups = ready[f"{split}-groups"]
    return [(groups == silo).nonzero().flatten() for silo in range(count)]


def _labels(rows: Callable[[], Iterator[silos.Row]]) -> dict[str, int]:
    """Numbers for the training labels; refuses one that is seen only in what is held out."""
    labels = label_numbers({row.label for row in rows() if row.split == "train"})
    for row in rows():
        if row.label not in labels:
            raise only_in_test(row.where, row.label)
    if len(labels) < 2:
        raise EpisodeError(f"All rows have the label {next(iter(labels))!r}: two are needed.")
    return labels


def _write_images(folder: Path, folders: list[Path]) -> dict[str, Any]:
    labels = _labels(lambda: (row for silo in folders for row in silos.images(silo)))
    rows = [(number, row) for number, silo in enumerate(folders) for row in silos.images(silo)]
    verify_images([Path(row.content) for _, row in rows])
    info: dict[str, Any] = {"labels": list(labels), "splits": {}, "files": {}}
    for split in SPLITS:
        own = [(number, row) for number, row in rows if row.split == split]
        if own:
            save(folder, f"{split}-labels", np.array([labels[r.label] for _, r in own]))
            save(folder, f"{split}-groups", np.array([n for n, _ in own], np.int32))
            info["files"][split] = [r.content for _, r in own]
            info["splits"][split] = len(own)
    return info
