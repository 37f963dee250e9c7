"""Training on image files: batches that are decoded ahead against batches that are there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from episode.data.batches import Batches
from episode.data.images import ImageFiles
from episode.models.resnet import ResNet
from episode.tasks.classification import batch_loss

COUNT, BATCH, SIZE, CLASSES, STEPS = 512, 32, 32, 10, 8
loss = batch_loss("cross_entropy")


@contextmanager
def written() -> Iterator[list[Path]]:
    """JPEG files of 64 x 64 pixels, as Tiny ImageNet has them."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{k}.JPEG" for k in range(COUNT)]
        for file in files:
            coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            coarse.resize((64, 64)).save(file, quality=90)
        yield files


class Gradients:
    """A few gradients of one client, as a worker takes them: one inner thread."""

    def __init__(self, files: list[Path]) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        labels = torch.randint(CLASSES, (COUNT,))
        self.batches = Batches(ImageFiles(files, labels, SIZE), BATCH, 0, 0)
        self.model = ResNet("resnet18", CLASSES, large=False, norm="group", width=8)
        self.parameters = list(self.model.parameters())
        self.taken = 0

    def __call__(self) -> int:
        """The next ones."""
        for _ in range(STEPS):
            self.take(self.batches.draw("local", self.taken))
            self.taken += 1
        return STEPS

    def prepared(self) -> Callable[[], int]:
        """As many on batches that are there already."""
        ready = [self.batches.draw("ready", k) for k in range(STEPS)]

        def run() -> int:
            for batch in ready:
                self.take(batch)
            return STEPS

        return run

    def take(self, batch: object) -> None:
        """One gradient."""
        torch.autograd.grad(loss(self.model, batch), self.parameters)
