"""Which pieces go together: a combination without a meaning is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from episode.arguments import switch, whole_number
from episode.core.clipping import CLIPPINGS
from episode.core.correction import CORRECTIONS
from episode.core.descent import DESCENTS
from episode.core.server_step import SERVER_STEPS, ServerMean
from episode.core.trust import TRUSTS, FullTrust
from episode.errors import EpisodeError, unknown

if TYPE_CHECKING:
    from episode.core.algorithm import Algorithm


def check_combination(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose pieces are not sound, or have no meaning together."""
    CORRECTIONS.check(algorithm.correction)
    CLIPPINGS.check(algorithm.clipping)
    DESCENTS.check(algorithm.descent)
    TRUSTS.check(algorithm.trust)
    SERVER_STEPS.check(algorithm.server)
    if algorithm.weighting not in (choices := ("uniform", "examples")):
        raise unknown("weighting", algorithm.weighting, choices)
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
    if algorithm.server != ServerMean() and not rule.steps_locally:
        raise EpisodeError(
            f"{type(algorithm.server).__name__} steps along the mean of local steps, but with "
            f"{row} correction there are none: give momentum to the descent, or use ServerMean."
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
