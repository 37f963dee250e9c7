"""The settings of a task in a config, and the contract to build the task from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from episode.data.partition import Partition, count_labels
from episode.federation.protocols import Task
from episode.results.store import LabelCounts


@dataclass(frozen=True)
class Share:
    """The part of a federation that one process builds: some clients, all of them, or none."""

    clients: Sequence[int] | None = None
    """The clients whose data are needed here; None for all."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """What sites have agreed on before round 0: for a server what `TaskSettings.agree` returned,
    for a site what `TaskSettings.told` made of it."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Settings that a site gives for itself, such as the folder of its data."""

    def has(self, client: int) -> bool:
        """Whether this client's data are needed here."""
        return self.clients is None or client in self.clients


class TaskSettings(BaseModel):
    """Settings of one task: fields that a config can set, and how to build the task from them.

    Derive from this class to add a task: its fields are the settings, `build` makes the task. The
    settings are frozen and do no work until `build` is called. Everything but `summary` and `build`
    has a default.

    Raises:
        pydantic.ValidationError: A value is not allowed, or there is no such setting.

    Example:
        >>> import torch
        >>> from episode.tasks.neural import NeuralTask
        >>> class Line(TaskSettings):
        ...     summary = "fit a line through noisy points"
        ...     num_clients: int = 3
        ...     def build(self, seed: int, device: str) -> NeuralTask:
        ...         x = torch.linspace(-1, 1, 12)[:, None]
        ...         clients = [(x, k * x) for k in range(self.num_clients)]
        ...         loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        ...         return NeuralTask(torch.nn.Linear(1, 1), clients, loss, batch_size=4, seed=seed)
        >>> Line(num_clients=2).build(seed=0, device="cpu").num_clients
        2
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    summary: ClassVar[str] = ""
    """One line for `episode list`."""
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """Values for the other sections of a config that names only this task.

    In `budget`, `iterations` may stand for R·I, the rounds times the local steps: the number of
    rounds then follows from the number of local steps.
    """
    splits: ClassVar[tuple[str, ...]] = ()
    """The splits that a setting `evaluate_on` can name; empty if the task has no such setting."""
    site_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that each site gives for itself: paths on its own disk. `data` names a folder that
    no server needs."""

    @abstractmethod
    def build(self, seed: int, device: str) -> Task:
        """Load the data, make the model and return the task.

        Args:
            seed: Random seed of everything that the task draws at random.
            device: Where the model computes, such as `cpu` or `cuda:0`.
        """

    def build_share(self, share: Share, seed: int, device: str) -> Task:
        """Build the task with the data of some clients only: a rank's, a site's, or nobody's.

        By default the whole task is built. Override it to keep everybody's data where they are;
        which examples a client has must not depend on the share.
        """
        return self.build(seed, device)

    def check_at_sites(self) -> None:
        """Raise an error for settings with which real sites could not agree before round 0."""

    def facts(self, client: int, own: Mapping[str, str], seed: int) -> dict[str, Any]:
        """Return what a site tells the server about its own data before round 0, as JSON values.

        Args:
            client: The site's number.
            own: Settings that the site gives for itself.
            seed: Random seed of the run.
        """
        return {}

    def agree(self, facts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return, at the server, what the sites agree on, from what each has told.

        Raises:
            EpisodeError: Sites differ in what must be the same; names the site, and the difference.
        """
        return {}

    def told(self, agreed: Mapping[str, Any], client: int) -> dict[str, Any]:
        """Return what the server tells a site of what was agreed on; it is sent with messages."""
        return dict(agreed)

    def sizes(self, seed: int) -> Sequence[int] | None:
        """Return how many examples each client has, before the task is built; None if unknown."""
        found = self.partition(seed)
        return None if found is None else [len(part) for part in found.parts]

    def suggestions(self) -> dict[str, dict[str, Any]]:
        """Return values for the other sections of a config that fit these settings."""
        return self.defaults

    def partition(self, seed: int) -> Partition | None:
        """Return which client has which examples, without building a model.

        None if the task has no examples to distribute.
        """
        return None

    def partition_summary(self) -> str:
        """Return how the examples are distributed, as a phrase for titles."""
        return ""

    @classmethod
    def has_setting(cls, name: str) -> bool:
        """Return whether a config can set this value, as in `task.<name> = …`."""
        return name in {field.alias or key for key, field in cls.model_fields.items()}

    def chosen_scale(self) -> str | None:
        """Return the scale that sets values which are not given; None if the task has no scales."""
        return None

    def label_counts(self, partition: Partition, seed: int) -> LabelCounts:
        """Count the labels of each client, with a title that says how they were distributed."""
        present, counts = count_labels(partition.labels, partition.parts)
        return LabelCounts(
            ", ".join(filter(None, [self.partition_summary(), f"seed {seed}"])),
            [partition.names[int(label)] for label in present],
            partition.clients or [str(client) for client in range(len(partition.parts))],
            counts.tolist(),
        )
