"""Residual networks (He et al. 2016) for images of 32 x 32 and of 224 x 224 pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["batch", "group"]
MOST_GROUPS, GROUP_CHANNELS = 32, 16
"""Most groups of a GroupNorm (Wu and He 2018), and fewest channels of a group. Narrow networks
train badly with one channel per group (docs/results.md)."""


@dataclass(frozen=True)
class Architecture:
    """Blocks per stage, channels of the first stage, and whether blocks are bottlenecks."""

    blocks: tuple[int, ...]
    width: int
    bottleneck: bool = False


ARCHITECTURES = {
    "resnet8": Architecture((1, 1, 1), 16),
    "resnet18": Architecture((2, 2, 2, 2), 64),
    "resnet32": Architecture((5, 5, 5), 16),
    "resnet50": Architecture((3, 4, 6, 3), 64, bottleneck=True),
}


class ResNet(nn.Module):
    """A residual network.

    Args:
        name: One of `ARCHITECTURES`.
        classes: Number of classes.
        large: Whether to start with the 7 x 7 convolution and pooling for 224 x 224 pixels.
        norm: BatchNorm, or GroupNorm, which has no running statistics; these differ between clients
            with different labels.
        width: Channels of the first stage, for smaller networks of the same shape.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        *,
        large: bool = False,
        norm: Norm = "batch",
        width: int | None = None,
    ) -> None:
        super().__init__()
        architecture = ARCHITECTURES[name]
        width = width or architecture.width
        make_norm = _norm(norm)
        stem = [_conv(3, width, 7, 2) if large else _conv(3, width, 3), make_norm(width), nn.ReLU()]
        self.stem = nn.Sequential(*stem, *([nn.MaxPool2d(3, 2, 1)] if large else []))
        expansion = 4 if architecture.bottleneck else 1
        block = _bottleneck if architecture.bottleneck else _basic
        channels = width
        stages: list[nn.Module] = []
        for stage, count in enumerate(architecture.blocks):
            inner = width * 2**stage
            for k in range(count):
                stride = 2 if stage and k == 0 else 1
                stages.append(block(channels, inner, inner * expansion, stride, make_norm))
                channels = inner * expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return scores `[batch, classes]` of images `[batch, 3, height, width]`."""
        if not images.is_cuda:  # on a CPU, convolutions take about 0.7 of the time this way
            images = images.contiguous(memory_format=torch.channels_last)
        scores: Tensor = self.head(self.stages(self.stem(images)).mean((2, 3)))
        return scores


class _Residual(nn.Module):
    def __init__(self, layers: list[nn.Module], shortcut: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.shortcut = shortcut
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.layers(x) + self.shortcut(x))
        return out


MakeNorm = Callable[[int], nn.Module]


def _basic(before: int, inner: int, after: int, stride: int, norm: MakeNorm) -> nn.Module:
    layers = [_conv(before, inner, 3, stride), norm(inner), nn.ReLU()]
    layers += [_conv(inner, after, 3), norm(after)]
    return _Residual(layers, _shortcut(before, after, stride, norm))


def _bottleneck(before: int, inner: int, after: int, stride: int, norm: MakeNorm) -> nn.Module:
    layers = [_conv(before, inner, 1), norm(inner), nn.ReLU()]
    layers += [_conv(inner, inner, 3, stride), norm(inner), nn.ReLU()]
    layers += [_conv(inner, after, 1), norm(after)]
    return _Residual(layers, _shortcut(before, after, stride, norm))


def _shortcut(before: int, after: int, stride: int, norm: MakeNorm) -> nn.Module:
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(_conv(before, after, 1, stride), norm(after))


def _conv(before: int, after: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


def _norm(kind: Norm) -> MakeNorm:
    if kind == "batch":
        return nn.BatchNorm2d

    def group(channels: int) -> nn.Module:
        most = min(MOST_GROUPS, max(1, channels // GROUP_CHANNELS))
        groups = next(g for g in range(most, 0, -1) if channels % g == 0)
        return nn.GroupNorm(groups, channels)

    return group
