"""ImageNet: photographs in a thousand classes, by ResNet-50 (section 5.3 of the paper)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from episode.data.images import MOST_VERIFIED, ImageFiles, verify_images
from episode.data.sources.imagenet import IMAGENET, ImageNetSource
from episode.data.storage import PreparedArrays, fingerprint
from episode.tasks.vision import VisionSettings

LARGE = 128
"""From this many pixels on, the network starts as for 224 x 224."""


class ImageNet(VisionSettings):
    """Images in one folder per class: random crops and flips in training, decoded ahead of time.

    At the paper's scale, 450,360 iterations of 8 batches of 32 are 90 epochs.
    """

    source: ClassVar[ImageNetSource] = IMAGENET
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
    """Pixels on each side of a crop."""

    def dataset(self, arrays: PreparedArrays, split: str) -> ImageFiles:
        names = json.loads((arrays.folder / f"{split}.json").read_text())
        root = Path(arrays.info["folders"][split])
        files = [root / name for name in names]
        return ImageFiles(files, arrays[f"{split}-labels"], self.image_size)

    def large_images(self) -> bool:
        return self.image_size >= LARGE

    def label_names(self, arrays: PreparedArrays) -> Sequence[str]:
        return tuple(arrays.info["classes"])

    def prepared_from(self, folder: Path) -> dict[str, Any]:
        roots = self.source.folders(folder).values()
        classes = sorted(p for root in roots for p in root.iterdir() if p.is_dir())
        return {"folders": [fingerprint(path) for path in [*roots, *classes]]}

    def write_arrays(self, folder: Path, target: Path) -> dict[str, Any]:
        """Write the lists of files and labels; the images themselves stay where they are."""
        roots = self.source.folders(folder)
        rows = {split: list(own) for split, own in self.source.rows(folder).items()}
        self.source.check_labels(folder, {k: {r.label for r in own} for k, own in rows.items()})
        for split, own in rows.items():
            if len(own) <= MOST_VERIFIED:
                verify_images([row.path for row in own])
            listed = [str(row.path.relative_to(roots[split])) for row in own]
            (target / f"{split}.json").write_text(json.dumps(listed))
            np.save(target / f"{split}-labels", np.array([row.label for row in own], np.int64))
        return {
            "classes": self.source.label_names(folder),
            "folders": {split: str(root.resolve()) for split, root in roots.items()},
            "splits": {split: len(own) for split, own in rows.items()},
        }
