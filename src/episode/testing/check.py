"""A check: a claim, a figure and a bound; and the one that all others lean on."""

from __future__ import annotations

from dataclasses import dataclass

from episode.core.algorithm import Algorithm
from episode.testing import plain
from episode.testing.problems import MakeEngine, Problem, distance, play

EXACT = 1e-12
"""Two float64 programs that do the same sums in another order."""


@dataclass(frozen=True)
class Check:
    """A claim, the figure measured, and the bound that it must respect."""

    claim: str
    value: float
    bound: float
    at_least: bool = False
    """Whether the bound is a lower one."""

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        relation = ">=" if self.at_least else "<="
        return f"{self.claim}: {self.value:.3g} (must be {relation} {self.bound:.3g})"


def against_plain(
    name: str, algorithm: Algorithm, problem: Problem, make_engine: MakeEngine
) -> Check:
    """Thirty rounds on the engine and in the plain program, point by point."""
    played = play(problem, algorithm, 30, make_engine)
    program = plain.ROWS[algorithm.correction.name]
    options = {"reuse_probe": True} if algorithm.reuse_probe else {}
    path = program(problem.setting(30), algorithm.clipping.name, **options)
    return Check(f"{name} follows its plain program, to", distance(played.path, path), EXACT)
