"""Your own silos: a folder per silo becomes a federation, without any code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from episode.data import silos
from episode.data.batches import LabelledDataset
from episode.data.images import ImageFiles, verify_images
from episode.data.partition import Partition
from episode.data.sources.source import not_trained_on
from episode.data.storage import PreparedArrays, fingerprint, prepare_arrays
from episode.data.texts import Corpus, Texts, UnknownWords
from episode.data.word_vectors import require_vectors
from episode.errors import EpisodeError
from episode.models.lstm import TextClassifier
from episode.models.resnet import ARCHITECTURES, Norm, ResNet
from episode.models.text import Pooling, frozen_words
from episode.randomness import permutation
from episode.tasks.classification import ClassificationSettings, classifier
from episode.tasks.imagenet import LARGE
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import VALIDATION_SHARE

SPLITS = ("train", "validation", "test")


class Silos(ClassificationSettings):
    """Each folder below `data` is a client: tables of text and label, or folders of images.

    Files named test.* and validation.* are held out; if there are none, each silo holds out a share
    of its rows. The model is evaluated on the held-out rows of all silos, and for each silo on its
    own. Without `vectors`, word vectors are learned with the model.
    """

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.3, "gamma": 0.3},
        "budget": {"rounds": 50, "local_steps": 4},
        "record": {"evaluate_every": 5},
    }

    data: str
    """The folder that has a folder for each silo."""
    model: Literal["lstm", "gru", "rnn", "resnet8", "resnet18", "resnet32", "resnet50"] = "lstm"
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of a silo's rows that is held out for testing, if there are no test files."""
    train_evaluated: int = Field(default=2000, ge=0)
    text_column: str = "text"
    label_column: str = "label"
    vectors: str | None = None
    """A file in GloVe's text format; by default vectors of `vector_size` are learned."""
    vector_size: int = Field(default=50, ge=1)
    unknown_words: UnknownWords = "drop"
    hidden: int = Field(default=64, ge=1)
    """Units per direction of the recurrence."""
    layers: int = Field(default=1, ge=1)
    bidirectional: bool = True
    pooling: Pooling = "max"
    image_size: int = Field(default=32, ge=8)
    """Pixels on each side of a crop."""
    width: int | None = Field(default=None, ge=1)
    """Channels of a ResNet's first stage; by default the network's own."""
    norm: Norm = "group"

    def build(self, seed: int, device: str) -> NeuralTask:
        arrays, folders = self._prepare()
        partition, held_out = self._split(arrays, folders)
        data = self._dataset(arrays, "train")
        own_file = self.evaluate_on in arrays.info["splits"]
        own_rows = _rows(arrays, self.evaluate_on, len(folders)) if own_file else held_out
        if own_file and not all(map(len, own_rows)):
            raise EpisodeError(
                f"Some silos of {self.data} have a {self.evaluate_on} file and some have not: "
                "give one to all, or to none."
            )
        evaluated = self._dataset(arrays, self.evaluate_on) if own_file else data
        return classifier(
            self,
            lambda: self._make_model(arrays),
            data,
            partition,
            evaluated if own_file else data.select(torch.cat(held_out)),
            seed,
            device,
            own_tests=[evaluated.select(rows) for rows in own_rows],
        )

    def partition(self, seed: int) -> Partition:
        return self._split(*self._prepare())[0]

    def partition_summary(self) -> str:
        return "one client per silo"

    def _split(self, arrays: PreparedArrays, folders: list[Path]) -> tuple[Partition, list[Tensor]]:
        """Return the silos' training rows, and the training rows that each holds out instead."""
        own_files = {split: _rows(arrays, split, len(folders)) for split in SPLITS}
        parts, held_out = [], []
        for silo, rows in enumerate(own_files["train"]):
            left = rows[permutation(len(rows), 0, "silo", silo)]
            for split, share in (("test", self.test_share), ("validation", VALIDATION_SHARE)):
                unused = split == "validation" and self.evaluate_on == "test"
                if unused or len(own_files[split][silo]):
                    continue
                taken = max(1, round(share * len(left)))
                if split == self.evaluate_on:
                    held_out.append(left[:taken])
                left = left[taken:]
            if not len(left):
                raise EpisodeError(f"Silo {silo + 1} of {self.data} has too few rows to train on.")
            parts.append(left.sort().values)
        names = [folder.name for folder in folders]
        partition = Partition(arrays["train-labels"], arrays.info["labels"], parts, names)
        return partition, held_out

    def _prepare(self) -> tuple[PreparedArrays, list[Path]]:
        folders = silos.silo_folders(Path(self.data).expanduser())
        kind = silos.kind_of(folders)
        wanted = "images" if self.model in ARCHITECTURES else "texts"
        if kind != wanted:
            fitting = "resnet18" if kind == "images" else "lstm"
            raise EpisodeError(
                f"The silos in {self.data} hold {kind}, but {self.model} reads {wanted}: "
                f"use --model {fitting}."
            )
        files = [file for folder in folders for file in silos.files_of(folder, kind)]
        vectors = self._vectors_file()
        key = {
            "kind": kind,
            "columns": [self.text_column, self.label_column],
            "files": [fingerprint(file) for file in files],
            "unknown_words": self.unknown_words,
            # With the name, because one archive may hold several files.
            "vectors": vectors and [vectors.name, fingerprint(require_vectors(vectors))],
        }
        write = self._write_texts if kind == "texts" else _write_images
        return prepare_arrays("silos", key, lambda target: write(target, folders)), folders

    def _write_texts(self, target: Path, folders: list[Path]) -> dict[str, Any]:
        columns = self.text_column, self.label_column
        labels = _number_labels(silos.texts(folders, *columns))
        corpus = Corpus(columns=1)
        for row in silos.texts(folders, *columns):
            corpus.add(row.split, (row.content,), labels[row.label], row.silo)
        info = corpus.write(target, self._vectors_file(), self.unknown_words)
        return {**info, "labels": list(labels)}

    def _vectors_file(self) -> Path | None:
        return Path(self.vectors).expanduser() if self.vectors else None

    def _dataset(self, arrays: PreparedArrays, split: str) -> LabelledDataset:
        if self.model in ARCHITECTURES:
            files = [Path(f) for f in arrays.info["files"][split]]
            return ImageFiles(files, arrays[f"{split}-labels"], self.image_size)
        return Texts.from_prepared(arrays, split, 1)

    def _make_model(self, arrays: PreparedArrays) -> nn.Module:
        classes = len(arrays.info["labels"])
        if self.model in ARCHITECTURES:
            large = self.image_size >= LARGE
            return ResNet(self.model, classes, large=large, norm=self.norm, width=self.width)
        words = (
            frozen_words(arrays["vectors"])
            if self.vectors
            else nn.Embedding(arrays.info["words"], self.vector_size)
        )
        return TextClassifier(
            words, self.hidden, self.layers, classes, self.model,  # type: ignore[arg-type]
            self.bidirectional, self.pooling,
        )  # fmt: skip


