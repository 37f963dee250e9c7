"""η_r and γ_r: how the step size and the clipping length change over the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from episode.arguments import number, shown, switch
from episode.core.vectors import Scalar
from episode.errors import EpisodeError, unknown

KINDS = ("constant", "step", "cosine")


@dataclass(frozen=True)
class Schedule:
    """The step size η and the clipping length γ in each round: a constant times a factor.

    Args:
        eta: The step size η that the factor is applied to.
        gamma: The clipping length γ.
        kind: `"constant"`, `"step"` (multiplied by `factor` at each milestone) or `"cosine"`
            (falling from 1 to `final`).
        milestones: When a step schedule falls: rounds or, below 1, fractions of the run.
        factor: What a step schedule multiplies by at each milestone.
        final: Factor at the end of a cosine schedule.
        warmup: How long the factor rises linearly to 1 at the beginning, starting above 0: rounds
            or, below 1, a fraction of the run.
        gamma_follows_eta: Whether the factor applies to γ too, so that the threshold γ/η stays as
            it was tuned.

    Raises:
        EpisodeError: A value is out of its range, or does not belong to this kind of schedule.

    Example:
        >>> Schedule(eta=0.5, gamma=0.25, kind="step", milestones=(0.5,)).at(round=6, rounds=10)
        (0.25, 0.125)
    """

    __pydantic_config__: ClassVar = {"arbitrary_types_allowed": True}  # for Scalar, in configs

    eta: Scalar
    gamma: Scalar
    kind: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.5
    final: float = 0.0
    warmup: float = 0.0
    gamma_follows_eta: bool = True

    def __post_init__(self) -> None:
        for name in ("eta", "gamma", "factor", "final", "warmup"):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                object.__setattr__(self, name, number(name, value))
        if not isinstance(self.milestones, (tuple, list)):
            raise EpisodeError(f"milestones is {shown(self.milestones)}: give a list of numbers.")
        milestones = (number("each of milestones", m) for m in self.milestones)
        object.__setattr__(self, "milestones", tuple(milestones))
        switch("gamma_follows_eta", self.gamma_follows_eta)
        _validate(self)

    @property
    def threshold(self) -> Scalar:
        """γ/η without any factor: the norm of G_r above which a round is clipped."""
        return self.gamma / self.eta

    def at(self, round: float, rounds: int) -> tuple[Scalar, Scalar]:
        """Return (η_r, γ_r) in round `round` of `rounds`, counted from 0."""
        factor = self._warmup_factor(round, rounds) * self._decay_factor(round, rounds)
        return self.eta * factor, self.gamma * (factor if self.gamma_follows_eta else 1.0)

    def _warmup_factor(self, round: float, rounds: int) -> float:
        length = _in_rounds(self.warmup, rounds)
        return min(1.0, (round + 1) / length) if length >= 1 else 1.0

    def _decay_factor(self, round: float, rounds: int) -> float:
        if self.kind == "step":
            passed = sum(round >= _in_rounds(m, rounds) for m in self.milestones)
            return math.pow(self.factor, passed)
        if self.kind == "cosine":
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * round / rounds)) / 2
        return 1.0


def _in_rounds(position: float, rounds: int) -> float:
    return position * rounds if position < 1 else position


def _validate(s: Schedule) -> None:
    for name, value in (("eta", s.eta), ("gamma", s.gamma)):
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            raise EpisodeError(f"{name} is {value}: it must be a positive, finite number.")
    if s.kind not in KINDS:
        raise unknown("schedule", s.kind, KINDS)
    if s.kind == "step" and not s.milestones:
        raise EpisodeError("A step schedule needs milestones, for example [0.6, 0.8].")
    if s.kind != "step" and s.milestones:
        raise EpisodeError(f"milestones belong to a step schedule, but this one is {s.kind}.")
    if any(not m > 0 for m in s.milestones):
        raise EpisodeError(f"milestones are {list(s.milestones)}: each must be above 0.")
    if not 0 < s.factor <= 1:
        raise EpisodeError(f"factor is {s.factor}: it must be above 0 and at most 1.")
    if not 0 <= s.final <= 1:
        raise EpisodeError(f"final is {s.final}: it must be from 0 to 1.")
    if not 0 <= s.warmup < math.inf:
        raise EpisodeError(f"warmup is {s.warmup}: it must be 0 or more.")
