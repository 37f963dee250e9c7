"""How often batches have been renewed: once for every cohort that a round was tried with."""

from __future__ import annotations

from collections.abc import Sequence

from episode.flower.secure.messages import Step


class Repeats:
    """The numbers of the batches of one round.

    Local steps go with the probe of their cohort. The exchanges of everybody are counted apart.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, tuple[int, ...]], int] = {}

    def number(self, step: Step, clients: Sequence[int]) -> int:
        """Return which batches a cohort draws: those that no other cohort of the round has had.

        Example:
            >>> repeats = Repeats()
            >>> repeats.number("probe", [0, 1, 2, 3]), repeats.number("probe", [0, 1, 3])
            (0, 1)
            >>> repeats.number("local", [0, 1, 3])
            1
        """
        return self._numbers.setdefault(_key(step, clients), self._unused(step))

    def renew(self, step: Step, clients: Sequence[int]) -> None:
        """Give a cohort other batches."""
        self._numbers[_key(step, clients)] = self._unused(step)

    def _unused(self, step: Step) -> int:
        kind, _ = _key(step, ())
        return 1 + max((n for (k, _), n in self._numbers.items() if k == kind), default=-1)


def _key(step: Step, clients: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    return "round" if step in ("probe", "local") else step, tuple(clients)
