"""A recurrent classifier of single texts, for Sentiment140 and for silos of texts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from episode.models.text import Cell, Pooling, SentenceEncoder, tanh_head


class TextClassifier(nn.Module):
    """Recurrent layers over a text, pooled over time, and a head with tanh layers.

    For Sentiment140 the paper has two layers of 256 LSTM units, and leaves the rest open; the
    authors' scripts are bidirectional, with two tanh layers of 512 units before the classes.
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
        self.head = tanh_head(self.encoder.size, head, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return scores `[texts, classes]`."""
        scores: Tensor = self.head(self.encoder(tokens, lengths))
        return scores
