"""CIFAR-10: small images in ten classes, by a ResNet (appendix)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from episode.data.images import Images
from episode.data.sources import cifar10
from episode.data.sources.layout import only_in_test, source_folder
from episode.data.storage import Prepared, fingerprint, prepared, save
from episode.tasks.classification import classifier
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import Deal, hold_out
from episode.tasks.vision import VisionSettings

PADDING = 4


class Cifar10(VisionSettings):
    """50,000 images of 32 x 32 pixels, flipped and shifted by up to 4 pixels in training.

    150 epochs at the paper's scale are 14,550 iterations of 8 batches of 64. The paper says
    ResNet-50; the authors' scripts have ResNet-32.
    """

    summary: ClassVar[str] = "small images (CIFAR-10) by a ResNet"
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

    def build(self, seed: int, device: str) -> NeuralTask:
        ready = self.prepare()
        images = Images(ready["train-images"], ready["train-labels"])
        train, held_out = self._split(images.labels)
        parts = self.deal_labels(images.labels[train], seed)
        padding = PADDING if self.augment else 0
        test = Images(ready["test-images"], ready["test-labels"])
        return classifier(
            self,
            lambda: self.make_model(len(cifar10.LABELS), large=False),
            self.loss,
            clients=[images.select(train[part], padding) for part in parts],
            train=images.select(train[torch.cat(parts)]),
            held_out=test if self.evaluate_on == "test" else images.select(held_out),
            names=cifar10.LABELS,
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        labels = self.prepare()["train-labels"]
        train, _ = self._split(labels)
        return Deal(labels[train], cifar10.LABELS, self.deal_labels(labels[train], seed))

    def prepare(self) -> Prepared:
        """The images of the official files as arrays."""
        files = cifar10.files(source_folder("cifar10", self.data))
        key = {"files": [fingerprint(path) for paths in files.values() for path in paths]}
        return prepared("cifar10", key, lambda folder: _write(folder, files))

    def _split(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        return hold_out(torch.arange(len(labels)), self.evaluate_on, test_share=0.0)


def _write(folder: Path, files: dict[str, list[Path]]) -> dict[str, Any]:
    sizes: dict[str, int] = {}
    seen = np.zeros(0, np.int64)
    for split, paths in files.items():
        labels = np.concatenate([cifar10.read_batch(path)[1] for path in paths])
        sizes[split] = len(labels)
        seen = labels if split == "train" else seen
        for label in sorted(set(labels.tolist()) - set(seen.tolist())):
            raise only_in_test(cifar10.where(paths[0], label), cifar10.LABELS[label])
        images = np.lib.format.open_memmap(
            folder / f"{split}-images.npy", "w+", np.uint8, (len(labels), *cifar10.SHAPE)
        )
        at = 0
        for path in paths:  # again: so that one batch at a time is held, and no copy
            batch, _ = cifar10.read_batch(path)
            images[at : at + len(batch)] = batch
            at += len(batch)
        images.flush()
        save(folder, f"{split}-labels", labels)
    return {"splits": sizes}
