"""Handwritten digits, read as a sequence by an Elman network: the task that needs no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from episode.data.partition import by_similarity
from episode.models.elman import ElmanClassifier
from episode.randomness import derive, permutation
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import VALIDATION_SHARE, Deal
from episode.tasks.settings import TaskSettings

PIXELS = 64
CLASSES = 10
TEST_SHARE = 0.2


class Digits(TaskSettings):
    """scikit-learn's 1,797 digits of 8 x 8 pixels, dealt out to clients by similarity s.

    A fifth is for testing; the split is the same for every seed. A digit is read in `time_steps`
    pieces, row by row.
    """

    summary: ClassVar[str] = "digits read as a sequence by an Elman network, split by similarity s"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 1.0, "gamma": 0.1},
        "budget": {"rounds": 60, "local_steps": 8},
    }

    num_clients: int = Field(default=8, ge=1)
    similarity: float = Field(default=0.0, ge=0, le=100)
    batch_size: int = Field(default=32, ge=1)
    hidden: int = Field(default=64, ge=1)
    time_steps: Literal[1, 2, 4, 8, 16, 32, 64] = 16
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_on: Literal["test", "validation"] = "test"
    """The test split is for reporting; tune on the validation split, a tenth of the rest."""

    def build(self, seed: int, device: str) -> NeuralTask:
        images, labels = (t.to(device) for t in _load(self.time_steps, getattr(torch, self.dtype)))
        held_out, train = (p.to(device) for p in _split(len(labels), self.evaluate_on))
        parts = by_similarity(labels[train].cpu(), self.num_clients, self.similarity, seed)
        clients = [(images[train[p]], labels[train[p]]) for p in (p.to(device) for p in parts)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "initial model"))
            model = ElmanClassifier(PIXELS // self.time_steps, self.hidden, CLASSES)
        splits = {self.evaluate_on: held_out, "train": train}
        everything = {name: (images[part], labels[part]) for name, part in splits.items()}
        return NeuralTask(
            model.to(device, images.dtype),
            clients,
            cross_entropy,
            batch_size=self.batch_size,
            seed=seed,
            evaluate=lambda module: _metrics(module, everything),
        )

    def deal(self, seed: int) -> Deal:
        """Who has which digits: what `episode partition` shows."""
        _, labels = _load(self.time_steps, torch.float32)
        labels = labels[_split(len(labels), self.evaluate_on)[1]]
        parts = by_similarity(labels, self.num_clients, self.similarity, seed)
        return Deal(labels, tuple(map(str, range(CLASSES))), parts)


def _split(count: int, evaluate_on: str) -> tuple[Tensor, Tensor]:
    """The held-out and the training examples; whoever validates never sees the test ones."""
    order = permutation(count, 0, "digits", "test")
    tested = round(TEST_SHARE * count)
    if evaluate_on == "test":
        return order[:tested], order[tested:]
    validated = tested + round(VALIDATION_SHARE * (count - tested))
    return order[tested:validated], order[validated:]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of (inputs, labels)."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def _metrics(model: nn.Module, splits: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, (inputs, labels) in splits.items():
        scores = model(inputs)
        metrics[f"{name}_loss"] = F.cross_entropy(scores, labels).item()
        metrics[f"{name}_accuracy"] = (scores.argmax(1) == labels).double().mean().item()
    return metrics


def _load(time_steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images `[examples, time, pixels]`, standardised over all pixels, and labels."""
    pixels, labels = _read()
    images = (pixels - pixels.mean()) / pixels.std()
    return (
        torch.tensor(images, dtype=dtype).view(len(images), time_steps, -1),
        torch.tensor(labels),
    )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits; from its file where that is found, since its import takes a second."""
    package = find_spec("sklearn")
    for place in (package and package.submodule_search_locations) or ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1].astype(int)
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.data, data.target
