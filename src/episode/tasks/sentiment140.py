"""Sentiment140: is a tweet positive? Users, not tweets, are dealt out to silos (appendix)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from episode.data.corpus import Corpus
from episode.data.partition import by_id, by_user_similarity
from episode.data.sources import sentiment140
from episode.data.sources.layout import source_folder
from episode.data.storage import Prepared
from episode.data.texts import Texts
from episode.errors import EpisodeError
from episode.models.lstm import TextClassifier
from episode.models.text import Cell
from episode.tasks.classification import classifier
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import Deal, hold_out
from episode.tasks.text import TextSettings, words_of

TEST_SHARE = 0.2


class Sentiment140(TextSettings):
    """Tweets of users who wrote enough of them; a fifth of the tweets is for testing.

    The partition by similarity deals out users; `partition = "users"` makes each of them a client.

    The paper's model is an LSTM of two layers of 256 units with cross-entropy. The authors' scripts
    have bidirectional=true, head=[512, 512], loss="hinge".
    """

    summary: ClassVar[str] = "tweets (Sentiment140) by an LSTM, users dealt out to eight silos"
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
    layers: int = Field(default=1, ge=1)
    cell: Cell = "lstm"
    bidirectional: bool = False
    head: tuple[int, ...] = ()
    """Sizes of tanh layers before the classes."""
    minimum_tweets: int = Field(default=2, ge=1)
    """Users with fewer are left out."""
    test_tweets: Literal["held_out", "manual"] = "held_out"
    """A fifth of the users' own tweets, or the 359 polar ones that were labelled by hand."""

    def build(self, seed: int, device: str) -> NeuralTask:
        ready = self.prepare()
        tweets = Texts.of(ready, "train", 1)
        train, held_out = self._split(ready)
        parts = [train[part] for part in self._deal(ready, train, seed)]
        manual = self.evaluate_on == "test" and self.test_tweets == "manual"
        return classifier(
            self,
            lambda: TextClassifier(
                words_of(ready),
                self.hidden,
                self.layers,
                2,
                self.cell,
                self.bidirectional,
                self.pooling,
                self.head,
            ),
            self.loss,
            clients=[tweets.select(part) for part in parts],
            train=tweets.select(torch.cat(parts)),
            held_out=Texts.of(ready, "manual", 1) if manual else tweets.select(held_out),
            names=sentiment140.LABELS,
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        ready = self.prepare()
        train, _ = self._split(ready)
        parts = self._deal(ready, train, seed)
        return Deal(ready["train-labels"][train], sentiment140.LABELS, parts)

    def prepare(self) -> Prepared:
        """Tokens, vectors and users of the official files."""
        files = sentiment140.files(source_folder("sentiment140", self.data))

        def fill(corpus: Corpus) -> None:
            users: dict[str, int] = {}
            for split, path in files.items():
                for tweet in sentiment140.tweets(path):
                    user = users.setdefault(tweet.user, len(users))
                    corpus.add(split, (tweet.text,), tweet.label, user)

        return self.prepare_texts("sentiment140", files, 1, fill, sentiment140)

    def _split(self, ready: Prepared) -> tuple[Tensor, Tensor]:
        """The tweets to train on and those to evaluate on, of users with enough of them."""
        users = ready["train-groups"].long()
        enough = torch.bincount(users)[users] >= self.minimum_tweets
        if not enough.any():
            raise EpisodeError(
                f"No user has {self.minimum_tweets} tweets here: lower task.minimum_tweets."
            )
        return hold_out(enough.nonzero().flatten(), self.evaluate_on, TEST_SHARE)

    def _deal(self, ready: Prepared, train: Tensor, seed: int) -> list[Tensor]:
        users, labels = ready["train-groups"][train], ready["train-labels"][train]
        if self.partition == "users":
            return by_id(users)
        if self.partition == "similarity":
            return by_user_similarity(users, labels, self.num_clients, self.similarity, seed)
        return self.deal_labels(labels, seed)
