"""All clients, and many runs, as one tensor program, for tasks in closed form.

The worker is the same as everywhere; only the vectors have more dimensions, `[..., clients, d]`. So
a whole table of settings and seeds costs as much as one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.protocols import Engine, Objective, Phase, Reply
from episode.federation.state import ClientState
from episode.federation.worker import Worker


class Batched(Engine):
    """Engine for an objective whose x is `[..., clients, d]`; all clients take part."""

    def __init__(self, objective: Objective, algorithm: Algorithm) -> None:
        if algorithm.weighting != "uniform":
            raise EpisodeError("The batched engine offers uniform weighting only: use simulation.")
        if algorithm.descent.adapts:
            raise EpisodeError("The batched engine has no AdamW: use simulation.")
        super().__init__()
        self._worker = Worker(objective, algorithm)
        self._state = ClientState()

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the mean over the dimension of the clients."""
        if len(cohort) != self._worker.objective.x.shape[-2]:
            raise EpisodeError("The batched engine needs every client each round: use simulation.")
        for name in ("x", "G", "G_norm", "eta", "gamma"):
            if isinstance(broadcast.get(name), Tensor):
                broadcast[name] = broadcast[name].unsqueeze(-2)
        serve = self._worker.probe if phase == "probe" else self._worker.local
        reply = serve(0, self._state, **broadcast)
        reply.vectors = {name: vector.mean(dim=-2) for name, vector in reply.vectors.items()}
        reply.metrics = {name: [value] for name, value in reply.metrics.items()}
        return reply

    def client_states(self) -> dict[int, ClientState]:
        return {0: self._state}

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        self._state = states[0]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
