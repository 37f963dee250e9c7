"""Sentiment140: is a tweet positive? Users, not tweets, are distributed (the paper's appendix)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from episode.data.partition import by_id, by_user_similarity
from episode.data.sources.sentiment140 import SENTIMENT140
from episode.data.sources.source import TextSource
from episode.data.storage import PreparedArrays
from episode.errors import EpisodeError
from episode.models.lstm import TextClassifier
from episode.models.text import Cell, frozen_words
from episode.tasks.partitioned import split_examples
from episode.tasks.text import TextSettings

TEST_SHARE = 0.2


class Sentiment140(TextSettings):
    """Tweets of users who wrote enough of them; a fifth of the tweets is for testing.

    The partition by similarity distributes users; `partition = "users"` makes each user a client.

    The paper's model is an LSTM with two layers of 256 units and cross-entropy. The authors'
    scripts have bidirectional=true, head=[512, 512] and loss="hinge".
    """

    source: ClassVar[TextSource] = SENTIMENT140
    scales: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "hidden": 256, "layers": 2, "batch_size": 128, "minimum_tweets": 50, "similarity": 10.0,
        },
        "laptop": {
            "hidden": 64, "layers": 1, "batch_size": 32, "minimum_tweets": 2, "similarity": 10.0,
            "train_evaluated": 2000,
        },
    }  # fmt: skip
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "schedule": {"eta": 0.3, "gamma": 0.03, "kind": "step", "milestones": (0.5, 0.75)},
            "budget": {"iterations": 4000, "local_steps": 4},
            "record": {"evaluate_every": 25},
        },
        "laptop": {
            "schedule": {"eta": 1.0, "gamma": 0.3, "kind": "step", "milestones": (0.5, 0.75)},
            "budget": {"iterations": 240, "local_steps": 4},
            "record": {"evaluate_every": 10},
        },
    }

    hidden: int = Field(default=64, ge=1)
    """Units of the recurrence."""
    layers: int = Field(default=1, ge=1)
    """Layers of the recurrence."""
    cell: Cell = "lstm"
    """Kind of the recurrence."""
    bidirectional: bool = False
    """Whether a text is also read from its end."""
    head: tuple[int, ...] = ()
    """Sizes of tanh layers before the classes."""
    minimum_tweets: int = Field(default=2, ge=1)
    """Users with fewer tweets are left out."""
    test_tweets: Literal["held_out", "manual"] = "held_out"
    """Test on a fifth of the users' own tweets, or on the 359 that were labelled by hand."""

    def make_model(self, vectors: Tensor | None, classes: int) -> TextClassifier:
        assert vectors is not None
        return TextClassifier(
            frozen_words(vectors),
            self.hidden,
            self.layers,
            classes,
            self.cell,
            self.bidirectional,
            self.pooling,
            self.head,
        )

    def evaluated_split(self) -> str | None:
        by_hand = self.evaluate_on == "test" and self.test_tweets == "manual"
        return "manual" if by_hand else None

    def split_rows(self, arrays: PreparedArrays) -> tuple[Tensor, Tensor]:
        users = arrays["train-groups"].long()
        enough = torch.bincount(users)[users] >= self.minimum_tweets
        if not enough.any():
            raise EpisodeError(
                f"No user has {self.minimum_tweets} tweets here: lower task.minimum_tweets."
            )
        return split_examples(enough.nonzero().flatten(), self.evaluate_on, TEST_SHARE)

    def distribute(self, arrays: PreparedArrays, rows: Tensor, seed: int) -> list[Tensor]:
        users, labels = arrays["train-groups"][rows], arrays["train-labels"][rows]
        if self.partition_rule == "users":
            return by_id(users)
        if self.partition_rule == "similarity":
            return by_user_similarity(users, labels, self.num_clients, self.similarity, seed)
        return super().distribute(arrays, rows, seed)
