"""An Elman network, which reads a sequence and classifies it."""

from __future__ import annotations

from torch import Tensor, nn

from episode.models.tanh_rnn import TanhRNN


class ElmanClassifier(nn.Module):
    """A tanh recurrence over `[batch, time, inputs]`, and a linear layer on its last state."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.recurrence = TanhRNN(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return scores `[batch, classes]`."""
        states, _ = self.recurrence(sequence)
        scores: Tensor = self.head(states[:, -1])
        return scores
