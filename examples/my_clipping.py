r"""A clipping of your own in one file: it shortens long steps smoothly instead of cutting them off.

    episode run --set algorithm.correction=resampled \
                --set algorithm.clipping=examples/my_clipping.py:Soft

A field is a setting: add `--set algorithm.clipping.scale=50`, or write in a TOML config

    [algorithm]
    correction = "resampled"
    clipping = { name = "examples/my_clipping.py:Soft", scale = 50 }

A whole algorithm can be named too: `--set algorithm=examples/my_clipping.py:SOFT_EPISODE`, or in
Python `episode.fit(..., algorithm=SOFT_EPISODE)`. Run this file to check the algorithm:

    python examples/my_clipping.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from episode import Algorithm, Clipping, EpisodeError, Resampled
from episode.testing import check_algorithm


@dataclass(frozen=True)
class Soft(Clipping):
    """η / (1 + η‖g‖/(scale·γ)): about η for a small g, and never a step longer than scale·γ."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a scale that has no meaning."""
        if not self.scale > 0:
            raise EpisodeError(f"scale is {self.scale}: it must be above 0.")

    def step_size(self, g_norm: Any, G_norm: Any, eta: Any, gamma: Any) -> Any:
        """Return the factor in front of the direction g."""
        return eta / (1 + eta * g_norm / (self.scale * gamma))


SOFT_EPISODE = Algorithm(Resampled(), Soft())

if __name__ == "__main__":
    for check in check_algorithm(SOFT_EPISODE):
        print(check)
