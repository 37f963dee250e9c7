"""Classification: a task, a loss and an evaluation for batches of (inputs …, labels)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from episode.data.batches import LabelledDataset
from episode.data.partition import Partition
from episode.data.sources.source import not_trained_on
from episode.randomness import derive
from episode.results.store import LabelCounts
from episode.tasks.client_evaluation import EvaluateClient
from episode.tasks.evaluation import Split, SplitEvaluation, chosen_rows, one_client, own_blocks
from episode.tasks.holdout import HoldoutSettings
from episode.tasks.losses import LOSSES, LossName
from episode.tasks.neural import Loss, NeuralTask
from episode.tasks.precision import Precision
from episode.tasks.settings import Share


class ClassificationSettings(HoldoutSettings):
    """Settings that every classification task has."""

    splits: ClassVar[tuple[str, ...]] = ("test", "validation")

    batch_size: int = Field(default=32, ge=1)
    """Examples in a client's batch."""
    accumulate: int | None = Field(default=None, ge=1)
    """In how many parts the gradient of a batch is computed, to save memory; it divides
    `batch_size`."""
    loss: LossName = "cross_entropy"
    """Loss that is trained and reported."""
    evaluate_on: Literal["test", "validation"] = "test"
    """The split to evaluate on: tune on the validation split, report the test split."""
    train_evaluated: int = Field(default=0, ge=0)
    """How many training examples (always the same) the training loss is measured on; 0: all."""
    precision: Precision = "float32"
    """bfloat16: mixed precision, with float32 parameters, anchors and steps."""


@dataclass(frozen=True)
class ClassificationData:
    """The examples that are here, and what is known of everybody's."""

    train: LabelledDataset | None
    """None if there are none here."""
    parts: Mapping[int, Tensor]
    """The training examples of each client that is here, as indices into `train`."""
    starts: Mapping[int, int]
    """Where each of these clients begins in the list of all clients' training examples."""
    num_clients: int
    total: int
    """Number of training examples of all clients."""
    held_out: Split
    """The held-out examples that are measured here."""
    label_counts: LabelCounts | None = None
    own: Mapping[int, LabelledDataset] | None = None
    """What the model is evaluated on for each client that is here; None if it is for no client."""

    @classmethod
    def of(
        cls, train: LabelledDataset, partition: Partition, held_out: Split, counts: LabelCounts
    ) -> ClassificationData:
        """Return the data of all clients; the partition has indices into `train`."""
        ends = list(itertools.accumulate(map(len, partition.parts), initial=0))
        parts = dict(enumerate(partition.parts))
        starts = {client: ends[client] for client in parts}
        kept = partition.held_out
        own = None if kept is None else {c: train.select(rows) for c, rows in enumerate(kept)}
        return cls(train, parts, starts, len(parts), ends[-1], held_out, counts, own)

    def restricted_to(self, share: Share) -> ClassificationData:
        """Return the data of some clients, which keep nothing of the others in memory."""
        if share.clients is None or self.train is None:
            return self
        parts = {client: self.parts[client] for client in share.clients}
        train, rows = _compacted(self.train, list(parts.values()))
        blocks = [block for block in self.held_out.blocks if share.has(block.owner)]
        held_out = self.held_out
        if isinstance(held_out.data, LabelledDataset):
            data, own = _compacted(held_out.data, [block.rows for block in blocks])
            pairs = zip(blocks, own, strict=True)
            held_out = Split(data, [replace(block, rows=mine) for block, mine in pairs])
        return replace(
            self,
            train=train,
            parts=dict(zip(parts, rows, strict=True)),
            starts={client: self.starts[client] for client in parts},
            held_out=held_out,
            own=None if self.own is None else {c: self.own[c].compact() for c in parts},
        )


def _compacted(
    data: LabelledDataset, groups: Sequence[Tensor]
) -> tuple[LabelledDataset, Sequence[Tensor]]:
    """Return a dataset of these groups of rows alone, and where each group is in it."""
    rows = torch.cat([*groups, torch.empty(0, dtype=torch.int64)])
    return data.select(rows).compact(), torch.split(
        torch.arange(len(rows)), [len(g) for g in groups]
    )


def check_trained(evaluate_on: str, labels: Tensor, partition: Partition) -> None:
    """Refuse held-out labels that no training example has."""
    trained = partition.labels[torch.cat(list(partition.parts))]
    for label in sorted(set(labels.tolist()) - set(trained.tolist())):
        raise not_trained_on(f"A row that is held out for {evaluate_on}", partition.names[label])


def classifier(
    settings: ClassificationSettings,
    make_model: Callable[[], nn.Module],
    data: ClassificationData,
    seed: int,
    device: str,
) -> NeuralTask:
    """Return the task of training a model on the clients' data and evaluating it on two splits.

    Args:
        settings: The task's settings.
        make_model: Makes the model; it starts from the same weights for the same seed.
        data: The examples that are here.
        seed: Random seed of the batches and of the initial weights.
        device: Where the model computes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial model"))
        model = make_model()
    rows = chosen_rows(data.parts, data.starts, data.total, settings.train_evaluated)
    splits = {
        settings.evaluate_on: data.held_out,
        "train": Split(data.train, own_blocks(rows, data.num_clients)),
    }
    counts = data.label_counts
    return NeuralTask(
        model.to(device),
        {client: data.train.select(part) for client, part in data.parts.items() if data.train},
        batch_loss(settings.loss),
        batch_size=settings.batch_size,
        seed=seed,
        evaluate=SplitEvaluation(settings.loss, splits),
        precision=settings.precision,
        label_counts=counts,
        client_names=counts.clients if counts else (),
        held_out=data.own,
        evaluate_client=None if data.own is None else evaluation_of_own(settings),
        num_clients=data.num_clients,
        accumulate=settings.accumulate or 1,
    )


def evaluation_of_own(settings: ClassificationSettings) -> EvaluateClient:
    """Return a function that measures loss and accuracy on one client's own examples."""
    name = "holdout" if settings.holdout else settings.evaluate_on
    return lambda model, data: one_client(settings.loss, name, data)(model)


def batch_loss(name: LossName) -> Loss:
    """Return the loss of a batch whose last part is the labels; the model takes the other parts."""
    function = LOSSES[name]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        *inputs, labels = batch
        return function(model(*inputs).float(), labels)

    return loss
