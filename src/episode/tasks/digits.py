"""Handwritten digits, read as a sequence by an Elman network: the task that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from episode.data.batches import LabelledDataset
from episode.data.holdout import hold_out_parts
from episode.data.partition import Partition, by_similarity
from episode.models.elman import ElmanClassifier
from episode.randomness import Key, derive, permutation
from episode.tasks.classification import ClassificationData
from episode.tasks.evaluation import Split, SplitEvaluation, dealt_blocks, one_client, own_blocks
from episode.tasks.holdout import HoldoutSettings
from episode.tasks.neural import NeuralTask
from episode.tasks.partitioned import VALIDATION_SHARE
from episode.tasks.settings import Share

PIXELS = 64
CLASSES = 10
TEST_SHARE = 0.2


class Digits(HoldoutSettings):
    """scikit-learn's 1,797 digits of 8 x 8 pixels, distributed to clients by similarity s.

    A fifth is for testing; the split is the same for every seed. A digit is read in `time_steps`
    pieces, row by row.
    """

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 1.0, "gamma": 0.1},
        "budget": {"rounds": 60, "local_steps": 8},
    }
    splits: ClassVar[tuple[str, ...]] = ("test", "validation")

    num_clients: int = Field(default=8, ge=1)
    """N: number of clients."""
    similarity: float = Field(default=0.0, ge=0, le=100)
    """s: percentage of the examples that is distributed uniformly; the rest is sorted by label."""
    batch_size: int = Field(default=32, ge=1)
    """Examples in a client's batch."""
    accumulate: int | None = Field(default=None, ge=1)
    """In how many parts the gradient of a batch is computed, to save memory; it divides
    `batch_size`."""
    hidden: int = Field(default=64, ge=1)
    """Units of the Elman network."""
    time_steps: Literal[1, 2, 4, 8, 16, 32, 64] = 16
    """In how many pieces the network reads the 64 pixels of a digit."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the parameters and the data."""
    evaluate_on: Literal["test", "validation"] = "test"
    """Report the test split; tune on the validation split, a tenth of the rest."""

    def build(self, seed: int, device: str) -> NeuralTask:
        return self.build_share(Share(), seed, device)

    def build_share(self, share: Share, seed: int, device: str) -> NeuralTask:
        dtype = getattr(torch, self.dtype)
        images, labels = (t.to(device) for t in load_digits_sequences(self.time_steps, dtype))
        held_out, train = split_digits(len(labels), self.evaluate_on)
        partition = self._partition(labels[train.to(device)].cpu(), seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "initial model"))
            model = ElmanClassifier(PIXELS // self.time_steps, self.hidden, CLASSES)
        counts = self.label_counts(partition, seed)
        blocks = dealt_blocks(len(held_out), self.num_clients)
        tested = Split(_Examples(images[held_out], labels[held_out]), blocks)
        examples = _Examples(images[train], labels[train])
        data = ClassificationData.of(examples, partition, tested, counts).restricted_to(share)
        assert isinstance(data.train, _Examples)
        return NeuralTask(
            model.to(device, images.dtype),
            {c: data.train.select(part).tensors() for c, part in data.parts.items()},
            cross_entropy,
            batch_size=self.batch_size,
            seed=seed,
            evaluate=SplitEvaluation(
                "cross_entropy",
                {
                    self.evaluate_on: data.held_out,
                    "train": Split(data.train, own_blocks(data.parts, self.num_clients)),
                },
            ),
            label_counts=counts,
            client_names=counts.clients,
            held_out=data.own,
            evaluate_client=None if data.own is None else _on_own_digits,
            num_clients=self.num_clients,
            accumulate=self.accumulate or 1,
        )

    def partition(self, seed: int) -> Partition:
        _, labels = load_digits_sequences(self.time_steps)
        return self._partition(labels[split_digits(len(labels), self.evaluate_on)[1]], seed)

    def partition_summary(self) -> str:
        return f"similarity s = {self.similarity:g}%"

    def _partition(self, labels: Tensor, seed: int) -> Partition:
        parts = by_similarity(labels, self.num_clients, self.similarity, seed)
        whole = Partition(labels, tuple(map(str, range(CLASSES))), parts)
        return hold_out_parts(whole, self.holdout, seed)


def load_digits_sequences(
    time_steps: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits as sequences.

    Args:
        time_steps: Into how many pieces of consecutive pixels an image is cut; divides 64.
        dtype: Type of the pixels.

    Returns:
        Images `[1797, time_steps, 64 / time_steps]`, standardised over all pixels, and labels.

    Example:
        >>> images, labels = load_digits_sequences(time_steps=16)
        >>> images.shape, labels.shape
        (torch.Size([1797, 16, 4]), torch.Size([1797]))
    """
    pixels, labels = _read_digits()
    images = (pixels - pixels.mean()) / pixels.std()
    return (
        torch.tensor(images, dtype=dtype).view(len(images), time_steps, -1),
        torch.tensor(labels),
    )


def split_digits(count: int, evaluate_on: str) -> tuple[Tensor, Tensor]:
    """Return the held-out examples and the training examples; the same for every seed.

    Args:
        count: Number of examples.
        evaluate_on: `test` holds out a fifth of the examples; `validation` holds out a tenth of the
            others, so that tuning never sees the test examples.

    Example:
        >>> held_out, train = split_digits(1797, "test")
        >>> len(held_out), len(train)
        (359, 1438)
    """
    order = permutation(count, 0, "digits", "test")
    tested = round(TEST_SHARE * count)
    if evaluate_on == "test":
        return order[:tested], order[tested:]
    validated = tested + round(VALIDATION_SHARE * (count - tested))
    return order[tested:validated], order[validated:]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of a batch of (inputs, labels)."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


class _Examples(LabelledDataset):
    """Digits as tensors, or a selection of them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(labels)
        self._images = images

    def gather(self, indices: Tensor, key: Sequence[Key]) -> tuple[Tensor, Tensor]:
        rows = self._selected[indices]
        return self._images[rows], self._labels[rows]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return copies of the selected images and labels."""
        return self._images[self._selected], self.labels

    def compact(self) -> _Examples:
        return _Examples(*self.tensors())


def _on_own_digits(model: nn.Module, data: LabelledDataset) -> dict[str, float]:
    return one_client("cross_entropy", "holdout", data)(model)


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read the digits from scikit-learn's file if it is there: its import takes a second."""
    package = find_spec("sklearn")
    for place in (package and package.submodule_search_locations) or ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1].astype(int)
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.data, data.target
