"""How much of the correction is believed: λ in g = ∇F_i(x; ξ) + λ (G_r - G_r^i).

The paper believes all of it, in every step. But G_r - G_r^i was measured on one batch at x̄_r: with
noise, or after a few long steps, it says little about the gradient at x. A client can measure how
much of it is still true, with one dot product and no communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from episode.arguments import positive
from episode.core.vectors import Scalar, Vector, clamped_ratio, dot, maximum
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
        ...     def weight(self, held, deviation, age):
        ...         return 0.5
        >>> Half().weight(held=3.0, deviation=4.0, age=0.0)
        0.5
    """

    measures: ClassVar[bool] = True
    """Whether `weight` depends on its arguments, which each step must then measure."""

    @property
    def name(self) -> str:
        """Name under which it can be found: `measured`, or `my_trust.py:Half`."""
        return TRUSTS.name_of(type(self))

    def weight(self, held: Scalar, deviation: Scalar, age: Scalar) -> Scalar:
        """Return λ, the factor in front of the correction G_r - G_r^i.

        Args:
            held: ⟨∇F_i(x; ξ), D⟩: how much of the deviation the gradient at x still holds. A
                number, or a tensor `[..., 1]` on a GPU and for many runs at once.
            deviation: ‖D‖².
            age: How many steps ago, at x̄_r, D was measured; each counts as much as `ageing` says.

        Returns:
            The weight, from 0 (as without a correction) to 1 (the paper's).
        """
        raise NotImplementedError

    def ageing(self, G_norm: Scalar, threshold: Scalar, deviation: Scalar) -> Scalar:
        """Return by how much a correction ages in one step of a round; by default not at all.

        Args:
            G_norm: ‖G_r‖.
            threshold: γ/η; infinite if γ is not the length of a step (`Algorithm.threshold`).
            deviation: ‖D‖².
        """
        return 0.0

    def of_step(
        self, gradient: Vector, shift: Vector | None, deviation: Scalar, age: Scalar
    ) -> Scalar:
        """Return λ for a step along this gradient, given the correction G_r - G_r^i = -D."""
        if shift is None or not self.measures:
            return 1.0
        return self.weight(-dot(gradient, shift), deviation, age)


@dataclass(frozen=True)
class FullTrust(Trust):
    """1: the correction is added in full, as in the paper.

    Example:
        >>> FullTrust().weight(held=0.5, deviation=4.0, age=3.0)
        1.0
    """

    measures: ClassVar[bool] = False

    def weight(self, held: Scalar, deviation: Scalar, age: Scalar) -> Scalar:
        return 1.0


@dataclass(frozen=True)
class MeasuredTrust(Trust):
    """⟨∇F_i(x; ξ), D⟩ / (a ‖D‖²), from 0 to 1, times 1 - age/lifetime, at least 0.

    The first factor is the share of D that the gradient still holds: the correction is believed in
    full if it holds the share a or more, and otherwise in proportion. Where the correction is
    noise, λ falls towards 0 and the client steps as if it were not corrected. Where all clients
    agree, D = 0 and so is λ.

    The second factor ends corrections in long rounds. D was measured at x̄_r, and the further
    clients move from there, the less it says. In a step a correction ages by min(1, η‖G_r‖/γ), the
    length of a step along G_r in clipped steps. All clients find the same, so that what age takes
    from their corrections cancels out, as the corrections do. Near the minimum, where G_r vanishes,
    corrections do not age: where ‖D‖/lifetime is above γ/η it takes the place of γ/η, so that
    the k-th step loses no more of D than k‖G_r‖, whatever γ is.

    With a = 1 the correction takes away just what is left of D. D is measured on one batch, so
    even at x̄_r a gradient holds less of it than all. Corrections whose λ differ do not cancel
    over the clients; the more of them are 1, the more they do. Hence a below 1. As long as a is
    1/2 or more, a corrected gradient is never longer than the raw one.

    Ours, not the paper's. With noisy gradients λ stays below 1, so corrections do not cancel out
    entirely, and a bias remains at the minimum (docs/theory.md).

    Args:
        full_from: a, the share of D from which on the correction is believed in full; above 0, and
            at most 1.
        lifetime: After how many clipped steps a correction is no longer believed. Shorter steps
            count in proportion. A very large number lets no correction age. Nor does one age where
            γ is not the length of a step: without clipping, and with AdamW.

    Example:
        >>> MeasuredTrust(full_from=1.0).weight(held=1.0, deviation=4.0, age=0.0)
        0.25
        >>> MeasuredTrust(full_from=0.5).weight(held=1.0, deviation=4.0, age=0.0)
        0.5
        >>> MeasuredTrust(lifetime=8.0).weight(held=9.0, deviation=4.0, age=6.0)
        0.25
    """

    full_from: float = 0.9
    lifetime: float = 8.0

    def __post_init__(self) -> None:
        if positive("full_from", self.full_from) > 1:
            raise EpisodeError(f"full_from is {self.full_from}: it must be above 0, at most 1.")
        positive("lifetime", self.lifetime)

    def ageing(self, G_norm: Scalar, threshold: Scalar, deviation: Scalar) -> Scalar:
        return clamped_ratio(G_norm, maximum(threshold, deviation**0.5 / self.lifetime))

    def weight(self, held: Scalar, deviation: Scalar, age: Scalar) -> Scalar:
        share = clamped_ratio(held, self.full_from * deviation)
        return share * clamped_ratio(self.lifetime - age, self.lifetime)


TRUSTS = Pieces(
    "trust",
    Trust,
    {"full": FullTrust, "measured": MeasuredTrust},
    "weight(self, held, deviation, age)",
)
"""The built-in kinds of trust by name."""
