"""An Elman network that reads a sequence and names its class."""

from __future__ import annotations

from torch import Tensor, nn


class ElmanClassifier(nn.Module):
    """tanh recurrence over `[batch, time, inputs]`, a linear layer on the last hidden state."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.recurrence = nn.RNN(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """Scores `[batch, classes]`."""
        states, _ = self.recurrence(sequence)
        scores: Tensor = self.head(states[:, -1])
        return scores
