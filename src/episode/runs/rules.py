"""Schedules and rules for cohorts, as `fit` and Flower's strategy are given them."""

from __future__ import annotations

from typing import Any

from episode.arguments import number, shown
from episode.core.algorithm import Algorithm
from episode.core.clipping import Unclipped
from episode.core.schedule import KINDS, Schedule
from episode.errors import EpisodeError, unknown
from episode.federation.sampling import Cohorts, Full


def schedule_of(schedule: Any, eta: Any, gamma: Any, algorithm: Algorithm) -> Schedule:
    """Return the schedule of η and γ.

    Args:
        schedule: A `Schedule`, which has its own η and γ; the name of one that needs nothing
            else, such as "cosine"; or None for constants.
        eta: Step size η; None if the schedule has it.
        gamma: Length γ of a clipped step; None if the schedule has it, or nothing is clipped.
        algorithm: Says whether γ is used.

    Raises:
        EpisodeError: A value that is used is missing or wrong.
    """
    if isinstance(schedule, Schedule):
        for name in ("eta", "gamma"):
            number(f"schedule.{name}", getattr(schedule, name))
        return schedule
    kind = "constant" if schedule is None else schedule
    if not isinstance(kind, str):
        raise EpisodeError(
            f"schedule is {shown(schedule)}: give 'constant', 'cosine' or a Schedule(eta, gamma, "
            "...)."
        )
    if kind not in KINDS:
        raise unknown("schedule", kind, KINDS)
    if kind == "step":
        raise EpisodeError(
            "schedule is 'step', but not when to step: give Schedule(eta, gamma, kind='step', "
            "milestones=(0.5, 0.75))."
        )
    if eta is None:
        raise EpisodeError("eta is missing: give the step size η, such as eta=0.1, or a schedule.")
    if gamma is None and not isinstance(algorithm.clipping, Unclipped):
        raise EpisodeError(
            "gamma is missing: give the length γ of a clipped step, such as gamma=0.1; only an "
            "algorithm that does not clip needs none."
        )
    eta = number("eta", eta)
    return Schedule(eta, eta if gamma is None else number("gamma", gamma), kind=kind)  # type: ignore[arg-type]


def cohorts_of(cohorts: Any) -> Cohorts:
    """Return who takes part in each round; everybody, for None."""
    if cohorts is not None and not isinstance(cohorts, Cohorts):
        raise EpisodeError(
            f"cohorts is {shown(cohorts)}: give Full(), Uniform(...) or Cyclic(...)."
        )
    return cohorts or Full()
