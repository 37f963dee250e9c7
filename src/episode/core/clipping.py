"""How long a step is: the columns of the grid (Algorithm 1, line 10).

Each clipping gives the factor in front of the direction g. What they know: ‖g‖, the norm of
the direction really stepped along; ‖G_r‖, the norm of the round's global gradient (None where the
correction has none); η and γ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from episode.core.vectors import Flag, Scalar, minimum, where

EPS = 1e-10
"""Keeps γ/‖g‖ finite at g = 0, where every direction of length γ is as good as another."""


@dataclass(frozen=True)
class Clipping:
    """The contract; not a clipping itself."""

    name: ClassVar[str]
    needs_global: ClassVar[bool] = False
    """Whether the decision is the round's, taken from G_r, so that a correction must offer one."""

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        """The factor in front of the direction g."""
        raise NotImplementedError

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        """Whether `step_size` depends on ‖g‖ in this round."""
        return True


@dataclass(frozen=True)
class Unclipped(Clipping):
    """η: plain gradient descent. Not for recurrent models: nothing bounds a step."""

    name: ClassVar[str] = "unclipped"

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        return False

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return eta


@dataclass(frozen=True)
class PerStep(Clipping):
    """min(η, γ/‖g‖): each step of each client is clipped on its own."""

    name: ClassVar[str] = "per_step"

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return minimum(eta, gamma / (g_norm + EPS))


@dataclass(frozen=True)
class Episodic(Clipping):
    """γ/‖g‖ if ‖G_r‖ > γ/η, else η: one decision for all clients and steps of the round.

    In a clipped round *every* step has length γ, lengthened steps too; in an unclipped round
    nothing watches the local steps.
    """

    name: ClassVar[str] = "episodic"
    needs_global: ClassVar[bool] = True

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        return where(is_clipped(G_norm, eta, gamma), gamma / (g_norm + EPS), eta)  # line 10

    def asks_for_norm(self, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> bool:
        return isinstance(G_norm, Tensor) or bool(is_clipped(G_norm, eta, gamma))


@dataclass(frozen=True)
class Guarded(Clipping):
    """γ/‖g‖ if ‖G_r‖ > γ/η, else min(η, γ/‖g‖): episodic, with a guard on unclipped rounds.

    Ours, not the paper's: where γ/η is large, local steps of an unclipped round can blow up.
    """

    name: ClassVar[str] = "guarded"
    needs_global: ClassVar[bool] = True

    def step_size(self, g_norm: Scalar, G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Scalar:
        clipped = gamma / (g_norm + EPS)
        return where(is_clipped(G_norm, eta, gamma), clipped, minimum(eta, clipped))


def is_clipped(G_norm: Scalar, eta: Scalar, gamma: Scalar) -> Flag:
    """The indicator of a clipped round, ‖G_r‖ > γ/η; at a tie the round is not clipped."""
    return G_norm > gamma / eta


CLIPPINGS: dict[str, type[Clipping]] = {c.name: c for c in (Unclipped, PerStep, Episodic, Guarded)}
