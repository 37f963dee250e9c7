"""Image files as a dataset: decoded ahead of time by threads, cropped by the draw's own numbers."""

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

from episode.data.corpus import needs_data_extra
from episode.data.images import IMAGENET_MEAN, IMAGENET_STD
from episode.data.progress import track
from episode.errors import EpisodeError
from episode.randomness import Key, derive, uniform

Numbers = npt.NDArray[np.float64]
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Of a random crop: its share of the image's area, its width over its height."""
MARGIN = 256 / 224
"""Before the central crop, the shorter side is so many times as long as the crop's."""
VERIFIED = 50_000
"""So many images are decoded once before training; of more, `episode data check` does it."""


class ImageFiles:
    """Files and labels as normalised crops of `size` x `size`: random with a key, else central.

    `start` hands a batch to the decoders and `finish` waits for it, so that the next batch is
    decoded while the model works on this one. (Decoding releases Python's lock.)
    """

    def __init__(self, files: Sequence[Path], labels: Tensor, size: int) -> None:
        self.files = files
        self.labels = labels
        self.size = size
        self._mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1) * 255
        self._std = torch.tensor(IMAGENET_STD).view(3, 1, 1) * 255
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, "decoder")

    def __len__(self) -> int:
        return len(self.files)

    def select(self, indices: Tensor) -> ImageFiles:
        """Some of these images, decoded by the same threads."""
        chosen = ImageFiles.__new__(ImageFiles)
        chosen.__dict__.update(self.__dict__)
        chosen.files = [self.files[i] for i in indices.tolist()]
        chosen.labels = self.labels[indices]
        return chosen

    def start(self, indices: Tensor, key: Sequence[Key]) -> tuple[list[Future[Any]], Tensor]:
        """A batch under way."""
        count = len(indices)
        draws: list[Numbers | None] = [None] * count
        if key:
            seed = derive(int(key[0]), "augment", *key[1:])
            draws = list(uniform(seed, np.arange(count)[:, None], np.arange(5)))
        pieces = [
            self._decoders.submit(decode, self.files[i], self.size, draw)
            for i, draw in zip(indices.tolist(), draws, strict=True)
        ]
        return pieces, self.labels[indices]

    def finish(self, started: tuple[list[Future[Any]], Tensor]) -> tuple[Tensor, Tensor]:
        """The batch that was started."""
        pieces, labels = started
        images = torch.from_numpy(np.stack([piece.result() for piece in pieces]))
        images = images.permute(0, 3, 1, 2).float().sub_(self._mean).div_(self._std)
        return images.contiguous(), labels

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """The batch of these images."""
        return self.finish(self.start(indices, key))


def decode(path: Path, size: int, draws: Numbers | None) -> npt.NDArray[np.uint8]:
    """One image `[size, size, 3]`; `draws` are five numbers in [0, 1), or None for the centre."""
    image = open_image(path)
    if draws is None:
        box = _central(image.width, image.height)
        cropped = image.resize((size, size), box=box, resample=_bilinear())
        return np.asarray(cropped)
    box = _random(image.width, image.height, draws)
    cropped = np.asarray(image.resize((size, size), box=box, resample=_bilinear()))
    return cropped[:, ::-1] if draws[4] < 0.5 else cropped


def open_image(path: Path) -> Any:
    """A decoded RGB image; names the file where that fails."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise needs_data_extra("Images need pillow") from None
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # noqa: BLE001 - damaged images raise almost anything
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise EpisodeError(f"The image {path} cannot be read ({reason}): replace it.") from None


def verify_images(files: Sequence[Path]) -> None:
    """Decodes every image once, and names the first that cannot be read."""
    with ThreadPoolExecutor(os.cpu_count() or 1, "decoder") as decoders:
        sizes = decoders.map(lambda path: open_image(path).size, files, chunksize=64)
        for _ in track(sizes, "reading images", len(files)):
            pass


def _bilinear() -> Any:
    from PIL import Image

    return Image.Resampling.BILINEAR


def _central(width: int, height: int) -> tuple[float, float, float, float]:
    """The centre: what is left of the shorter side without its margins, square."""
    side = min(width, height) / MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random(width: int, height: int, draws: Numbers) -> tuple[float, float, float, float]:
    """A crop of random area and ratio at a random place, cut to the image."""
    area = width * height * (SCALE[0] + draws[0] * (SCALE[1] - SCALE[0]))
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = math.exp(low + draws[1] * (high - low))
    across, down = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = draws[2] * (width - across), draws[3] * (height - down)
    return left, top, left + across, top + down
