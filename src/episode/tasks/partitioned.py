"""Settings of tasks whose dataset is dealt out to clients, at the paper's scale or a laptop's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from episode.data.partition import by_dirichlet, by_label_count, by_similarity
from episode.errors import EpisodeError
from episode.randomness import permutation
from episode.tasks.precision import Precision
from episode.tasks.settings import TaskSettings

Scale = Literal["paper", "laptop"]


@dataclass(frozen=True)
class Deal:
    """Who has which examples: what `episode partition` shows."""

    labels: Tensor
    """Of all examples that could be dealt out."""
    names: tuple[str, ...]
    """Of the labels 0, 1, …"""
    parts: list[Tensor]
    """Each client's examples, as indices into `labels`."""
    clients: tuple[str, ...] = ()
    """Their names, where they have any."""


class DealtSettings(TaskSettings):
    """Scale, data, partition and evaluation; a value that is not given is that of the scale."""

    scales: ClassVar[dict[str, dict[str, Any]]]
    """This task's own settings at each scale."""
    sections: ClassVar[dict[str, dict[str, dict[str, Any]]]]
    """What each scale suggests for the other sections of a config."""

    scale: Scale = "laptop"
    data: str | None = None
    """A folder or archive of the official files; without, what `episode data fetch` has put by."""
    num_clients: int = Field(default=8, ge=1)
    partition: Literal["similarity", "dirichlet", "labels", "users"] = "similarity"
    similarity: float = Field(default=30.0, ge=0, le=100)
    """s, in percent."""
    alpha: float = Field(default=0.5, gt=0)
    """Of the Dirichlet partition."""
    labels_per_client: int = Field(default=2, ge=1)
    """Of the partition by labels."""
    batch_size: int = Field(default=64, ge=1)
    evaluate_on: Literal["test", "validation"] = "test"
    """The test split is for reporting; tune on the validation split."""
    train_evaluated: int = Field(default=0, ge=0)
    """How many training examples (fixed, drawn once) the training loss is taken over; 0: all."""
    precision: Precision = "float32"
    """bfloat16: mixed precision, with float32 parameters, anchors and steps."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_scale(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**cls.scales.get(str(values.get("scale", "laptop")), {}), **values}

    def suggestions(self) -> dict[str, dict[str, Any]]:
        return self.sections[self.scale]

    @abstractmethod
    def deal(self, seed: int) -> Deal:
        """Who has which examples, without building a model."""

    def deal_labels(self, labels: Tensor, seed: int) -> list[Tensor]:
        """The indices of each client's examples, by the partition that is asked for."""
        if self.partition == "users":
            raise EpisodeError(
                "These data have no users: task.partition = 'users' is Sentiment140's."
            )
        if self.partition == "dirichlet":
            return by_dirichlet(labels, self.num_clients, self.alpha, seed)
        if self.partition == "labels":
            return by_label_count(labels, self.num_clients, self.labels_per_client, seed)
        return by_similarity(labels, self.num_clients, self.similarity, seed)


VALIDATION_SHARE = 0.1


def hold_out(examples: Tensor, evaluate_on: str, test_share: float) -> tuple[Tensor, Tensor]:
    """(train, held out) for datasets without splits of their own; the same for every seed.

    Whoever tunes trains on a tenth less, and never sees the test examples.
    """
    order = examples[permutation(len(examples), 0, "test split")]
    tested = round(test_share * len(order))
    test, rest = order[:tested], order[tested:]
    if evaluate_on == "test":
        return rest.sort().values, test.sort().values
    validated = round(VALIDATION_SHARE * len(rest))
    return rest[validated:].sort().values, rest[:validated].sort().values
