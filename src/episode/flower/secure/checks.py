"""What a secure run cannot do, said before its first round."""

from __future__ import annotations

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.rounds import Plan
from episode.flower.secure.rules import MIN_COHORT


def check_settings(algorithm: Algorithm, min_replies: int | None, per_client: bool | None) -> None:
    """Refuse settings that need what single sites send.

    Args:
        algorithm: The algorithm.
        min_replies: Number of sites that must take part in a round.
        per_client: Whether records of each site are to be kept.

    Raises:
        EpisodeError: A setting needs single replies.
    """
    if min_replies is not None and min_replies < MIN_COHORT:
        raise EpisodeError(
            f"min_replies is {min_replies}, but a secure sum needs {MIN_COHORT} or more sites, "
            "because fewer could be told apart: raise it, or leave it out."
        )
    if per_client:
        raise EpisodeError(
            "per_client is true, but a secure run sees no single site: leave it out; sites that "
            "agree to it can share their own evaluation (share-metrics in the node config)."
        )
    if algorithm.weighting == "examples" and algorithm.correction.remembers:
        raise EpisodeError(
            f"weighting='examples' with the correction {algorithm.correction.name} needs the "
            "weight of each site, which a secure run does not show: use weighting='uniform'."
        )


def check_cohorts(plan: Plan, num_sites: int) -> None:
    """Refuse cohorts that are too small to hide a site in.

    Raises:
        EpisodeError: There are too few sites, or too few of them take part in a round.
    """
    if num_sites < MIN_COHORT:
        raise EpisodeError(
            f"A secure run needs {MIN_COHORT} or more sites, but there are {num_sites}: with two, "
            "each could compute the other's values."
        )
    size = len(plan.cohorts.at(0, num_sites, plan.seed))
    if size < MIN_COHORT:
        raise EpisodeError(
            f"The cohort of a round has {size} sites, but a secure sum needs {MIN_COHORT} or more: "
            "raise cohort_size."
        )
