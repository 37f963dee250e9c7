"""Where the anchor (G_r^i, G_r) comes from: the rows of the grid.

A correction is data: a few answers that the one round loop (`federation/rounds.py`) reads. Each
local step of client i is corrected by G_r - G_r^i (Algorithm 1, line 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from episode.errors import EpisodeError
from episode.pieces import Pieces


@dataclass(frozen=True)
class Correction:
    """Base class of all corrections. Derive a frozen dataclass from it to write your own.

    Example:
        >>> @dataclass(frozen=True)
        ... class Fresh(Correction):
        ...     probes = True
        >>> Fresh().has_global
        True
    """

    probes: ClassVar[bool] = False
    """Whether each round begins with an exchange of fresh gradients at x̄_r (lines 3 to 6)."""
    remembers: ClassVar[bool] = False
    """Whether clients keep the mean raw gradient of their last round, and the server its mean."""
    steps_locally: ClassVar[bool] = True
    """Whether clients take I local steps; if not, the server takes one step along G_r."""

    def __post_init__(self) -> None:
        if self.remembers if self.probes else not self.steps_locally:
            raise EpisodeError(
                f"{type(self).__name__} correction must not both probe and remember, and without "
                "local steps it must probe: change its class."
            )

    @property
    def name(self) -> str:
        """Name under which it can be found: `resampled`, or `my_correction.py:Fresh`."""
        return CORRECTIONS.name_of(type(self))

    @property
    def has_global(self) -> bool:
        """Whether there is a G_r, by which a clipping can decide."""
        return self.probes or self.remembers


@dataclass(frozen=True)
class Uncorrected(Correction):
    """(0, 0): clients follow their own gradients, and drift apart if their data differ.

    Example:
        >>> Uncorrected().has_global
        False
    """


@dataclass(frozen=True)
class Remembered(Correction):
    """Last round's mean raw gradient of each client, and its mean over all N: SCAFFOLD's memory.

    It takes one exchange of twice the size. Not for problems whose gradient changes fast between
    rounds: the memory is one round old, or older for clients that do not take part in every round.

    Example:
        >>> Remembered().remembers, Remembered().probes
        (True, False)
    """

    remembers: ClassVar[bool] = True


@dataclass(frozen=True)
class Resampled(Correction):
    """Fresh gradients at x̄_r and their mean over the cohort (lines 3 to 6): two exchanges.

    Example:
        >>> Resampled().probes, Resampled().steps_locally
        (True, True)
    """

    probes: ClassVar[bool] = True


@dataclass(frozen=True)
class Synchronous(Correction):
    """The server steps along G_r after every gradient: no drift, but I times the exchanges.

    Example:
        >>> Synchronous().probes, Synchronous().steps_locally
        (True, False)
    """

    probes: ClassVar[bool] = True
    steps_locally: ClassVar[bool] = False


CORRECTIONS = Pieces(
    "correction",
    Correction,
    {
        "uncorrected": Uncorrected,
        "remembered": Remembered,
        "resampled": Resampled,
        "synchronous": Synchronous,
    },
)
"""The built-in corrections by name."""
