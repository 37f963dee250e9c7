"""A recurrent classifier of single texts: the Sentiment140 model, and the one for own silos."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from episode.models.text import Cell, Pooling, SentenceEncoder


class TextClassifier(nn.Module):
    """Layers of recurrence over a text, pooled over time, and a head to the classes.

    The paper's for Sentiment140: two layers of 256 LSTM units. Its text leaves the rest open; the
    authors' scripts are bidirectional with two tanh layers of 512 before the classes.
    """

    def __init__(
        self,
        words: nn.Embedding,
        hidden: int = 256,
        layers: int = 2,
        classes: int = 2,
        cell: Cell = "lstm",
        bidirectional: bool = False,
        pooling: Pooling = "max",
        head: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.encoder = SentenceEncoder(words, hidden, cell, layers, bidirectional, pooling)
        sizes = [self.encoder.size, *head]
        inner = [
            layer
            for before, after in itertools.pairwise(sizes)
            for layer in (nn.Linear(before, after), nn.Tanh())
        ]
        self.head = nn.Sequential(*inner, nn.Linear(sizes[-1], classes))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores `[texts, classes]`."""
        scores: Tensor = self.head(self.encoder(tokens, lengths))
        return scores
