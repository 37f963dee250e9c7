"""What the image tasks share: a ResNet and its normalisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from episode.models.resnet import Norm, ResNet
from episode.tasks.losses import LossName
from episode.tasks.partitioned import DealtSettings


class VisionSettings(DealtSettings):
    """A ResNet by name, its normalisation and width."""

    model: Literal["resnet8", "resnet18", "resnet32", "resnet50"] = "resnet18"
    norm: Norm = "batch"
    """`group` has no running statistics, on which clients with different labels disagree."""
    width: int | None = Field(default=None, ge=1)
    """Channels of the first stage; by default the network's own."""
    loss: LossName = "cross_entropy"

    def make_model(self, classes: int, large: bool) -> ResNet:
        """The network, with its initial weights."""
        return ResNet(self.model, classes, large=large, norm=self.norm, width=self.width)
