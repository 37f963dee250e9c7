"""SNLI: does the first sentence entail, contradict, or leave open the second? (section 5.2)"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from episode.data.corpus import Corpus, UnknownWords
from episode.data.home import Prepared, fingerprint, prepared
from episode.data.sources import snli
from episode.data.sources.layout import source_folder
from episode.data.sources.glove import default_vectors
from episode.data.texts import Texts
from episode.data.vectors import vectors_file
from episode.models.birnn import PairClassifier
from episode.models.text import Cell, Pooling, frozen_words
from episode.tasks.classification import classifier
from episode.tasks.dealt import Deal, DealtSettings
from episode.tasks.losses import LossName
from episode.tasks.neural import NeuralTask


class Snli(DealtSettings):
    """Pairs of sentences, dealt out by label; a BiRNN over frozen GloVe vectors, hinge loss.

    25 epochs at the paper's scale are 26,825 iterations of 8 batches of 64.
    """

    summary: ClassVar[str] = "sentence pairs (SNLI 1.0) by a BiRNN, the paper's main experiment"
    scales: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"hidden": 2048, "classifier": 512, "batch_size": 64, "similarity": 30.0},
        "laptop": {"hidden": 64, "classifier": 64, "batch_size": 32, "train_evaluated": 2000},
    }
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "schedule": {
                "eta": 0.3, "gamma": 0.03, "kind": "step", "milestones": (0.6, 0.8), "factor": 0.5,
            },
            "budget": {"iterations": 26825, "local_steps": 4},
            "record": {"evaluate_every": 250},
        },
        "laptop": {
            "schedule": {
                "eta": 1.0, "gamma": 0.1, "kind": "step", "milestones": (0.6, 0.8), "factor": 0.5,
            },
            "budget": {"iterations": 400, "local_steps": 4},
            "record": {"evaluate_every": 10},
        },
    }  # fmt: skip

    vectors: str | None = None
    """A file in GloVe's format; without, what `episode data fetch glove` has put by."""
    hidden: int = Field(default=128, ge=1)
    """Units per direction."""
    classifier: int = Field(default=128, ge=1)
    cell: Cell = "rnn"
    pooling: Pooling = "max"
    loss: LossName = "hinge"
    unknown_words: UnknownWords = "drop"

    def build(self, seed: int, device: str) -> NeuralTask:
        ready = self.prepare()
        train = Texts.of(ready, "train", 2)
        parts = self.deal_labels(train.labels, seed)
        return classifier(
            self,
            lambda: self._model(ready),
            self.loss,
            clients=[train.select(part) for part in parts],
            train=train.select(torch.cat(parts)),
            held_out=Texts.of(ready, self.evaluate_on, 2),
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        labels = self.prepare()["train-labels"]
        return Deal(labels, snli.LABELS, self.deal_labels(labels, seed))

    def prepare(self) -> Prepared:
        """Tokens and vectors, read from the official files once."""
        files = snli.files(source_folder("snli", self.data))
        vectors = Path(self.vectors).expanduser() if self.vectors else default_vectors()
        key = {
            "files": [fingerprint(path) for path in files.values()],
            "vectors": [str(vectors), fingerprint(vectors_file(vectors))],
            "unknown_words": self.unknown_words,
        }
        return prepared("snli", key, lambda folder: self._write(folder, files, vectors))

    def _write(self, folder: Path, files: dict[str, Path], vectors: Path) -> dict[str, Any]:
        corpus = Corpus(columns=2)
        for split, path in files.items():
            for premise, hypothesis, label in snli.pairs(path):
                corpus.add(split, (premise, hypothesis), label)
        return corpus.write(folder, vectors, self.unknown_words)

    def _model(self, ready: Prepared) -> nn.Module:
        words = frozen_words(ready["vectors"])
        return PairClassifier(
            words, self.hidden, self.classifier, len(snli.LABELS), self.cell, self.pooling
        )
