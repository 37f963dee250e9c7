"""The range of the fixed-point numbers: agreed on in a first exchange, and widened if need be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from episode.flower.secure.fixed_point import HEADROOM, bits_for, exponent_of
from episode.flower.secure.form import read_exponent

_LEAST_EXPONENT = -16
"""Values that start out smaller than 2^-16 may still grow to 2^7."""
_WIDER = 16
"""By how many powers of two a range is widened if a site's values do not fit."""


@dataclass
class Scale:
    """What sites have agreed on in the first exchange."""

    exponents: dict[str, int]
    """Values of each kind are less than two to the power of this."""
    examples: int = 20
    """No site has more examples than two to the power of this."""

    @classmethod
    def of(cls, sums: Mapping[str, Tensor], x: Tensor, floats: Tensor) -> Scale:
        """Return the scale of a first exchange.

        Args:
            sums: How many sites have values of which size, and how many examples.
            x: The model at the start.
            floats: Its buffers.
        """
        sizes = {name: read_exponent(counts) for name, counts in sums.items()}
        return cls._from(sizes["gradient"], x, floats, sizes["floats"], sizes["examples"])

    @classmethod
    def guessed(cls, x: Tensor, floats: Tensor) -> Scale:
        """Return a scale for sites that could not agree on one: ranges are widened if need be."""
        return cls._from(0, x, floats)

    @classmethod
    def _from(
        cls, gradient: int, x: Tensor, floats: Tensor, after: int = 0, examples: int = 20
    ) -> Scale:
        sizes = {"gradient": gradient, "floats": max(after, exponent_of(floats))}
        sizes["x"] = exponent_of(x)
        return cls({name: max(size, _LEAST_EXPONENT) for name, size in sizes.items()}, examples)

    def bits(self, sites: int) -> dict[str, int]:
        """Return the binary places of each kind of values, for sums over so many sites."""
        return {kind: bits_for(exponent, sites) for kind, exponent in self.exponents.items()}

    def widen(self, kind: str) -> None:
        """Make room for larger values."""
        if kind in self.exponents:
            self.exponents[kind] += _WIDER

    def __str__(self) -> str:
        """Return the range and the precision of each kind of values."""
        return ", ".join(f"{k} up to 2^{e + HEADROOM - 1}" for k, e in self.exponents.items())
