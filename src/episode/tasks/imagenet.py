"""ImageNet: photographs in a thousand classes, by ResNet-50 (section 5.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from episode.data.decoding import VERIFIED, ImageFiles, verify_images
from episode.data.sources import imagenet
from episode.data.sources.layout import only_in_test, source_folder
from episode.data.storage import Prepared, fingerprint, prepared, save
from episode.tasks.classification import classifier
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import Deal, hold_out
from episode.tasks.vision import VisionSettings

LARGE = 128
"""From this size on, the network starts as for 224 x 224."""


class ImageNet(VisionSettings):
    """Images in folders of their class: random crops and flips in training, decoded ahead.

    90 epochs at the paper's scale are 450,360 iterations of 8 batches of 32.
    """

    summary: ClassVar[str] = "photographs (ImageNet, or any such folders) by a ResNet"
    scales: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"model": "resnet50", "batch_size": 32, "image_size": 224, "similarity": 60.0},
        "laptop": {
            "model": "resnet18", "width": 8, "norm": "group", "batch_size": 32, "image_size": 32,
            "similarity": 60.0, "train_evaluated": 500,
        },
    }  # fmt: skip
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "schedule": {
                "eta": 0.1, "gamma": 1.0, "kind": "step", "factor": 0.1,
                "milestones": (30 / 90, 60 / 90, 80 / 90), "gamma_follows_eta": False,
            },
            "algorithm": {"momentum": 0.9, "weight_decay": 5e-5, "momentum_of": "raw"},
            "budget": {"iterations": 450_360, "local_steps": 64},
            "record": {"evaluate_every": 78},
        },
        "laptop": {
            "schedule": {"eta": 0.1, "gamma": 0.3},
            "algorithm": {"momentum": 0.9, "weight_decay": 5e-5, "momentum_of": "raw"},
            "budget": {"iterations": 256, "local_steps": 16},
            "record": {"evaluate_every": 4},
        },
    }  # fmt: skip

    image_size: int = Field(default=32, ge=8)

    def build(self, seed: int, device: str) -> NeuralTask:
        ready = self.prepare()
        train_files, test_files = (self._files(ready, split) for split in ("train", "test"))
        train, held_out = self._split(train_files.labels)
        parts = self.deal_labels(train_files.labels[train], seed)
        testing = self.evaluate_on == "test"
        return classifier(
            self,
            lambda: self.make_model(len(ready.info["classes"]), self.image_size >= LARGE),
            self.loss,
            clients=[train_files.select(train[part]) for part in parts],
            train=train_files.select(train[torch.cat(parts)]),
            held_out=test_files if testing else train_files.select(held_out),
            names=ready.info["classes"],
            seed=seed,
            device=device,
        )

    def deal(self, seed: int) -> Deal:
        ready = self.prepare()
        labels = ready["train-labels"]
        train, _ = self._split(labels)
        names = tuple(ready.info["classes"])
        return Deal(labels[train], names, self.deal_labels(labels[train], seed))

    def prepare(self) -> Prepared:
        """The list of files and labels; the images themselves stay where they are."""
        folders = imagenet.folders(source_folder("imagenet", self.data))
        below = sorted(p for f in folders.values() for p in f.iterdir() if p.is_dir())
        key = {"folders": [fingerprint(p) for p in [*folders.values(), *below]]}
        return prepared("imagenet", key, lambda folder: _write(folder, folders))

    def _files(self, ready: Prepared, split: str) -> ImageFiles:
        names = json.loads((ready.folder / f"{split}.json").read_text())
        root = Path(ready.info["folders"][split])
        return ImageFiles(
            [root / name for name in names], ready[f"{split}-labels"], self.image_size
        )

    def _split(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        return hold_out(torch.arange(len(labels)), self.evaluate_on, test_share=0.0)


def _write(folder: Path, folders: dict[str, Path]) -> dict[str, Any]:
    names = imagenet.classes(folders["train"])
    info: dict[str, Any] = {"classes": names, "folders": {}, "splits": {}}
    seen: set[int] = set()
    for split, root in folders.items():
        found = imagenet.images(root, names)
        seen = {label for _, label in found} if split == "train" else seen
        for path, label in found:
            if label not in seen:
                raise only_in_test(str(path), names[label])
        if len(found) <= VERIFIED:
            verify_images([path for path, _ in found])
        listed = [str(path.relative_to(root)) for path, _ in found]
        (folder / f"{split}.json").write_text(json.dumps(listed))
        save(folder, f"{split}-labels", np.array([label for _, label in found], np.int64))
        info["folders"][split] = str(root.resolve())
        info["splits"][split] = len(found)
    return info