_NO_ROWS = torch.empty(0, dtype=torch.int64)


def _rows(arrays: PreparedArrays, split: str, silo_count: int) -> list[Tensor]:
    """Return the rows of each silo in a split; none if no silo has a file for it."""
    if split not in arrays.info["splits"]:
        return [_NO_ROWS] * silo_count
    groups = arrays[f"{split}-groups"]
    return [(groups == silo).nonzero().flatten() for silo in range(silo_count)]


def _number_labels(rows: Iterable[silos.Row]) -> dict[str, int]:
    """Number the training labels in sorted order; refuse one that only held-out rows have."""
    places: dict[str, str] = {}
    trained: set[str] = set()
    for row in rows:
        places.setdefault(row.label, row.place)
        if row.split == "train":
            trained.add(row.label)
    for label, place in places.items():
        if label not in trained:
            raise not_trained_on(place, label)
    if len(trained) < 2:
        raise EpisodeError(f"All rows have the label {trained.pop()!r}: two labels are needed.")
    return {label: number for number, label in enumerate(sorted(trained))}


def _write_images(target: Path, folders: list[Path]) -> dict[str, Any]:
    rows = list(silos.images(folders))
    labels = _number_labels(rows)
    verify_images([Path(row.content) for row in rows])
    info: dict[str, Any] = {"labels": list(labels), "splits": {}, "files": {}}
    for split in SPLITS:
        own = [row for row in rows if row.split == split]
        if own:
            np.save(target / f"{split}-labels", np.array([labels[row.label] for row in own]))
            np.save(target / f"{split}-groups", np.array([row.silo for row in own], np.int32))
            info["files"][split] = [row.content for row in own]
            info["splits"][split] = len(own)
    return info
