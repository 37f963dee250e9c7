"""How many local steps a round can have before drift dominates: tried, one round at a time.

From a measured point one round is played for I = 1, 2, 4 …, with corrections and without, and f is
measured where the clients' mean ends up. Where more local steps no longer lower f, clients have
drifted: towards their own minima without corrections, out of the reach of a stale one with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.protocols import Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ServerState
from episode.theory.measure import Ruler


@dataclass(frozen=True)
class Trial:
    """f after one round of I local steps, less f before it; the median over the points tried."""

    local_steps: int
    corrected: float
    uncorrected: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def try_rounds(
    task: Task,
    ruler: Ruler,
    places: Sequence[Tensor],
    buffers: Buffers,
    schedule: Schedule,
    most: int,
    seed: int,
) -> list[Trial]:
    """One round of 1, 2, 4 … `most` local steps from each place, corrected and not."""
    changes: dict[str, list[list[float]]] = {"episode_guarded": [], "celgc": []}
    counts = [2**k for k in range(int(math.log2(most)) + 1)]
    before = [_value(ruler, place, buffers) for place in places]
    for name, rows in changes.items():
        engine = Simulation(task, ALGORITHMS[name], workers=1)
        try:
            for count in counts:
                ends = [
                    _round(task, engine, ALGORITHMS[name], place, buffers, schedule, count, seed)
                    for place in places
                ]
                after = [_value(ruler, end, buffers) for end in ends]
                rows.append([b - a for a, b in zip(before, after, strict=True)])
        finally:
            engine.close()
    medians = {name: np.median(np.array(rows), axis=1) for name, rows in changes.items()}
    return [
        Trial(count, float(medians["episode_guarded"][k]), float(medians["celgc"][k]))
        for k, count in enumerate(counts)
    ]


def most_useful(trials: Sequence[Trial], what: str) -> int:
    """The fewest local steps that come within a twentieth of the deepest descent."""
    deepest = min(getattr(t, what) for t in trials)
    if not deepest < 0:
        return trials[0].local_steps
    return next(t.local_steps for t in trials if getattr(t, what) <= 0.95 * deepest)


def _round(
    task: Task,
    engine: Simulation,
    algorithm: Algorithm,
    place: Tensor,
    buffers: Buffers,
    schedule: Schedule,
    local_steps: int,
    seed: int,
) -> Tensor:
    plan = Plan(algorithm, schedule, 1, local_steps, seed)
    server = ServerState(place.clone(), buffers)
    Rounds(plan, task, engine).play(server)
    return server.x


def _value(ruler: Ruler, x: Tensor, buffers: Buffers) -> float:
    ruler.move(x, buffers)
    value = ruler.mean_gradient()[0]
    return value if math.isfinite(value) else math.inf
