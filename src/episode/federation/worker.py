"""What a client does in a phase: probe, or take I local steps (Algorithm 1, lines 3 to 12).

The code works on vectors `[..., d]`, so that one replica can stand for many clients or runs at once
(see `engines/batched.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from episode.core.adamw import AdamW, Moments
from episode.core.algorithm import Algorithm
from episode.core.vectors import Scalar, Vector, add_, copy_, cut, dot, maximum, minimum, norm
from episode.federation.corrections import new_memory, write_shift
from episode.federation.protocols import Draw, Objective, Phase, Reply
from episode.federation.state import Buffers, ClientState

LOCAL_METRICS = ("loss", "clipped", "largest_norm", "drift")
"""What a client measures in its local steps; a value is None if it was not measured."""
TRUST_METRICS = ("trust", "least_trust")
"""What it also measures if its algorithm measures trust: the mean of λ over its steps, and the
smallest."""
REPEAT = 2**40
"""Batches between two repeats of a round: more than any run draws."""
CORRECTION_METRICS = ("correction_norm", "gradient_norm")
"""What it also measures if it is asked to."""


@dataclass(frozen=True)
class ReplyForm:
    """Names of what a reply holds, for engines that must know them in advance."""

    vectors: tuple[str, ...]
    has_buffers: bool
    metrics: tuple[str, ...]

    @classmethod
    def of(
        cls, algorithm: Algorithm, phase: Phase, memorise: bool = False, measure_every: int = 0
    ) -> ReplyForm:
        """Return the form of the reply of `Worker.probe` or `Worker.local`."""
        if phase == "probe":
            is_only_phase = not (memorise or algorithm.correction.steps_locally)
            return cls(("gradient",), is_only_phase, ("loss",))
        change = ("change",) if algorithm.correction.remembers else ()
        trust = TRUST_METRICS if algorithm.trust.measures else ()
        corrections = CORRECTION_METRICS if measure_every else ()
        return cls(("x", *change), True, (*LOCAL_METRICS, *trust, *corrections))


class Worker:
    """An objective and scratch vectors to step on it; it serves one client after another."""

    def __init__(self, objective: Objective, algorithm: Algorithm) -> None:
        self.objective = objective
        self.algorithm = algorithm
        self._shift = torch.empty_like(objective.x)
        self._shift_blocks = self._cut(self._shift)

    def probe(
        self,
        client: int,
        state: ClientState,
        *,
        round: int,
        x: Tensor,
        buffers: Buffers,
        memorise: bool = False,
        batches: int = 1,
        repeat: int = 0,
    ) -> Reply:
        """Return ∇F_i(x̄_r; ξ~), averaged over so many fresh batches (lines 3 to 5).

        The client keeps it as its anchor for the round's local steps or, with `memorise`, as its
        first memory. The pass leaves the model's buffers unchanged, unless this gradient is the
        round's only one (Synchronous). Each `repeat` has other batches.
        """
        self._load(x, buffers)
        gradient = torch.empty_like(self.objective.x)
        losses: list[Tensor] = []
        for k in range(batches):
            draw = Draw(client, "probe", round * batches + k + repeat * REPEAT)
            loss, blocks = self.objective.gradient(draw)
            self.algorithm.descent.decay_(blocks, self.objective.blocks)
            (add_ if k else copy_)(self._cut(gradient), blocks)
            losses.append(loss)
        if batches > 1:
            gradient /= batches
        reply = Reply({"gradient": gradient}, metrics={"loss": _mean(losses)})
        if memorise:
            state.memory = gradient
        elif self.algorithm.correction.steps_locally:
            state.anchor = gradient
        else:
            reply.buffers = self.objective.buffers()
        return reply

    def local(
        self,
        client: int,
        state: ClientState,
        *,
        round: int,
        x: Tensor,
        buffers: Buffers,
        G: Tensor | None,
        G_norm: Scalar,
        eta: Scalar,
        gamma: Scalar,
        local_steps: int,
        measure_every: int = 0,
        repeat: int = 0,
    ) -> Reply:
        """Take I steps from x̄_r, each corrected by G_r - G_r^i (lines 7 to 12).

        The reply's x is the work vector itself: read it before this worker serves again.
        With `measure_every` k, one in k clients reports the norms of its first step's correction
        and raw gradient. Each `repeat` has other batches.
        """
        self._load(x, buffers)
        shift = self._correction(state, G)
        deviation = self._deviation(shift)
        threshold = self.algorithm.threshold(eta, gamma)
        ageing = self.algorithm.trust.ageing(G_norm, threshold, deviation)
        velocity = self._velocity(state)
        start = self._cut(x) if self.algorithm.descent.proximal else None
        remembers = self.algorithm.correction.remembers
        gradients = torch.zeros_like(self.objective.x) if remembers else None
        gradient_sum = None if gradients is None else self._cut(gradients)
        seen = _Measured()
        measures = measure_every > 0 and (round + client) % measure_every == 0
        for step in range(local_steps):
            trust: Scalar = 1.0  # with the probe's own batch, g = G_r exactly
            if step == 0 and self.algorithm.reuse_probe and state.anchor is not None:
                gradient: Vector = self._cut(state.anchor.clone())
            else:
                draw = Draw(client, "local", round * local_steps + step + repeat * REPEAT)
                loss, gradient = self.objective.gradient(draw)
                self.algorithm.descent.decay_(gradient, self.objective.blocks)
                seen.losses.append(loss)
                trust = self.algorithm.trust.of_step(gradient, shift, deviation, step * ageing)
            if gradient_sum is not None:
                add_(gradient_sum, gradient)
            if measures and step == 0 and shift is not None:
                seen.correction_norm, seen.gradient_norm = norm(shift), norm(gradient)
            if start is not None:
                self.algorithm.descent.pull_(gradient, self.objective.blocks, start)
            size, g_norm = self.algorithm.step(
                self.objective.blocks, gradient, shift, velocity, G_norm, eta, gamma, trust
            )
            seen.sizes.append(size)
            seen.trusts.append(trust)
            if g_norm is not None:
                seen.norms.append(g_norm)
            del gradient  # the next one then takes its place while that is in the cache
        reply = Reply({"x": self.objective.x}, self.objective.buffers())
        if gradients is not None:
            state.memory, reply.vectors["change"] = new_memory(gradients, local_steps, state.memory)
        state.anchor = None
        if isinstance(velocity, Moments) and self.algorithm.descent.kept:
            state.steps = velocity.steps[0].reshape(1).to(torch.int64)
        drift = norm(torch.sub(self.objective.x, x, out=self._shift))
        reply.metrics = seen.metrics(eta, drift)
        if self.algorithm.trust.measures:
            reply.metrics |= seen.trust_metrics()
        if measure_every:
            reply.metrics |= {name: getattr(seen, name) for name in CORRECTION_METRICS}
        return reply

    def _load(self, x: Tensor, buffers: Buffers) -> None:
        self.objective.x.copy_(x)
        self.objective.load_buffers(buffers)

    def _correction(self, state: ClientState, G: Tensor | None) -> Vector | None:
        """Return G_r - G_r^i, or None for zero."""
        if G is None:
            return None
        local = state.memory if self.algorithm.correction.remembers else state.anchor
        write_shift(self._shift, G, local)
        return self._shift_blocks

    def _deviation(self, shift: Vector | None) -> Scalar:
        """Return ‖G_r^i - G_r‖², if trust is measured by it."""
        if shift is None or not self.algorithm.trust.measures:
            return 0.0
        return dot(shift, shift)

    def _velocity(self, state: ClientState) -> Vector | Moments | None:
        """Return what the descent keeps of this client, to be updated in place."""
        descent = self.algorithm.descent
        if isinstance(descent, AdamW):
            return self._moments(state if descent.kept else ClientState())
        if not descent.has_velocity:
            return None
        if state.velocity is None:
            state.velocity = torch.zeros_like(self.objective.x)
        return self._cut(state.velocity)

    def _moments(self, state: ClientState) -> Moments:
        for name in ("velocity", "second"):
            if getattr(state, name) is None:
                setattr(state, name, torch.zeros_like(self.objective.x))
        assert state.velocity is not None
        assert state.second is not None
        steps = 0 if state.steps is None else int(state.steps)
        return Moments.of(self._cut(state.velocity), self._cut(state.second), steps)

    def _cut(self, vector: Tensor) -> Vector:
        return cut(vector, self.objective.blocks)


@dataclass
class _Measured:
    """What was measured in a client's local steps."""

    losses: list[Tensor] = field(default_factory=list)
    sizes: list[Scalar] = field(default_factory=list)
    norms: list[Scalar] = field(default_factory=list)
    trusts: list[Scalar] = field(default_factory=list)
    correction_norm: Scalar | None = None
    gradient_norm: Scalar | None = None

    def metrics(self, eta: Scalar, drift: Scalar) -> dict[str, Any]:
        """Return the values of LOCAL_METRICS."""
        return {
            "loss": _mean(self.losses) if self.losses else None,
            "clipped": sum(1.0 * (size != eta) for size in self.sizes) / len(self.sizes),
            "largest_norm": reduce(maximum, self.norms) if self.norms else None,
            "drift": drift,
        }

    def trust_metrics(self) -> dict[str, Any]:
        """Return the values of TRUST_METRICS."""
        return {
            "trust": sum(self.trusts) / len(self.trusts),
            "least_trust": reduce(minimum, self.trusts),
        }


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(dim=0)
