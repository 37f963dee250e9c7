"""CIFAR-10: small images in ten classes, by a ResNet (the paper's appendix)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from episode.data.images import Images
from episode.data.sources.cifar10 import CIFAR10, Cifar10Source, read_batch
from episode.data.storage import PreparedArrays, fingerprint
from episode.tasks.vision import VisionSettings

PADDING = 4
"""Pixels by which training images are shifted at most."""


class Cifar10(VisionSettings):
    """50,000 images of 32 x 32 pixels, flipped and shifted by up to 4 pixels in training.

    At the paper's scale, 14,550 iterations of 8 batches of 64 are 150 epochs. The paper says
    ResNet-50; the authors' scripts have ResNet-32.
    """

    source: ClassVar[Cifar10Source] = CIFAR10
    scales: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"model": "resnet50", "batch_size": 64, "similarity": 50.0},
        "laptop": {
            "model": "resnet18", "width": 8, "batch_size": 32, "similarity": 50.0,
            "norm": "group", "train_evaluated": 1000,
        },
    }  # fmt: skip
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "schedule": {
                "eta": 1.0, "gamma": 0.5, "kind": "step", "milestones": (80 / 150, 120 / 150),
            },
            "budget": {"iterations": 14550, "local_steps": 8},
            "record": {"evaluate_every": 12},
        },
        "laptop": {
            "schedule": {"eta": 0.1, "gamma": 0.1},
            "budget": {"iterations": 240, "local_steps": 8},
            "record": {"evaluate_every": 5},
        },
    }  # fmt: skip

    augment: bool = True
    """Whether training images are shifted and flipped at random."""

    def dataset(self, arrays: PreparedArrays, split: str) -> Images:
        padding = PADDING if self.augment else 0
        return Images(arrays[f"{split}-images"], arrays[f"{split}-labels"], padding)

    def prepared_from(self, folder: Path) -> dict[str, Any]:
        paths = itertools.chain(*self.source.files(folder).values())
        return {"files": [fingerprint(path) for path in paths]}

    def write_arrays(self, folder: Path, target: Path) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        for split, paths in self.source.files(folder).items():
            batches = zip(*map(read_batch, paths), strict=True)
            images, labels[split] = map(np.concatenate, batches)
            np.save(target / f"{split}-images", images)
            np.save(target / f"{split}-labels", labels[split])
        self.source.check_labels(folder, {k: set(v.tolist()) for k, v in labels.items()})
        return {"splits": {split: len(own) for split, own in labels.items()}}
