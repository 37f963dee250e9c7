"""Which pieces go together: a combination without a meaning is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from episode.arguments import switch, whole_number
from episode.core.trust import FullTrust
from episode.errors import EpisodeError

if TYPE_CHECKING:
    from episode.core.algorithm import Algorithm


def check_combination(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose pieces and options have no meaning together."""
    rule = algorithm.correction
    row, column = type(rule).__name__, type(algorithm.clipping).__name__
    if algorithm.clipping.needs_global and not rule.has_global:
        raise EpisodeError(
            f"{column} clipping needs a global gradient, but the correction is {row}: "
            "use Resampled or Remembered, or PerStep clipping."
        )
    if algorithm.trust != FullTrust() and not (rule.has_global and rule.steps_locally):
        raise EpisodeError(
            f"{type(algorithm.trust).__name__} weighs the correction of local steps, but with "
            f"{row} correction there is none: use Resampled or Remembered, or FullTrust."
        )
    if switch("reuse_probe", algorithm.reuse_probe) and not (rule.probes and rule.steps_locally):
        raise EpisodeError(
            f"reuse_probe takes the first local step from the probe, but with {row} "
            "correction there is none: use Resampled, or leave reuse_probe off."
        )
    if whole_number("probe_batches", algorithm.probe_batches, least=1) > 1 and not rule.probes:
        raise EpisodeError(
            f"probe_batches is {algorithm.probe_batches}, but {row} correction makes no probe: "
            "use Resampled or Synchronous, or leave it at 1."
        )
