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
    if algorithm.descent.adapts and not rule.steps_locally:
        raise EpisodeError(
            f"{type(algorithm.descent).__name__} is a client's optimizer, but with {row} "
            "correction clients take no steps: use Uncorrected, Remembered or Resampled, or SGD."
        )
    if algorithm.descent.proximal and not rule.steps_locally:
        raise EpisodeError(
            f"proximal holds local steps near x̄_r, but with {row} correction there are none: leave "
            "it at 0."
        )
    if switch("probe_first", algorithm.probe_first) and not rule.remembers:
        raise EpisodeError(
            f"probe_first is about the first memory, but {row} correction has none: use "
            "Remembered, or leave it off."
        )
    _check_probe_batches(algorithm)


def _check_probe_batches(algorithm: Algorithm) -> None:
    rule, count = algorithm.correction, algorithm.probe_batches
    if isinstance(count, str) and count != "local_steps":
        raise EpisodeError(
            f"probe_batches is {count!r}: it must be a whole number, or 'local_steps'."
        )
    several = isinstance(count, str) or whole_number("probe_batches", count, least=1) > 1
    first = rule.remembers and (algorithm.probe_first or algorithm.clipping.needs_global)
    if several and not (rule.probes or first):
        raise EpisodeError(
            f"probe_batches is {count}, but {type(rule).__name__} correction makes no probe: "
            "use Resampled or Synchronous, set probe_first for Remembered, or leave it at 1."
        )
