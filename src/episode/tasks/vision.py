"""Settings of the image tasks: a ResNet and its normalisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from episode.models.resnet import Norm, ResNet
from episode.tasks.partitioned import PartitionedSettings


class VisionSettings(PartitionedSettings):
    """Which ResNet to train, with which normalisation and width."""

    model: Literal["resnet8", "resnet18", "resnet32", "resnet50"] = "resnet18"
    """The network."""
    norm: Norm = "batch"
    """`group` has no running statistics, which differ between clients with different labels."""
    width: int | None = Field(default=None, ge=1)
    """Channels of the first stage; by default the network's own."""

    def make_model(self, vectors: Tensor | None, classes: int) -> ResNet:
        return ResNet(
            self.model, classes, large=self.large_images(), norm=self.norm, width=self.width
        )

    def large_images(self) -> bool:
        """Return whether the network starts as for 224 x 224 pixels rather than 32 x 32."""
        return False
