"""What one client does when it is asked: probe, or take I local steps (Algorithm 1, lines 3-12).

Written for vectors `[..., d]`: a replica that holds many clients or runs at once (see
`engines/batched.py`) goes through the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.core.vectors import Scalar, Vector, add_, copy_, cut, maximum, norm
from episode.federation.protocols import Draw, Objective, Phase, Reply
from episode.federation.state import Buffers, ClientState


@dataclass(frozen=True)
class ReplyForm:
    """What a reply holds, for an engine that must know before anybody has replied."""

    vectors: tuple[str, ...]
    has_buffers: bool
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, algorithm: Algorithm, phase: Phase, memorise: bool = False) -> ReplyForm:
        """The form of `Worker.probe`'s or `Worker.local`'s reply."""
        if phase == "probe":
            is_only_phase = not (memorise or algorithm.correction.steps_locally)
            return cls(("gradient",), is_only_phase, ("loss",))
        change = ("change",) if algorithm.correction.remembers else ()
        return cls(("x", *change), True, ("loss", "clipped", "largest_norm", "drift"))


class Worker:
    """An objective and the scratch vectors to step on it; serves one client after another."""

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
    ) -> Reply:
        """∇F_i(x̄_r; ξ~), averaged over `probe_batches` fresh batches (lines 3 to 5).

        The client keeps it: as its anchor for the round's local steps, or, with `memorise`, as its
        first memory. The pass leaves the model's buffers as they were, except where the gradient
        is the round's only one (Synchronous).
        """
        self._load(x, buffers)
        count = self.algorithm.probe_batches
        gradient = torch.empty_like(self.objective.x)
        losses: list[Tensor] = []
        for k in range(count):
            loss, blocks = self.objective.gradient(Draw(client, "probe", round * count + k))
            self.algorithm.descent.decay_(blocks, self.objective.blocks)
            (add_ if k else copy_)(self._cut(gradient), blocks)
            losses.append(loss)
        if count > 1:
            gradient /= count
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
    ) -> Reply:
        """x_{t_{r+1}}^i: I steps from x̄_r, each corrected by G_r - G_r^i (lines 7 to 12).

        The reply's x is the work vector itself: read it before this worker serves again.
        """
        self._load(x, buffers)
        shift = self._correction(state, G)
        velocity = self._velocity(state)
        memory = torch.zeros_like(self.objective.x) if self.algorithm.correction.remembers else None
        losses: list[Tensor] = []
        sizes: list[Scalar] = []
        norms: list[Scalar] = []
        for step in range(local_steps):
            if step == 0 and self.algorithm.reuse_probe and state.anchor is not None:
                gradient: Vector = self._cut(state.anchor.clone())
            else:
                draw = Draw(client, "local", round * local_steps + step)
                loss, gradient = self.objective.gradient(draw)
                self.algorithm.descent.decay_(gradient, self.objective.blocks)
                losses.append(loss)
            if memory is not None:
                add_(self._cut(memory), gradient)
            size, g_norm = self.algorithm.step(
                self.objective.blocks, gradient, shift, velocity, G_norm, eta, gamma
            )
            sizes.append(size)
            if g_norm is not None:
                norms.append(g_norm)
            del gradient  # so that the next one takes its place, while that is in the cache
        reply = Reply({"x": self.objective.x}, self.objective.buffers())
        if memory is not None:
            reply.vectors["change"] = _memorise(state, memory / local_steps)
        state.anchor = None
        reply.metrics = {
            "loss": _mean(losses) if losses else None,
            "clipped": sum(1.0 * (size != eta) for size in sizes) / local_steps,
            "largest_norm": reduce(maximum, norms) if norms else None,
            "drift": norm(torch.sub(self.objective.x, x, out=self._shift)),
        }
        return reply

    def _load(self, x: Tensor, buffers: Buffers) -> None:
        self.objective.x.copy_(x)
        self.objective.load_buffers(buffers)

    def _correction(self, state: ClientState, G: Tensor | None) -> Vector | None:
        """G_r - G_r^i, or None for zero."""
        if G is None:
            return None
        local = state.memory if self.algorithm.correction.remembers else state.anchor
        if local is None:
            self._shift.copy_(G)
        else:
            torch.sub(G, local, out=self._shift)
        return self._shift_blocks

    def _velocity(self, state: ClientState) -> Vector | None:
        if not self.algorithm.descent.has_velocity:
            return None
        if state.velocity is None:
            state.velocity = torch.zeros_like(self.objective.x)
        return self._cut(state.velocity)

    def _cut(self, vector: Tensor) -> Vector:
        return cut(vector, self.objective.blocks)


def _memorise(state: ClientState, memory: Tensor) -> Tensor:
    """Stores the new memory; returns how it changed.

    The memory is the mean raw gradient itself. The popular (x̄ - x_i)/(ηI) equals it only without
    clipping, decay and momentum.
    """
    change = memory if state.memory is None else memory - state.memory
    state.memory = memory
    return change


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(dim=0)
