"""How large a site's reply may be: proven limits, and a comparison with the other sites.

**Proven limits** (`Bounds.check`). A reply beyond one of these cannot come from a site that
followed the algorithm with finite numbers, so it is always rejected.

- *How far a site moves.* Every step is x ← x - size · g, and the clipping knows ‖g‖ of the very
  direction g that is stepped along, with weight decay, correction, momentum and Nesterov's
  look-ahead in it. So a clipped step is never longer than γ, whatever the descent does, and a site
  moves at most γ·I in a round that `PerStep` or `Guarded` clipping plays, and in a clipped round of
  `Episodic` clipping (`Clipping.longest_step`).
- *With `max_norm` = M* the operator states that no gradient of a site is longer than M. Then the
  mean of a round's gradients (the memory) is not either, a corrected gradient is at most
  M + ‖G_r - G_r^i‖, and a velocity, like the direction that momentum makes of it, at most
  D = ‖v_0‖ + (M + ‖G_r - G_r^i‖) / (1 - μ): v_t = μ v_{t-1} + g_t is a geometric sum, and with
  look-ahead g + μv is at most the same. An unclipped step is at most η·D long, and a site moves at
  most η·D·I.
- *AdamW* scales every parameter by itself, so that a clipping bounds gradients and not steps:
  only the comparison below applies to how far a site moves.
- Both limits are doubled, and have room for rounding: the norm of 10⁸ numbers in float32 comes out
  4% too small, which makes steps longer, and each step rounds x.
- *Numbers to compute with.* A norm near the square root of the largest number of its type would
  overflow at the other sites. Such a reply counts as one that is not finite.

**Comparison** (`Bounds.outliers`). Where nothing clips the steps, honest mathematics sets no limit:
gradients may be of any size, and all sites may blow up together, which is then the run's result. So
a reply is unusual if it is `FAR` times as large as both the cohort's median and a scale of the
round. The scale of a movement is the largest of ‖x̄_r‖, γ·I and η·I·‖G_r‖: to move by a
thousand times the length of the whole model in one round, while half of the others did not, is no
training. Gradients, memories and velocities are measured by the movement that they would cause.
Where large gradients lead to clipped steps (all but `Unclipped`), they do no harm and may be heavy
tailed, so only the limits above apply. Buffers are compared by their change, with much more room:
silos may hold the same feature in units that differ by 1000, and a variance squares that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.descent import Descent
from episode.core.trust import FullTrust, MeasuredTrust
from episode.federation.protocols import Phase
from episode.federation.rounds import MOST, Plan
from episode.federation.state import Buffers, ClientState
from episode.flower.checks import Rejected, metric_is_finite
from episode.flower.messages import Answer, Ask

FAR = 1e3
"""How many times as large as the median and the round's scale is unusual."""
FAR_FOR_BUFFERS = 1e9
_ROOM = 2.0
"""Factor on proven limits, because norms are rounded."""


@dataclass(frozen=True)
class Measured:
    """A quantity of each site's reply, by client, and the size up to which it is usual."""

    name: str
    sizes: dict[int, float]
    scale: float
    far: float = FAR


