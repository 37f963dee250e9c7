"""Settings of your own silos: where they are, what their tables hold, and the model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from episode.models.resnet import Norm
from episode.models.text import Pooling
from episode.tasks.words import WordSettings


class SiloSettings(WordSettings):
    """Settings of `Silos`, beside those of its words."""

    data: str | None = None
    """The folder that has a folder for each silo; at a real site, the site's own folder."""
    model: Literal["lstm", "gru", "rnn", "mlp", "resnet8", "resnet18", "resnet32", "resnet50"] = (
        "lstm"
    )
    """A recurrence for texts, an MLP for tables of numbers, or a ResNet for images."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of a silo's rows that is held out for testing, if there are no test files."""
    train_evaluated: int = Field(default=2000, ge=0)
    """How many training examples the training loss is measured on; 0: all."""
    labels: tuple[str, ...] | None = None
    """Names of all labels; by default those that the silos have."""
    text_column: str = "text"
    """Column that has the text."""
    label_column: str = "label"
    """Column that has the label."""
    hidden: int = Field(default=64, ge=1)
    """Units per direction of the recurrence, or of a layer of the MLP."""
    layers: int = Field(default=1, ge=1)
    """Layers of the recurrence or the MLP."""
    bidirectional: bool = True
    """Whether a text is also read from its end."""
    pooling: Pooling = "max"
    """What the classifier sees: the maximum over time, or the last state."""
    image_size: int = Field(default=32, ge=8)
    """Pixels on each side of a crop."""
    width: int | None = Field(default=None, ge=1)
    """Channels of a ResNet's first stage; by default the network's own."""
    norm: Norm = "group"
    """Normalisation of a ResNet."""

    @model_validator(mode="after")
    def _different_labels(self) -> Self:
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            raise ValueError("labels must be two or more different names")
        return self
