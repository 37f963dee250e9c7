"""Who takes part in a round: a pure function of (seed, round)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from episode.arguments import whole_number
from episode.errors import EpisodeError
from episode.randomness import permutation, sample

PERMUTED_UP_TO = 10_000
"""Among so many clients a cohort is the beginning of a permutation of all; among more it is drawn
without touching the others. The two ways draw different cohorts, so this number never changes."""


class Cohorts(ABC):
    """A rule that names the clients of each round, in ascending order."""

    @abstractmethod
    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Return the clients of a round."""

    def check(self, num_clients: int) -> None:  # noqa: B027 - a rule may serve any number
        """Raise an error if the rule cannot serve this number of clients."""

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as JSON values: its kind and its fields."""
        fields = asdict(self)  # type: ignore[call-overload]
        return {"kind": type(self).__name__.lower(), **fields}


@dataclass(frozen=True)
class Full(Cohorts):
    """Every client in every round: the paper's setting.

    Example:
        >>> Full().at(round=0, num_clients=3, seed=0)
        [0, 1, 2]
    """

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return list(range(num_clients))


@dataclass(frozen=True)
class Uniform(Cohorts):
    """S clients drawn without replacement, anew each round.

    Args:
        cohort_size: S, how many clients take part in a round.

    Example:
        >>> len(Uniform(2).at(round=0, num_clients=8, seed=0))
        2
    """

    cohort_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cohort_size", whole_number("cohort_size", self.cohort_size))

    def check(self, num_clients: int) -> None:
        if not 1 <= self.cohort_size <= num_clients:
            raise EpisodeError(
                f"cohort_size is {self.cohort_size}, but there are {num_clients} clients: "
                f"it must be from 1 to {num_clients}."
            )

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return _draw(range(num_clients), self.cohort_size, seed, round)


@dataclass(frozen=True)
class Cyclic(Cohorts):
    """Clients that are available in turn: one group of them for `period` rounds, then the next.

    Args:
        groups: Number of groups; client c belongs to group c mod groups.
        period: Rounds for which a group is available.
        cohort_size: S, how many of the available clients are drawn; None for all.

    Example:
        >>> Cyclic(groups=2).at(round=1, num_clients=6, seed=0)
        [1, 3, 5]
    """

    groups: int
    period: int = 1
    cohort_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("groups", "period", "cohort_size"):
            value = getattr(self, name)
            if not (name == "cohort_size" and value is None):
                object.__setattr__(self, name, whole_number(name, value))

    def check(self, num_clients: int) -> None:
        if not 1 <= self.groups <= num_clients:
            raise EpisodeError(
                f"groups is {self.groups}, but there are {num_clients} clients: "
                f"it must be from 1 to {num_clients}."
            )
        if self.period < 1:
            raise EpisodeError(f"period is {self.period}: it must be 1 round or more.")
        smallest = num_clients // self.groups
        if self.cohort_size is not None and not 1 <= self.cohort_size <= smallest:
            raise EpisodeError(
                f"cohort_size is {self.cohort_size}, but the smallest of {self.groups} groups "
                f"has {smallest} clients: it must be from 1 to {smallest}."
            )

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        group = round // self.period % self.groups
        available = range(group, num_clients, self.groups)
        if self.cohort_size is None:
            return list(available)
        return _draw(available, self.cohort_size, seed, round)


def _draw(clients: Sequence[int], size: int, seed: int, round: int) -> list[int]:
    if len(clients) > PERMUTED_UP_TO:
        return [clients[i] for i in sample(len(clients), size, seed, "cohort", round)]
    order = permutation(len(clients), seed, "cohort", round)[:size]
    return sorted(clients[i] for i in order.tolist())


COHORTS: dict[str, type[Cohorts]] = {"full": Full, "uniform": Uniform, "cyclic": Cyclic}
"""The rules by the name that a config gives them."""
