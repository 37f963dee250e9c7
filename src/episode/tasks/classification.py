"""What classifiers share: a loss and an evaluation for batches of (inputs …, labels)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from episode.data.batches import Gathers
from episode.data.sources.layout import only_in_test
from episode.randomness import derive, permutation
from episode.tasks.losses import LOSSES, LossName
from episode.tasks.neural import Evaluate, Loss, NeuralTask, to_device
from episode.tasks.precision import Precision

EVALUATION_BATCH = 256


class Settings(Protocol):
    """What a task's settings must say about its training."""

    @property
    def batch_size(self) -> int: ...
    @property
    def train_evaluated(self) -> int: ...
    @property
    def evaluate_on(self) -> str: ...
    @property
    def precision(self) -> Precision: ...


class Labelled(Gathers, Protocol):
    """A dataset that knows its labels, as numbers."""

    @property
    def labels(self) -> Tensor: ...


def classifier(
    settings: Settings,
    make_model: Callable[[], nn.Module],
    loss: LossName,
    clients: Sequence[Labelled],
    train: Labelled,
    held_out: Labelled,
    names: Sequence[str],
    seed: int,
    device: str,
) -> NeuralTask:
    """The task of training a model on the clients and evaluating it on two splits.

    The model is that of the seed, however many models were made before.
    """
    seen, tested = set(train.labels.tolist()), set(held_out.labels.tolist())
    for label in sorted(tested - seen):
        raise only_in_test(f"What is held out for {settings.evaluate_on}", names[label])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial model"))
        model = make_model()
    evaluated = {
        settings.evaluate_on: (held_out, len(held_out)),
        "train": (train, min(settings.train_evaluated or len(train), len(train))),
    }
    return NeuralTask(
        model.to(device),
        clients,
        batch_loss(loss),
        batch_size=settings.batch_size,
        seed=seed,
        evaluate=evaluation(loss, evaluated),
        precision=settings.precision,
    )


def batch_loss(name: LossName) -> Loss:
    """The loss of a batch whose last part is the labels and whose others the model takes."""
    function = LOSSES[name]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        *inputs, labels = batch
        return function(model(*inputs).float(), labels)

    return loss


def evaluation(loss: LossName, splits: Mapping[str, tuple[Gathers, int]]) -> Evaluate:
    """Loss and accuracy over so many examples of each split; the choice is the same every time."""
    function = LOSSES[loss]
    chosen = {
        name: permutation(len(data), 0, "evaluated")[:count].sort().values
        for name, (data, count) in splits.items()
    }

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        metrics: dict[str, float] = {}
        for name, (data, _) in splits.items():
            total = torch.zeros((), dtype=torch.float64, device=device)
            right = torch.zeros((), dtype=torch.int64, device=device)
            for rows in torch.split(chosen[name], EVALUATION_BATCH):
                *inputs, labels = to_device(data.gather(rows, ()), device)
                scores = model(*inputs).float()
                total += function(scores, labels, reduction="sum")
                right += (scores.argmax(1) == labels).sum()
            metrics[f"{name}_loss"] = total.item() / len(chosen[name])
            metrics[f"{name}_accuracy"] = right.item() / len(chosen[name])
        return metrics

    return evaluate
