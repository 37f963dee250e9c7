"""An engine of your own in one file: the simulation, with the time that slow links would take.

    episode run --engine examples/my_engine.py:SlowLinks --set budget.rounds=5

Every round's record in rounds.jsonl then has `link_seconds`, an estimate of the time that its
exchanges would spend on the network. The numbers of the run itself are those of the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from episode import Algorithm, Engine, Task
from episode.engines.simulation import Simulation

LATENCY = 0.05
"""Seconds from the server to a client and back."""
BANDWIDTH = 10e6 / 8
"""Bytes a second of the server's link, which all clients share."""


class SlowLinks(Engine):
    """Clients in this process, and a clock that counts what their messages would take."""

    summary: ClassVar[str] = "the simulation, with the time that slow links would take"

    def __init__(self, task: Task, algorithm: Algorithm) -> None:
        super().__init__()
        self._simulation = Simulation(task, algorithm)
        self._seconds = 0.0

    def average(
        self, phase: Any, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Any:
        reply = self._simulation.average(phase, cohort, weights=weights, **broadcast)
        down = sum(v.nbytes for v in broadcast.values() if isinstance(v, Tensor))
        up = sum(v.nbytes for v in reply.vectors.values())
        self._seconds += LATENCY + len(cohort) * (down + up) / BANDWIDTH
        return reply

    def notes(self) -> dict[str, Any]:
        seconds, self._seconds = self._seconds, 0.0
        return {"link_seconds": seconds}

    def client_states(self) -> Any:
        return self._simulation.client_states()

    def load_client_states(self, states: Mapping[int, Any]) -> None:
        self._simulation.load_client_states(states)

    def close(self) -> None:
        self._simulation.close()
