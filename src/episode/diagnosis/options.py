"""How much a diagnosis measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from episode.errors import EpisodeError

_LEAST = {"steps": 2, "points": 3, "batches": 2, "iterations": 3, "tolerance": 0}
"""Smallest allowed values; 1 for all other options."""


@dataclass(frozen=True)
class DiagnosisOptions:
    """How much a diagnosis measures; the defaults take some seconds for a small network.

    Raises:
        EpisodeError: A value is too small, or not a whole number.
    """

    steps: int = 40
    """Steps of gradient descent along which the loss is measured."""
    points: int = 12
    """Points of this descent at which everything is measured: more of them early than late."""
    batches: int = 8
    """Batches per client to measure on, or all of them if a client has fewer."""
    hessian_clients: int = 4
    """Number of clients whose Hessian is measured."""
    hessian_batches: int = 4
    """Batches per client on which the Hessian is measured."""
    tolerance: float = 2e-3
    """Relative error that the power iteration for the Hessian's norm aims at."""
    iterations: int = 60
    """Iterations after which the power iteration gives up."""
    local_steps: int = 8
    """Largest number of local steps per round to try: a short run must have some rounds to tell
    whether more local steps save any, and has 16 with 8 of them."""
    rehearsal: int = 128
    """Iterations of each short test run."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kinds, words = (
                (int, "whole number") if name != "tolerance" else ((int, float), "number")
            )
            least = _LEAST.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
                raise EpisodeError(f"{name} is {value!r}: it must be a {words} of {least} or more.")

    def measured_steps(self) -> list[int]:
        """Return the steps to measure at: 0, the last, and others evenly on a log scale."""
        spaced = np.geomspace(1, self.steps + 1, self.points) - 1
        return sorted({round(float(s)) for s in spaced} | {0, self.steps})
