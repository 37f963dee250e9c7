"""The encoder of the text models: frozen word vectors, unequal lengths, pooling over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from episode.models.tanh_rnn import TanhRNN

Cell = Literal["rnn", "lstm", "gru"]
Pooling = Literal["max", "zero_padded_max", "last"]

CELLS: dict[str, Callable[[int, int], nn.Module]] = {"rnn": TanhRNN, "lstm": nn.LSTM, "gru": nn.GRU}
BUCKET = 32
"""Least number of texts in a bucket; there are at most four. Measured in docs/performance.md."""


class SentenceEncoder(nn.Module):
    """A recurrent network over word vectors that turns a sentence into one vector.

    Padding has no influence: the backward direction starts at the last word, and `max` pools over
    the words only. With `zero_padded_max` padding takes part as zeros, as in the authors' code, so
    that a sentence's vector depends on its batch; `last` is the final state of each direction.

    A batch is computed in buckets of similar length, each cut to its longest sentence. (Packed
    sequences would save the same work, but on a CPU their gradients take time quadratic in the
    length.)
    """

    def __init__(
        self,
        words: nn.Embedding,
        hidden: int,
        cell: Cell = "rnn",
        layers: int = 1,
        bidirectional: bool = True,
        pooling: Pooling = "max",
    ) -> None:
        super().__init__()
        self.words = words
        self.pooling = pooling
        self.size = hidden * (2 if bidirectional else 1)
        make = CELLS[cell]
        inputs = [words.embedding_dim] + [self.size] * (layers - 1)
        self.forwards = nn.ModuleList(make(size, hidden) for size in inputs)
        self.backwards = nn.ModuleList(make(size, hidden) for size in inputs if bidirectional)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return sentence vectors `[batch, size]` of padded tokens `[batch, time]`."""
        buckets = min(4, len(tokens) // BUCKET)
        if buckets < 2:
            vectors = self._encode(tokens, lengths)
        else:
            order = lengths.argsort()
            parts = [self._encode(tokens[rows], lengths[rows]) for rows in order.chunk(buckets)]
            vectors = torch.cat(parts)[order.argsort()]
        if self.pooling == "zero_padded_max":
            padded = (lengths < lengths.max())[:, None]
            vectors = torch.where(padded, vectors.clamp(min=0), vectors)
        return vectors

    def _encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        time = torch.arange(longest, device=tokens.device)[:, None]
        reverse = (lengths - 1 - time).clamp(min=0)  # time `[longest, batch]` seen from the end
        words = tokens[:, :longest].t()
        if not self.backwards:
            return self._pool([self._run_one_way(self.words(words))], time, lengths)
        inputs, reversed_ = self.words(words), self.words(words.gather(0, reverse))
        both: list[Tensor] = []
        for layer, (ahead, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if layer:
                inputs = torch.cat([both[0], _reverse(both[1], reverse)], dim=2)
                reversed_ = _reverse(inputs, reverse)
            both = [ahead(inputs)[0], back(reversed_)[0]]
        return self._pool(both, time, lengths)

    def _run_one_way(self, states: Tensor) -> Tensor:
        for layer in self.forwards:
            states = layer(states)[0]
        return states

    def _pool(self, directions: list[Tensor], time: Tensor, lengths: Tensor) -> Tensor:
        """Pool the states `[time, batch, hidden]` of each direction, in its own order of time."""
        if self.pooling == "last":
            rows = torch.arange(len(lengths), device=lengths.device)
            return torch.cat([states[lengths - 1, rows] for states in directions], dim=1)
        beyond = (time >= lengths)[:, :, None]
        pooled = [states.masked_fill(beyond, float("-inf")).amax(0) for states in directions]
        return torch.cat(pooled, dim=1)


def _reverse(states: Tensor, reverse: Tensor) -> Tensor:
    return states.gather(0, reverse[:, :, None].expand(-1, -1, states.shape[2]))


def tanh_head(size: int, hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Return tanh layers of these sizes, and a linear layer for the scores of the classes."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(size, units), nn.Tanh()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, classes))


def frozen_words(vectors: Tensor) -> nn.Embedding:
    """Return an embedding that is not trained, so that all replicas share one copy.

    It has torch's default type, as the rest of the model.
    """
    given = vectors.to(torch.get_default_dtype())
    words = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=given)
    words.weight.requires_grad_(False)
    return words
