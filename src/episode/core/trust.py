"""How much of the correction is believed: λ in g = ∇F_i(x; ξ) + λ (G_r - G_r^i).

The paper believes all of it, in every step. But G_r - G_r^i was measured on one batch at x̄_r: with
noise, or after a few long steps, it says little about the gradient at x. A client can measure how
much of it is still true, with one dot product and no communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from episode.arguments import positive
from episode.core.vectors import Scalar, Vector, clamped_ratio, dot
from episode.errors import EpisodeError
from episode.pieces import Pieces


@dataclass(frozen=True)
class Trust:
    """Base class of all kinds of trust. Derive a frozen dataclass from it to write your own.

    A kind of trust must define `weight`. Let D = G_r^i - G_r, by which the client's gradient
    deviated from the global one at x̄_r.

    Example:
        >>> @dataclass(frozen=True)
        ... class Half(Trust):
        ...     def weight(self, held, deviation):
        ...         return 0.5
        >>> Half().weight(held=3.0, deviation=4.0)
        0.5
    """

    measures: ClassVar[bool] = True
    """Whether `weight` depends on the gradient, so that each step costs a dot product."""

    @property
    def name(self) -> str:
        """Name under which it can be found: `measured`, or `my_trust.py:Half`."""
        return TRUSTS.name_of(type(self))

    def weight(self, held: Scalar, deviation: Scalar) -> Scalar:
        """Return λ, the factor in front of the correction G_r - G_r^i.

        Args:
            held: ⟨∇F_i(x; ξ), D⟩: how much of the deviation the gradient at x still holds. A
                number, or a tensor `[..., 1]` on a GPU and for many runs at once.
            deviation: ‖D‖².

        Returns:
            The weight, from 0 (as without a correction) to 1 (the paper's).
        """
        raise NotImplementedError

    def of_step(self, gradient: Vector, shift: Vector | None, deviation: Scalar) -> Scalar:
        """Return λ for a step along this gradient, given the correction G_r - G_r^i = -D."""
        if shift is None or not self.measures:
            return 1.0
        return self.weight(-dot(gradient, shift), deviation)


@dataclass(frozen=True)
class FullTrust(Trust):
    """1: the correction is added in full, as in the paper.

    Example:
        >>> FullTrust().weight(held=0.5, deviation=4.0)
        1.0
    """

    measures: ClassVar[bool] = False

    def weight(self, held: Scalar, deviation: Scalar) -> Scalar:
        return 1.0


@dataclass(frozen=True)
class MeasuredTrust(Trust):
    """⟨∇F_i(x; ξ), D⟩ / (a ‖D‖²), between 0 and 1: the share of D that the gradient still holds.

    The correction is believed in full if the gradient holds the share a of D or more, and otherwise
    in proportion. Where the correction is noise, or has grown old in a long round, λ falls towards
    0 and the client steps as if it were not corrected. Where all clients agree, D = 0 and so is λ.

    With a = 1 the correction takes away just what is left of D. D is measured on one batch, so
    even at x̄_r a gradient holds less of it than all. Corrections whose λ differ do not cancel
    over the clients; the more of them are 1, the more they do. Hence a below 1. As long as a is
    1/2 or more, a corrected gradient is never longer than the raw one.

    Ours, not the paper's. With noisy gradients λ stays below 1, so corrections do not cancel out
    entirely, and a bias remains at the minimum (docs/theory.md).

    Args:
        full_from: a, the share of D from which on the correction is believed in full; above 0, and
            at most 1.

    Example:
        >>> MeasuredTrust(full_from=1.0).weight(held=1.0, deviation=4.0)
        0.25
        >>> MeasuredTrust(full_from=0.5).weight(held=1.0, deviation=4.0)
        0.5
        >>> MeasuredTrust().weight(held=9.0, deviation=4.0)
        1.0
    """

    full_from: float = 0.9

    def __post_init__(self) -> None:
        if positive("full_from", self.full_from) > 1:
            raise EpisodeError(f"full_from is {self.full_from}: it must be above 0, at most 1.")

    def weight(self, held: Scalar, deviation: Scalar) -> Scalar:
        return clamped_ratio(held, self.full_from * deviation)


TRUSTS = Pieces(
    "trust", Trust, {"full": FullTrust, "measured": MeasuredTrust}, "weight(self, held, deviation)"
)
"""The built-in kinds of trust by name."""
