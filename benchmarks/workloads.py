"""Models and data of the benchmarks: sizes that recur in the literature, random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Client = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model, and the shape of one example."""

    name: str
    make_model: Callable[[], nn.Module]
    example: tuple[int, ...]
    classes: int
    batch_size: int = 32

    def clients(self, count: int, batches: int) -> list[Client]:
        """Clients that hold as many examples as these batches need."""
        generator = torch.Generator().manual_seed(0)
        size = batches * self.batch_size
        return [
            (
                torch.randn(size, *self.example, generator=generator),
                torch.randint(self.classes, (size,), generator=generator),
            )
            for _ in range(count)
        ]


class Recurrent(nn.Module):
    """A recurrent encoder, pooled over time, and a linear head."""

    def __init__(self, encoder: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        directions = 2 if encoder.bidirectional else 1
        self.head = nn.Linear(encoder.hidden_size * directions, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """Scores `[batch, classes]`."""
        states, _ = self.encoder(sequence)
        scores: Tensor = self.head(states.amax(1))
        return scores


def loss(model: nn.Module, batch: Client) -> Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def _lstm() -> nn.Module:
    return Recurrent(nn.LSTM(50, 256, num_layers=2, batch_first=True), 2)


def _birnn() -> nn.Module:
    return Recurrent(nn.RNN(50, 512, batch_first=True, bidirectional=True), 3)


MLP = Workload("MLP 784-200-10", _mlp, (784,), 10)
LSTM = Workload("LSTM 2x256", _lstm, (25, 50), 2)
BIRNN = Workload("BiRNN 512", _birnn, (25, 50), 3)
