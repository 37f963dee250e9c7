"""Images as a dataset: batches by indexing bytes, flipped and cropped by the draw's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from episode.randomness import Key, derive, uniform

# Of CIFAR-10's training images, from 0 to 1: what everybody normalises by.
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images:
    """Images uint8 `[examples, 3, height, width]` and labels, or a selection of them.

    With `padding`, each draw shifts its images by up to so many pixels (what is beyond the edge is
    black) and flips half of them.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, padding: int = 0, rows: Tensor | None = None
    ) -> None:
        self._images = images
        self._labels = labels
        self._rows = rows
        self.padding = padding
        self._mean = torch.tensor(CIFAR_MEAN).view(3, 1, 1) * 255
        self._std = torch.tensor(CIFAR_STD).view(3, 1, 1) * 255

    def __len__(self) -> int:
        return len(self._labels if self._rows is None else self._rows)

    @property
    def labels(self) -> Tensor:
        """The labels of the selected images."""
        return self._labels if self._rows is None else self._labels[self._rows]

    def select(self, indices: Tensor, padding: int = 0) -> Images:
        """A view of some of these images; nothing is copied but their numbers."""
        rows = indices if self._rows is None else self._rows[indices]
        return Images(self._images, self._labels, padding, rows)

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """The batch of these images, normalised; without a key, as they are."""
        rows = indices if self._rows is None else self._rows[indices]
        images = self._images[rows].float().sub_(self._mean).div_(self._std)
        if key and self.padding:
            images = shift_and_flip(images, self.padding, key)
        return images, self._labels[rows]


def shift_and_flip(images: Tensor, padding: int, key: Sequence[Key]) -> Tensor:
    """Each image cropped from a padded one at a place of its own, and flipped or not."""
    count, _, height, width = images.shape
    seed = derive(int(key[0]), "augment", *key[1:])
    draws = uniform(seed, np.arange(count)[:, None], np.arange(3))
    offsets = torch.from_numpy((draws[:, :2] * (2 * padding + 1)).astype(np.int64))
    down = offsets[:, :1] + torch.arange(height)
    across = torch.arange(width).expand(count, width)
    flipped = torch.from_numpy(draws[:, 2:] < 0.5)
    across = offsets[:, 1:] + torch.where(flipped, width - 1 - across, across)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    chosen = padded[torch.arange(count)[:, None, None], :, down[:, :, None], across[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()