@dataclass(frozen=True)
class Bounds:
    """What the replies of one phase are compared with."""

    algorithm: Algorithm
    phase: Phase
    x: Tensor
    """x̄_r, from which the sites started."""
    buffers: Buffers
    """The buffers that they started from."""
    G: Tensor | None
    """G_r, if they had it."""
    G_norm: float
    eta: float
    gamma: float
    local_steps: int
    """I; 1 if the server takes the step."""
    max_norm: float | None = None

    @classmethod
    def of(
        cls, ask: Ask, broadcast: Mapping[str, Any], plan: Plan | None, max_norm: float | None
    ) -> Bounds:
        """Return the bounds of a phase.

        Args:
            ask: What sites were asked.
            broadcast: What they were sent.
            plan: The plan of the run, because a probe is not told how long its round's steps are.
            max_norm: The operator's limit on gradients.
        """
        assert ask.phase != "evaluate"
        algorithm, steps = ask.built(), (ask.eta, ask.gamma, ask.local_steps)
        if ask.phase == "probe" and plan is not None:
            eta, gamma = (float(size) for size in plan.step_sizes(ask.round))
            steps = (eta, gamma, plan.local_steps if algorithm.correction.steps_locally else 1)
        start = (broadcast["x"], broadcast["buffers"], broadcast.get("G"), ask.G_norm)
        return cls(algorithm, ask.phase, *start, *steps, max_norm)

    def check(self, before: ClientState, answer: Answer) -> None:
        """Reject an answer that no honest site can have sent.

        Args:
            before: The client's state when it was asked.
            answer: What it sent, with its state since.

        Raises:
            Rejected: With the answer, if it is only that it has left the finite numbers.
        """
        reply, after = answer.reply, answer.state
        kept = {name: held for name, held in after.tensors().items() if name != "steps"}
        vectors = {n: v for n, v in reply.vectors.items() if n != "change"} | kept
        if after.steps is not None and not 0 < int(after.steps) < MOST:
            raise Rejected(f"sent moments of {int(after.steps)} steps")
        for name, vector in vectors.items():
            size = norm_of(vector)
            if not (math.isfinite(size) or torch.isfinite(vector).all()):
                raise Rejected(f"sent a {name} that is not finite", answer)
            if not size <= _largest(vector.dtype):
                reason = f"sent a {name} of norm {size:.3g}, which is too large to compute with"
                raise Rejected(reason, answer)
            if self.max_norm is not None and name in ("gradient", "memory"):
                _refuse_above(name, size, self.max_norm, "max_norm")
        if reply.buffers is not None and reply.buffers.left_the_finite(self.buffers):
            raise Rejected("sent buffers that are not finite", answer)
        for name, value in reply.metrics.items():
            if not metric_is_finite(value):
                raise Rejected(f"sent a {name} of {value}", answer)
        if self.phase == "local":
            self._check_movement(before, answer)

    def _check_movement(self, before: ClientState, answer: Answer) -> None:
        direction = self._longest_direction(before)
        step = self._longest_step(direction, self.G_norm)
        moved, limit = norm_of(answer.reply.vectors["x"] - self.x), step * self.local_steps
        if moved > self._with_room(limit):
            raise Rejected(
                f"sent an x that is {moved:.3g} away from the server's, but the {self.local_steps} "
                f"steps of this round lead no further than {limit:.3g}"
            )
        if answer.state.velocity is not None:
            size = norm_of(answer.state.velocity)
            _refuse_above("velocity", size, _ROOM * direction, "what max_norm allows")

    def _longest_direction(self, before: ClientState) -> float:
        """Return the norm of the longest direction to step along, D; infinite if there is none."""
        descent = self.algorithm.descent
        known = type(descent) is Descent and not descent.proximal
        known = known and isinstance(self.algorithm.trust, (FullTrust, MeasuredTrust))
        if self.max_norm is None or not known:
            return math.inf
        own = before.memory if self.algorithm.correction.remembers else before.anchor
        shift = self.G if own is None or self.G is None else self.G - own
        corrected = self.max_norm + (0.0 if shift is None else norm_of(shift))
        start = 0.0 if before.velocity is None else norm_of(before.velocity)
        return start + corrected / (1 - descent.momentum)

    def _with_room(self, length: float) -> float:
        """Return how far steps of this length in all can lead; each rounds x by half of eps."""
        eps = torch.finfo(self.x.dtype).eps
        return _ROOM * length + 2 * self.local_steps * eps * (norm_of(self.x) + length)

    def outliers(self, answers: Mapping[int, Answer]) -> dict[int, str]:
        """Return the clients whose answers are far out of the ordinary, and why.

        Args:
            answers: The answers of the cohort, each of which has passed `check`.
        """
        found: dict[int, str] = {}
        for measured in self._measured(answers):
            usual = max(median_low(measured.sizes.values()), measured.scale)
            for client, size in measured.sizes.items():
                if size > measured.far * usual:
                    found[client] = (
                        f"sent {measured.name} of norm {size:.3g}, more than {measured.far:g} "
                        f"times what is usual in this round ({usual:.3g})"
                    )
        return found

    def _measured(self, answers: Mapping[int, Answer]) -> Iterator[Measured]:
        yield from self._measured_buffers(answers)
        if not (answers and self.eta):
            return
        scale = self._scale()
        if self.phase == "local" and not self._is_clipped(self.G_norm):
            moved = {c: norm_of(a.reply.vectors["x"] - self.x) for c, a in answers.items()}
            yield Measured("an x that differs from the server's by a vector", moved, scale)
        if self._is_clipped(math.inf):  # a large gradient makes steps clipped, and so harmless
            return
        per_step = scale / (self.eta * self.local_steps)
        if self.phase == "probe":
            sizes = {c: norm_of(a.reply.vectors["gradient"]) for c, a in answers.items()}
            yield Measured("a gradient", sizes, per_step)
            return
        momentum = self.algorithm.descent.momentum
        for name, usual in (("memory", per_step), ("velocity", per_step / (1 - momentum))):
            held = {c: vars(a.state)[name] for c, a in answers.items()}
            sizes = {c: norm_of(vector) for c, vector in held.items() if vector is not None}
            if sizes:
                yield Measured(f"a {name}", sizes, usual)

    def _is_clipped(self, G_norm: float) -> bool:
        """Whether the clipping limits the steps of a round with this ‖G_r‖."""
        return math.isfinite(self._longest_step(math.inf, G_norm))

    def _longest_step(self, direction: float, G_norm: float) -> float:
        """Return the length of the longest step, given the norm of the longest direction."""
        if self.algorithm.descent.adapts:
            return math.inf
        clipping = self.algorithm.clipping
        return clipping.longest_step(direction, G_norm, self.eta, self.gamma)

    def _measured_buffers(self, answers: Mapping[int, Answer]) -> Iterator[Measured]:
        sent = {c: a.reply.buffers for c, a in answers.items() if a.reply.buffers is not None}
        for name, old in vars(self.buffers).items():
            if sent and old.numel():
                sizes = {c: _change(vars(buffers)[name], old) for c, buffers in sent.items()}
                scale = max(1.0, float(self.local_steps), _change(old, torch.zeros_like(old)))
                yield Measured("buffers that differ by a vector", sizes, scale, FAR_FOR_BUFFERS)

    def _scale(self) -> float:
        """Return how far a site may be expected to move in the round, and more."""
        by_gradient = 0.0 if self.G is None else self.eta * self.local_steps * norm_of(self.G)
        return max(norm_of(self.x), self.gamma * self.local_steps, by_gradient)


def norm_of(vector: Tensor) -> float:
    """‖v‖ in double precision, so that a large vector of small numbers has a norm."""
    kind = torch.complex128 if vector.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(vector, dtype=kind))


def _largest(dtype: torch.dtype) -> float:
    """Return the largest norm that other sites can compute with."""
    top = torch.finfo(dtype).max
    return top / 16 if dtype == torch.float16 else 1e-3 * math.sqrt(top)


def _refuse_above(name: str, size: float, limit: float, what: str) -> None:
    if size > limit:
        raise Rejected(f"sent a {name} of norm {size:.3g}, above {what} = {limit:g}")


def _change(now: Tensor, before: Tensor) -> float:
    """Return the norm of a change; what was infinite and is not the same counts from zero."""
    wide = torch.complex128 if now.is_complex() else torch.float64
    start = torch.where(torch.isfinite(before), before, 0).to(wide)
    same = (now == before) | (torch.isnan(now) & torch.isnan(before))
    return norm_of(torch.where(same, 0, now.to(wide) - start))
