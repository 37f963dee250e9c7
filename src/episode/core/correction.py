"""Where the anchor (G_r^i, G_r) comes from: the rows of the grid.

A correction is data: four answers that the one round loop (`federation/rounds.py`) reads. Each
local step of client i is corrected by G_r - G_r^i (Algorithm 1, line 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Correction:
    """The contract; not a correction itself."""

    name: ClassVar[str]
    probes: ClassVar[bool] = False
    """Each round begins with an exchange of fresh gradients at x̄_r (lines 3 to 6)."""
    remembers: ClassVar[bool] = False
    """Clients keep the mean raw gradient of their last round; the server, the mean over all N."""
    steps_locally: ClassVar[bool] = True
    """Clients take I local steps; otherwise the server steps once along G_r."""

    @property
    def has_global(self) -> bool:
        """Whether there is a G_r at all, for a clipping to decide by."""
        return self.probes or self.remembers


@dataclass(frozen=True)
class Uncorrected(Correction):
    """(0, 0): clients follow their own gradients and drift apart when their data differ."""

    name: ClassVar[str] = "uncorrected"


@dataclass(frozen=True)
class Remembered(Correction):
    """Last round's mean raw gradient of each client, and its mean over all N: SCAFFOLD's memory.

    One exchange of twice the size. Not for problems whose gradient changes fast between rounds:
    the memory is a round old, or older where clients sit rounds out.
    """

    name: ClassVar[str] = "remembered"
    remembers: ClassVar[bool] = True


@dataclass(frozen=True)
class Resampled(Correction):
    """Fresh gradients at x̄_r and their mean over the cohort (lines 3 to 6): two exchanges."""

    name: ClassVar[str] = "resampled"
    probes: ClassVar[bool] = True


@dataclass(frozen=True)
class Synchronous(Correction):
    """The server steps along G_r after every gradient: no drift, and I times the exchanges."""

    name: ClassVar[str] = "synchronous"
    probes: ClassVar[bool] = True
    steps_locally: ClassVar[bool] = False


CORRECTIONS: dict[str, type[Correction]] = {
    c.name: c for c in (Uncorrected, Remembered, Resampled, Synchronous)
}
