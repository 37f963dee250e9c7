"""Who takes part in a round: a pure function of (seed, round)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from episode.errors import EpisodeError
from episode.randomness import permutation


class Cohorts(Protocol):
    """A rule that names each round's clients, in ascending order."""

    def check(self, num_clients: int) -> None:
        """Refuses a number of clients that the rule cannot serve."""

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        """The clients of a round."""


@dataclass(frozen=True)
class Full:
    """Every client, every round: the paper's setting."""

    def check(self, num_clients: int) -> None:
        """Serves any number of clients."""

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return list(range(num_clients))


@dataclass(frozen=True)
class Uniform:
    """S clients drawn without replacement, afresh each round."""

    cohort_size: int

    def check(self, num_clients: int) -> None:
        if not 1 <= self.cohort_size <= num_clients:
            raise EpisodeError(
                f"cohort_size is {self.cohort_size}, but there are {num_clients} clients: "
                f"it must be from 1 to {num_clients}."
            )

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return _draw(list(range(num_clients)), self.cohort_size, seed, round)


@dataclass(frozen=True)
class Cyclic:
    """Availability that comes and goes: clients in `groups` groups, each there for `period` rounds.

    Client c belongs to group c mod groups. Of those available, S are drawn (all, with
    `cohort_size=None`).
    """

    groups: int
    period: int = 1
    cohort_size: int | None = None

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
        available = list(range(group, num_clients, self.groups))
        if self.cohort_size is None:
            return available
        return _draw(available, self.cohort_size, seed, round)


def _draw(clients: list[int], size: int, seed: int, round: int) -> list[int]:
    order = permutation(len(clients), seed, "cohort", round)[:size]
    return sorted(clients[i] for i in order.tolist())
