"""Images as datasets: in memory, or files that threads decode while the model works.

Random crops and flips are chosen by the batch's own numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from episode.data.batches import LabelledDataset, PrefetchingDataset
from episode.data.progress import track
from episode.errors import EpisodeError, needs_data_extra
from episode.randomness import Key, derive, uniform

# Means and deviations of the training images' channels, from 0 to 1: the usual normalisation.
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Numbers = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a crop, in pixels."""
Started = tuple[list[Future[Any]], Tensor]
"""A batch that is being made: its images, and its labels."""
CROP_AREA, CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Ranges for a random crop: its share of the image's area, its width over its height."""
CENTRAL_MARGIN = 256 / 224
"""The image's shorter side over the side of the central crop."""
BILINEAR = 2
"""PIL.Image.Resampling.BILINEAR; pillow is imported only when it is needed."""
MOST_VERIFIED = 50_000
"""Most images that are decoded once before training; `episode data check` decodes any number."""


class Images(LabelledDataset):
    """Images uint8 `[examples, 3, height, width]` and labels, or a selection of them.

    Training batches shift each image by up to `padding` pixels (the border is black) and flip half
    of the images; with `padding` 0 they do neither.
    """

    def __init__(self, images: Tensor, labels: Tensor, padding: int = 0) -> None:
        super().__init__(labels)
        self._images = images
        self.padding = padding

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """Return the batch of these images, normalised; as they are if the key is empty."""
        rows = self._selected[indices]
        images = _normalise(self._images[rows], CIFAR_MEAN, CIFAR_STD)
        if key and self.padding:
            images = shift_and_flip(images, self.padding, key)
        return images, self._labels[rows]

    def compact(self) -> Images:
        return Images(self._images[self._selected], self.labels, self.padding)


class ImageFiles(PrefetchingDataset, LabelledDataset):
    """Image files as normalised crops of `size` x `size`: random in training, else central.

    The next batch is decoded while the model works on this one. (Decoding releases Python's lock.)
    """

    def __init__(self, files: Sequence[Path], labels: Tensor, size: int) -> None:
        super().__init__(labels)
        self._files = files
        self._size = size
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, "decoder")

    def start(self, indices: Tensor, key: Sequence[Key]) -> Started:
        rows, count = self._selected[indices], len(indices)
        numbers: list[Numbers | None] = [None] * count
        if key:
            numbers = list(_random_numbers(key, count, 5))
        images = [
            self._decoders.submit(decode, self._files[i], self._size, own)
            for i, own in zip(rows.tolist(), numbers, strict=True)
        ]
        return images, self._labels[rows]

    def finish(self, started: Started) -> tuple[Tensor, Tensor]:
        pieces, labels = started
        images = torch.from_numpy(np.stack([piece.result() for piece in pieces]))
        images = _normalise(images.permute(0, 3, 1, 2), IMAGENET_MEAN, IMAGENET_STD)
        return images.contiguous(), labels

    def compact(self) -> ImageFiles:
        files = [self._files[i] for i in self._selected.tolist()]
        return ImageFiles(files, self.labels, self._size)


def decode(path: Path, size: int, numbers: Numbers | None) -> npt.NDArray[np.uint8]:
    """Decode and crop one image to `[size, size, 3]`.

    `numbers` are five numbers in [0, 1) that choose a random crop; None crops the centre.
    """
    image = open_image(path)
    if numbers is None:
        box, flipped = _central_box(image.width, image.height), False
    else:
        box, flipped = _random_box(image.width, image.height, numbers), bool(numbers[4] < 0.5)
    cropped = np.asarray(image.resize((size, size), box=box, resample=BILINEAR))
    return cropped[:, ::-1] if flipped else cropped


def open_image(path: Path) -> Any:
    """Return the decoded RGB image.

    Raises:
        EpisodeError: The file cannot be decoded, or pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise needs_data_extra("Images need pillow") from None
    if not path.is_file():  # reading a pipe might never end
        raise EpisodeError(f"The image {path} is not a regular file: replace it.")
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # noqa: BLE001 - damaged images raise almost anything
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise EpisodeError(f"The image {path} cannot be read ({reason}): replace it.") from None


def verify_images(files: Sequence[Path]) -> None:
    """Decode every image once, to find those that cannot be read.

    Raises:
        EpisodeError: Names the first image that cannot be read.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1, "decoder") as decoders:
        sizes = decoders.map(lambda path: open_image(path).size, files, chunksize=64)
        for _ in track(sizes, "reading images", len(files)):
            pass


def _central_box(width: int, height: int) -> Box:
    side = min(width, height) / CENTRAL_MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_box(width: int, height: int, numbers: Numbers) -> Box:
    """Return a crop of random area and ratio at a random place, cut to the image."""
    area = width * height * (CROP_AREA[0] + numbers[0] * (CROP_AREA[1] - CROP_AREA[0]))
    low, high = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
    ratio = math.exp(low + numbers[1] * (high - low))
    across, down = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = numbers[2] * (width - across), numbers[3] * (height - down)
    return left, top, left + across, top + down


def shift_and_flip(images: Tensor, padding: int, key: Sequence[Key]) -> Tensor:
    """Crop each image at a random place of its padded copy, and flip half of them."""
    count, _, height, width = images.shape
    numbers = _random_numbers(key, count, 3)
    offsets = torch.from_numpy((numbers[:, :2] * (2 * padding + 1)).astype(np.int64))
    down = offsets[:, :1] + torch.arange(height)
    across = torch.arange(width).expand(count, width)
    flipped = torch.from_numpy(numbers[:, 2:] < 0.5)
    across = offsets[:, 1:] + torch.where(flipped, width - 1 - across, across)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    chosen = padded[torch.arange(count)[:, None, None], :, down[:, :, None], across[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()


def _normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return uint8 images `[..., 3, height, width]` with each channel's mean and deviation."""
    shift, scale = (torch.tensor(values).view(3, 1, 1) * 255 for values in (mean, std))
    return images.float().sub_(shift).div_(scale)


def _random_numbers(key: Sequence[Key], count: int, numbers: int) -> Numbers:
    """Return the numbers in [0, 1) `[count, numbers]` that augment the images of a batch."""
    seed = derive(int(key[0]), "augment", *key[1:])
    return uniform(seed, np.arange(count)[:, None], np.arange(numbers))
