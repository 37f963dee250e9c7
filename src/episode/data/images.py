"""Images in memory as a dataset; batches are shifted and flipped by the batch's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from episode.data.batches import LabelledDataset
from episode.randomness import Key, derive, uniform

# Means and deviations of the training images' channels, from 0 to 1: the usual normalisation.
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(LabelledDataset):
    """Images uint8 `[examples, 3, height, width]` and labels, or a selection of them.

    Training batches shift each image by up to `padding` pixels (the border is black) and flip half
    of the images; with `padding` 0 they do neither.
    """

    def __init__(self, images: Tensor, labels: Tensor, padding: int = 0) -> None:
        super().__init__(labels)
        self._images = images
        self.padding = padding
        self._mean = torch.tensor(CIFAR_MEAN).view(3, 1, 1) * 255
        self._std = torch.tensor(CIFAR_STD).view(3, 1, 1) * 255

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """Return the batch of these images, normalised; as they are if the key is empty."""
        rows = self._selected[indices]
        images = self._images[rows].float().sub_(self._mean).div_(self._std)
        if key and self.padding:
            images = shift_and_flip(images, self.padding, key)
        return images, self._labels[rows]


def shift_and_flip(images: Tensor, padding: int, key: Sequence[Key]) -> Tensor:
    """Crop each image at a random place of its padded copy, and flip half of them."""
    count, _, height, width = images.shape
    seed = derive(int(key[0]), "augment", *key[1:])
    numbers = uniform(seed, np.arange(count)[:, None], np.arange(3))
    offsets = torch.from_numpy((numbers[:, :2] * (2 * padding + 1)).astype(np.int64))
    down = offsets[:, :1] + torch.arange(height)
    across = torch.arange(width).expand(count, width)
    flipped = torch.from_numpy(numbers[:, 2:] < 0.5)
    across = offsets[:, 1:] + torch.where(flipped, width - 1 - across, across)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    chosen = padded[torch.arange(count)[:, None, None], :, down[:, :, None], across[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()
