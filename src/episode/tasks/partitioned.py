"""Tasks whose dataset is distributed to clients, at the paper's scale or a laptop's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from episode.data.batches import LabelledDataset
from episode.data.holdout import hold_out_parts
from episode.data.partition import Partition, by_dirichlet, by_label_count, by_similarity
from episode.data.sources.source import LabelledSource
from episode.data.storage import PreparedArrays, prepare_arrays
from episode.errors import EpisodeError
from episode.randomness import permutation
from episode.tasks.agreement import (
    absent_vectors,
    agreement,
    checksum,
    count_by_label,
    require_equal,
    server_data,
    told,
)
from episode.tasks.classification import (
    ClassificationData,
    ClassificationSettings,
    check_trained,
    classifier,
)
from episode.tasks.evaluation import Split, dealt_blocks
from episode.tasks.neural import NeuralTask
from episode.tasks.settings import Share

VALIDATION_SHARE = 0.1


class PartitionedSettings(ClassificationSettings):
    """Settings of data, partition and evaluation; values that are not given come from `scale`."""

    model_config = ConfigDict(serialize_by_alias=True)

    site_settings: ClassVar[tuple[str, ...]] = ("data",)
    source: ClassVar[LabelledSource]
    scales: ClassVar[dict[str, dict[str, Any]]]
    """This task's own settings at each scale."""
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]]
    """Values for the other sections of a config, at each scale."""

    scale: Literal["paper", "laptop"] = "laptop"
    """Sizes and budgets of the paper, or smaller ones."""
    data: str | None = None
    """A folder or archive of the official files; by default what `episode data fetch` fetched."""
    num_clients: int = Field(default=8, ge=1)
    """N: number of clients."""
    partition_rule: Literal["similarity", "dirichlet", "labels", "users"] = Field(
        default="similarity", alias="partition"
    )
    """How the examples are distributed: by `similarity`, at random (`dirichlet`), with few `labels`
    each, or by `users`."""
    similarity: float = Field(default=30.0, ge=0, le=100)
    """s: percentage of the examples that is distributed uniformly; the rest is sorted by label."""
    alpha: float = Field(default=0.5, gt=0)
    """α of the Dirichlet partition: small values give clients few labels."""
    labels_per_client: int = Field(default=2, ge=1)
    """How many labels each client has, for the partition by labels."""
    batch_size: int = Field(default=64, ge=1)
    """Examples in a client's batch."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_scale(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**cls.scales.get(str(values.get("scale", "laptop")), {}), **values}

    def chosen_scale(self) -> str:
        return self.scale

    def suggestions(self) -> dict[str, dict[str, Any]]:
        return self.sections[self.scale]

    @abstractmethod
    def prepared_from(self, folder: Path) -> dict[str, Any]:
        """Return everything that decides the prepared arrays' content, as JSON values."""

    @abstractmethod
    def write_arrays(self, folder: Path, target: Path) -> dict[str, Any]:
        """Write the arrays of the official files in `folder`, and return what to note of them."""

    @abstractmethod
    def dataset(self, arrays: PreparedArrays, split: str) -> LabelledDataset:
        """Return one split of the prepared data."""

    @abstractmethod
    def make_model(self, vectors: Tensor | None, classes: int) -> nn.Module:
        """Return the network, with its initial weights.

        Args:
            vectors: Word vectors, if the examples are texts.
            classes: Number of labels.
        """

    def evaluated_split(self) -> str | None:
        """Return the prepared split to evaluate on; None for held-out training examples."""
        return "test" if self.evaluate_on == "test" else None

    def split_rows(self, arrays: PreparedArrays) -> tuple[Tensor, Tensor]:
        """Return the rows of the training split to train on, and those that are held out."""
        held_out = "test" if self.evaluated_split() else "validation"
        return split_examples(torch.arange(len(arrays["train-labels"])), held_out, 0.0)

    def label_names(self, arrays: PreparedArrays) -> Sequence[str]:
        """Return the names of the labels 0, 1, …"""
        return self.source.labels

    def prepare(self) -> PreparedArrays:
        """Return the arrays of the official files, which are prepared the first time."""
        folder = self.source.locate(self.data)
        key = self.prepared_from(folder)
        return prepare_arrays(
            self.source.name, key, lambda target: self.write_arrays(folder, target)
        )

    def build(self, seed: int, device: str) -> NeuralTask:
        return self.build_share(Share(), seed, device)

    def build_share(self, share: Share, seed: int, device: str) -> NeuralTask:
        if share.agreed and not share.clients:
            return self._build_without_data(share.agreed, seed, device)
        arrays = self.model_copy(update=dict(share.own)).prepare()
        train, held_out = self.split_rows(arrays)
        partition = self._partition(arrays, train, seed)
        data, split = self.dataset(arrays, "train"), self.evaluated_split()
        tested = data.select(held_out) if split is None else self.dataset(arrays, split)
        check_trained(self.evaluate_on, tested.labels, partition)
        whole = ClassificationData.of(
            data.select(train),
            partition,
            Split(tested, dealt_blocks(len(tested), len(partition.parts))),
            self.label_counts(partition, seed),
        )
        return classifier(
            self,
            lambda: self.make_model(arrays.get("vectors"), len(partition.names)),
            whole.restricted_to(share),
            seed,
            device,
        )

    def facts(self, client: int, own: Mapping[str, str], seed: int) -> dict[str, Any]:
        arrays = self.model_copy(update=dict(own)).prepare()
        partition = self._partition(arrays, self.split_rows(arrays)[0], seed)
        if client >= len(partition.parts):
            raise EpisodeError(
                f"The data are for {len(partition.parts)} clients, and this is number {client}: "
                f"number sites from 0 to {len(partition.parts) - 1}."
            )
        labels = arrays["train-labels"].numpy().tobytes()
        return {
            "name": f"client {client}",
            "labels": list(partition.names),
            "sizes": [len(part) for part in partition.parts],
            "counts": count_by_label(partition.labels[partition.parts[client]], partition.names),
            "files": checksum(labels),
            "words": arrays.info.get("vocabulary"),
        }

    def agree(self, facts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        require_equal(
            facts,
            {
                "labels": "the labels",
                "files": "the checksum of the dataset's labels",
                "sizes": "the sizes of all clients",
                "words": "the word vectors",
            },
        )
        first = facts[min(facts)]
        return agreement(first["labels"], first["sizes"], facts)

    def told(self, agreed: Mapping[str, Any], client: int) -> dict[str, Any]:
        return told(agreed, client)

    def _build_without_data(self, agreed: Mapping[str, Any], seed: int, device: str) -> NeuralTask:
        vectors = absent_vectors(agreed["words"]) if agreed["words"] else None
        return classifier(
            self,
            lambda: self.make_model(vectors, len(agreed["labels"])),
            server_data(agreed, self.partition_summary(), seed, bool(self.holdout)),
            seed,
            device,
        )

    def partition(self, seed: int) -> Partition:
        arrays = self.prepare()
        return self._partition(arrays, self.split_rows(arrays)[0], seed)

    def partition_summary(self) -> str:
        return {
            "similarity": f"similarity s = {self.similarity:g}%",
            "dirichlet": f"Dirichlet, α = {self.alpha:g}",
            "labels": f"{self.labels_per_client} labels per client",
            "users": "one client per user",
        }[self.partition_rule]

    def distribute(self, arrays: PreparedArrays, rows: Tensor, seed: int) -> list[Tensor]:
        """Distribute these rows of the training split: the indices of each client's rows."""
        labels = arrays["train-labels"][rows]
        if self.partition_rule == "users":
            raise EpisodeError(
                "These data have no users: task.partition = 'users' is for sentiment140."
            )
        if self.partition_rule == "dirichlet":
            return by_dirichlet(labels, self.num_clients, self.alpha, seed)
        if self.partition_rule == "labels":
            return by_label_count(labels, self.num_clients, self.labels_per_client, seed)
        return by_similarity(labels, self.num_clients, self.similarity, seed)

    def _partition(self, arrays: PreparedArrays, rows: Tensor, seed: int) -> Partition:
        parts = self.distribute(arrays, rows, seed)
        whole = Partition(arrays["train-labels"][rows], self.label_names(arrays), parts)
        return hold_out_parts(whole, self.holdout, seed)


def split_examples(examples: Tensor, evaluate_on: str, test_share: float) -> tuple[Tensor, Tensor]:
    """Split examples into those to train on and those held out; the same for every seed.

    For datasets without a test or validation split. To evaluate on `validation`, a tenth of what is
    not held out for testing is held out instead, so that tuning never sees the test examples.
    """
    order = examples[permutation(len(examples), 0, "test split")]
    tested = round(test_share * len(order))
    test, rest = order[:tested], order[tested:]
    if evaluate_on == "test":
        return rest.sort().values, test.sort().values
    validated = round(VALIDATION_SHARE * len(rest))
    return rest[validated:].sort().values, rest[:validated].sort().values
