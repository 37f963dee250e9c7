"""SNLI: does the first sentence entail, contradict, or leave open the second? (section 5.2)"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field

from episode.data.corpus import Corpus
from episode.data.sources import snli
from episode.data.sources.layout import source_folder
from episode.data.storage import Prepared
from episode.data.texts import Texts
from episode.models.birnn import PairClassifier
from episode.tasks.classification import classifier
from episode.tasks.losses import LossName
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import Deal
from episode.tasks.text import TextSettings, words_of


class Snli(TextSettings):
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

    hidden: int = Field(default=64, ge=1)
    """Units per direction."""
    classifier: int = Field(default=64, ge=1)
    loss: LossName = "hinge"

    def build(self, seed: int, device: str) -> NeuralTask:
        ready = self.prepare()
        train = Texts.of(ready, "train", 2)
        parts = self.deal_labels(train.labels, seed)
        return classifier(
            self,
            lambda: PairClassifier(
                words_of(ready), self.hidden, self.classifier, 3, self.cell, self.pooling
            ),
            self.loss,
            clients=[train.select(part) for part in parts],
            train=train.select(torch.cat(parts)),
            held_out=Texts.of(ready, self.evaluate_on, 2),
            names=snli.LABELS,
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        labels = self.prepare()["train-labels"]
        return Deal(labels, snli.LABELS, self.deal_labels(labels, seed))

    def prepare(self) -> Prepared:
        """Tokens and vectors of the official files."""
        files = snli.files(source_folder("snli", self.data))

        def fill(corpus: Corpus) -> None:
            for split, path in files.items():
                for premise, hypothesis, label in snli.pairs(path):
                    corpus.add(split, (premise, hypothesis), label)

        return self.prepare_texts("snli", files, 2, fill, snli)
