"""Classification: a task, a loss and an evaluation for batches of (inputs …, labels)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from episode.data.batches import BatchDataset, LabelledDataset
from episode.data.holdout import hold_out_parts
from episode.data.partition import Partition
from episode.data.sources.source import not_trained_on
from episode.randomness import derive, permutation
from episode.tasks.client_evaluation import EvaluateClient
from episode.tasks.holdout import HoldoutSettings
from episode.tasks.losses import LOSSES, LossName
from episode.tasks.neural import Evaluate, Loss, NeuralTask, to_device
from episode.tasks.precision import Precision

EVALUATION_BATCH = 256


class ClassificationSettings(HoldoutSettings):
    """Settings that every classification task has."""

    splits: ClassVar[tuple[str, ...]] = ("test", "validation")

    batch_size: int = Field(default=32, ge=1)
    loss: LossName = "cross_entropy"
    evaluate_on: Literal["test", "validation"] = "test"
    """The split to evaluate on: tune on the validation split, report the test split."""
    train_evaluated: int = Field(default=0, ge=0)
    """How many training examples (always the same) the training loss is measured on; 0: all."""
    precision: Precision = "float32"
    """bfloat16: mixed precision, with float32 parameters, anchors and steps."""


def classifier(
    settings: ClassificationSettings,
    make_model: Callable[[], nn.Module],
    data: LabelledDataset,
    partition: Partition,
    held_out: LabelledDataset,
    seed: int,
    device: str,
    own_tests: Sequence[LabelledDataset] | None = None,
) -> NeuralTask:
    """Return the task of training a model on the clients' data and evaluating it on two splits.

    Args:
        settings: The task's settings.
        make_model: Makes the model; it starts from the same weights for the same seed.
        data: The training examples, which `partition` distributes.
        partition: The examples of each client, as indices into `data`.
        held_out: The examples to evaluate on.
        seed: Random seed of the batches and of the initial weights.
        device: Where the model computes.
        own_tests: Each client's part of `held_out`, if that is known: the model is evaluated for
            each client on its part, unless clients hold out a share of their training examples.

    Raises:
        EpisodeError: A label of the held-out examples is missing from the training examples.
    """
    own_split: str = settings.evaluate_on
    if settings.holdout:
        partition, rows = hold_out_parts(partition, settings.holdout, seed)
        own_tests, own_split = [data.select(part) for part in rows], "holdout"
    train = data.select(torch.cat(list(partition.parts)))
    for label in sorted(set(held_out.labels.tolist()) - set(train.labels.tolist())):
        place = f"A row that is held out for {settings.evaluate_on}"
        raise not_trained_on(place, partition.names[label])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial model"))
        model = make_model()
    evaluated = {
        settings.evaluate_on: (held_out, len(held_out)),
        "train": (train, min(settings.train_evaluated or len(train), len(train))),
    }
    return NeuralTask(
        model.to(device),
        [data.select(part) for part in partition.parts],
        batch_loss(settings.loss),
        batch_size=settings.batch_size,
        seed=seed,
        evaluate=evaluation(settings.loss, evaluated),
        precision=settings.precision,
        label_counts=settings.label_counts(partition, seed),
        client_names=partition.clients,
        held_out=own_tests,
        evaluate_client=client_evaluation(settings.loss, own_split) if own_tests else None,
    )


def batch_loss(name: LossName) -> Loss:
    """Return the loss of a batch whose last part is the labels; the model takes the other parts."""
    function = LOSSES[name]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        *inputs, labels = batch
        return function(model(*inputs).float(), labels)

    return loss


def client_evaluation(loss: LossName, split: str) -> EvaluateClient:
    """Return a function that measures loss and accuracy on one client's own examples."""
    return lambda model, data: evaluation(loss, {split: (data, len(data))})(model)


def evaluation(loss: LossName, splits: Mapping[str, tuple[BatchDataset, int]]) -> Evaluate:
    """Return a function that measures loss and accuracy on each split.

    Args:
        loss: Name of the loss.
        splits: The examples of each split, and how many of them to use; always the same ones.
    """
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
