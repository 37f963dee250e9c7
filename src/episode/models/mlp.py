"""A multilayer perceptron for rows of numbers."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Layers of equal width with a smooth activation, and a linear classifier.

    Args:
        inputs: Numbers in a row.
        hidden: Units of a layer.
        layers: Number of layers before the classifier.
        classes: Number of labels.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), nn.SiLU()]  # smooth, as the theory has it
        self.layers = nn.Sequential(*parts, nn.Linear(widths[-1], classes))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores `[batch, classes]` of rows `[batch, inputs]`."""
        found: Tensor = self.layers(rows)
        return found
