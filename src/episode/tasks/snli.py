"""SNLI: does one sentence entail, contradict or say nothing about another? (section 5.2)"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from episode.data.sources.snli import SNLI
from episode.data.sources.source import TextSource
from episode.models.birnn import PairClassifier
from episode.models.text import frozen_words
from episode.tasks.losses import LossName
from episode.tasks.text import TextSettings

STEPS = {"kind": "step", "milestones": (0.6, 0.8), "factor": 0.5}
"""The learning rate of both scales is halved twice."""


class Snli(TextSettings):
    """Pairs of sentences, distributed by label; a BiRNN over frozen GloVe vectors, hinge loss.

    At the paper's scale, 26,825 iterations of 8 batches of 64 are 25 epochs.
    """

    source: ClassVar[TextSource] = SNLI
    scales: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"hidden": 2048, "classifier": 512, "batch_size": 64, "similarity": 30.0},
        "laptop": {"hidden": 64, "classifier": 64, "batch_size": 32, "train_evaluated": 2000},
    }
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "schedule": {"eta": 0.3, "gamma": 0.03, **STEPS},
            "budget": {"iterations": 26825, "local_steps": 4},
            "record": {"evaluate_every": 250},
        },
        "laptop": {
            "schedule": {"eta": 1.0, "gamma": 0.1, **STEPS},
            "budget": {"iterations": 400, "local_steps": 4},
            "record": {"evaluate_every": 10},
        },
    }

    hidden: int = Field(default=64, ge=1)
    """Units per direction of the recurrence."""
    classifier: int = Field(default=64, ge=1)
    """Units of the layers before the classes."""
    loss: LossName = "hinge"
    """Loss that is trained and reported."""

    def make_model(self, vectors: Tensor | None, classes: int) -> PairClassifier:
        assert vectors is not None
        words = frozen_words(vectors)
        return PairClassifier(words, self.hidden, self.classifier, classes, self.cell, self.pooling)

    def evaluated_split(self) -> str:
        return self.evaluate_on
