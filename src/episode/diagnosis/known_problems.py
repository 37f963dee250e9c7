"""Problems whose constants are known exactly, to test estimators and the theorem on."""

from __future__ import annotations

from dataclasses import dataclass

from episode.errors import EpisodeError
from episode.tasks.closed_form import ClosedForm
from episode.tasks.relaxed_smooth import RelaxedSmooth
from episode.theory.constants import Constants


@dataclass(frozen=True)
class KnownProblem:
    """A task, and its constants of Assumption 1, derived from its formulas."""

    task: ClosedForm
    constants: Constants


def relaxed_smooth(settings: RelaxedSmooth | None = None, seed: int = 0) -> KnownProblem:
    """Return a problem in d dimensions with chosen constants; see `tasks.relaxed_smooth`."""
    s = settings or RelaxedSmooth()
    task = s.build(seed, "cpu")
    delta = task.mean(task.x_0)[0].item()
    if delta <= 0:
        raise EpisodeError(f"start_norm is {s.start_norm}: give more than 0, which is the minimum.")
    return KnownProblem(task, Constants(s.L0, s.L1, s.sigma, s.kappa, s.rho, delta))
