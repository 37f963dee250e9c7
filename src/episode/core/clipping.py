"""How long a step is: the columns of the grid (Algorithm 1, line 10).

Each clipping gives the factor in front of the direction g. It knows ‖g‖, the norm of the direction
that is really stepped along; ‖G_r‖, the norm of the round's global gradient (NaN if the correction
has none); η and γ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from episode.core.vectors import Flag, Scalar, minimum, where
from episode.pieces import Pieces

EPS = 1e-10
"""Keeps γ/‖g‖ finite at g = 0, where every direction of length γ is as good as another."""


@dataclass(frozen=True)
class Clipping:
    """Base class of all clippings. Derive a frozen dataclass from it to write your own.

    A clipping must define `step_size`. Its fields are its settings: they are stored with a run and
    can be set in a config. See `examples/my_clipping.py`.

    Example:
        >>> @dataclass(frozen=True)
        ... class Halved(Clipping):
        ...     def step_size(self, g_norm, G_norm, eta, gamma):
        ...         return eta / 2
        >>> Halved().step_size(g_norm=3.0, G_norm=4.0, eta=0.5, gamma=1.0)
        0.25
    """

    needs_global: ClassVar[bool] = False
    """Whether G_r decides for the whole round, so that the correction must provide one."""

    @property
    def name(self) -> str:
        """Name under which it can be found: `episodic`, or `my_clipping.py:Soft`."""
        return CLIPPINGS.name_of(type(self))

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        """Return the factor in front of the direction g.

        Args:
            g_norm: ‖g‖. A number, or a tensor `[..., 1]` on a GPU and for many runs at once.
            G_norm: ‖G_r‖; NaN if the correction has no global gradient.
            eta: The round's step size η.
            gamma: The round's clipping length γ.

        Returns:
            The step size. A step is clipped if it differs from `eta`.
        """
        raise NotImplementedError

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        """Return whether `step_size` depends on ‖g‖ in this round; if not, it is given NaN."""
        return True

    def longest_step(self, g_norm: float, G_norm: float, eta: float, gamma: float) -> float:
        """Return the length of the longest step along a direction of norm `g_norm` or less.

        A server recognises by it a client that cannot have taken the steps that it claims. By
        default there is no limit, which is always true; `g_norm` may be infinite.
        """
        return math.inf


@dataclass(frozen=True)
class Unclipped(Clipping):
    """η: plain gradient descent. Not for recurrent models, since nothing bounds a step.

    Example:
        >>> Unclipped().step_size(g_norm=100.0, G_norm=100.0, eta=0.1, gamma=1.0)
        0.1
    """

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        return False

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return eta

    def longest_step(self, g_norm: float, G_norm: float, eta: float, gamma: float) -> float:
        return eta * g_norm


@dataclass(frozen=True)
class PerStep(Clipping):
    """min(η, γ/‖g‖): each step of each client is clipped on its own.

    Not for clients that disagree and are not corrected: their clipped steps may cancel out.

    Example:
        >>> round(PerStep().step_size(g_norm=100.0, G_norm=float("nan"), eta=0.1, gamma=1.0), 6)
        0.01
    """

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return minimum(eta, gamma / (g_norm + EPS))

    def longest_step(self, g_norm: float, G_norm: float, eta: float, gamma: float) -> float:
        return min(eta * g_norm, gamma)


@dataclass(frozen=True)
class Episodic(Clipping):
    """γ/‖g‖ if ‖G_r‖ > γ/η, else η: one decision for all clients and steps of the round.

    In a clipped round *every* step has length γ, even if it has to be lengthened; in an unclipped
    round nothing bounds the local steps.

    Example:
        >>> round(Episodic().step_size(g_norm=2.0, G_norm=100.0, eta=0.1, gamma=1.0), 6)
        0.5
        >>> Episodic().step_size(g_norm=100.0, G_norm=2.0, eta=0.1, gamma=1.0)
        0.1
    """

    needs_global: ClassVar[bool] = True

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return where(is_clipped(G_norm, eta, gamma), gamma / (g_norm + EPS), eta)  # line 10

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        return isinstance(G_norm, Tensor) or bool(is_clipped(G_norm, eta, gamma))

    def longest_step(self, g_norm: float, G_norm: float, eta: float, gamma: float) -> float:
        return gamma if is_clipped(G_norm, eta, gamma) else eta * g_norm


@dataclass(frozen=True)
class Guarded(Clipping):
    """γ/‖g‖ if ‖G_r‖ > γ/η, else min(η, γ/‖g‖): episodic, with a guard on unclipped rounds.

    Ours, not the paper's: if γ/η is large, the local steps of an unclipped round can blow up.

    Example:
        >>> round(Guarded().step_size(g_norm=100.0, G_norm=2.0, eta=0.1, gamma=1.0), 6)
        0.01
    """

    needs_global: ClassVar[bool] = True

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        clipped = gamma / (g_norm + EPS)
        return where(is_clipped(G_norm, eta, gamma), clipped, minimum(eta, clipped))

    def longest_step(self, g_norm: float, G_norm: float, eta: float, gamma: float) -> float:
        return gamma if is_clipped(G_norm, eta, gamma) else min(eta * g_norm, gamma)


def is_clipped(G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Flag:
    """Return the indicator of a clipped round, ‖G_r‖ > γ/η; at a tie the round is not clipped."""
    return G_norm > gamma / eta


CLIPPINGS = Pieces(
    "clipping",
    Clipping,
    {"unclipped": Unclipped, "per_step": PerStep, "episodic": Episodic, "guarded": Guarded},
    required="step_size(self, g_norm, G_norm, eta, gamma)",
)
"""The built-in clippings by name."""
