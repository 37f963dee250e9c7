"""The SNLI model: both sentences through one bidirectional recurrence, then a classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from episode.models.text import Cell, Pooling, SentenceEncoder, tanh_head


class PairClassifier(nn.Module):
    """Encode both sentences as u and v, and classify [u, v, |u - v|, u·v] by two tanh layers.

    The paper has tanh cells, 2048 units per direction and a classifier of 512; with word vectors of
    300 numbers these are 18,278,915 trainable parameters.
    """

    def __init__(
        self,
        words: nn.Embedding,
        hidden: int = 2048,
        classifier: int = 512,
        classes: int = 3,
        cell: Cell = "rnn",
        pooling: Pooling = "max",
    ) -> None:
        super().__init__()
        self.encoder = SentenceEncoder(words, hidden, cell, pooling=pooling)
        self.head = tanh_head(4 * self.encoder.size, (classifier, classifier), classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return scores `[pairs, classes]`; all first sentences come before all second ones."""
        if self.encoder.pooling == "zero_padded_max":  # the longest sentence of each half counts
            halves = zip(tokens.chunk(2), lengths.chunk(2), strict=True)
            u, v = (self.encoder(*half) for half in halves)
        else:  # one pass over 2B sentences takes less time than two over B
            u, v = self.encoder(tokens, lengths).chunk(2)
        scores: Tensor = self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
        return scores
