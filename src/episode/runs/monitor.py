"""A cheap watch on a run: warns, once each, when it leaves the regime that the theory is about.

It reads each round's record, and for corrections looks at a few of the local steps.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from episode.core.algorithm import Algorithm
from episode.core.vectors import Scalar, Vector, norm
from episode.errors import EpisodeError
from episode.runs.records import Record
from episode.runs.trainer import Job

WINDOW = 20
"""Rounds over which "never", "always" and medians are meant."""
REACH = 2 * (1 + 2 / 11)
"""Lemma 1 bounds an unclipped round's drift by 2ηI(2σ + γ/η); the theorem's γ/η is at least 11σ, so
that is at most REACH·γI."""
EVERY = 3
"""Of every so many rounds of a client, the first step of one is looked at: two norms cost little,
but not nothing."""
EXPLODING = 10.0
"""An unclipped round that went this many times as far as a clipped one can, γI, has exploded."""
OVERCORRECTED = 1.5
"""Corrections of about the gradients' size are what heterogeneous clients need; beyond this they
are stale, or made of noise."""


@dataclass(frozen=True)
class _Watched(Algorithm):
    """An algorithm that shows each step's raw gradient and correction before it is taken."""

    look: Callable[[Vector, Vector], None] = field(default=lambda g, s: None, compare=False)

    def step(
        self,
        x: Vector,
        gradient: Vector,
        shift: Vector | None,
        velocity: Vector | None,
        G_norm: Scalar,
        eta: Scalar,
        gamma: Scalar,
    ) -> tuple[Scalar, Scalar | None]:
        """As the algorithm's own, after a look."""
        if shift is not None:
            self.look(gradient, shift)
        return super().step(x, gradient, shift, velocity, G_norm, eta, gamma)


class Monitor:
    """Watches one run; `say` is told each warning, once. By default it becomes a Python warning."""

    def __init__(
        self, sigma: float | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        if sigma is not None and not sigma >= 0:
            raise EpisodeError(f"sigma is {sigma}: it must be 0 or more.")
        self.said: dict[str, str] = {}
        """Warnings given, by kind."""
        self._sigma = sigma
        self._say = say or (lambda text: warnings.warn(text, stacklevel=2))
        self._recent: deque[Record] = deque(maxlen=WINDOW)
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._local_steps = 1
        self._seen = threading.local()
        self._lock = threading.Lock()
        self._sums = [0.0, 0.0]

    def watch(self, job: Job) -> Job:
        """The same job, with its local steps in sight; the run is the same, bit for bit."""
        self._local_steps = job.plan.local_steps
        values = {
            f.name: getattr(job.plan.algorithm, f.name) for f in dataclasses.fields(Algorithm)
        }
        algorithm = _Watched(**values, look=self._look)
        return dataclasses.replace(job, plan=dataclasses.replace(job.plan, algorithm=algorithm))

    def __call__(self, record: Record) -> None:
        """Looks at a round's record."""
        self._recent.append(record)
        self._look_at_threshold(record)
        self._look_at_drift(record)
        self._look_at_corrections()

    def _look(self, gradient: Vector, shift: Vector) -> None:
        count = getattr(self._seen, "steps", 0)
        self._seen.steps = count + 1
        if count % (EVERY * self._local_steps):
            return
        sizes = float(norm(shift)), float(norm(gradient))
        with self._lock:
            self._sums = [a + b for a, b in zip(self._sums, sizes, strict=True)]

    def _look_at_threshold(self, record: Record) -> None:
        if record["clipped"] is None or len(self._recent) < WINDOW:
            return
        clipped = [r["clipped"] for r in self._recent]
        norms = [r["global_norm"] for r in self._recent]
        where = f"in the {WINDOW} rounds up to {record['round']}"
        if not any(clipped):
            self._warn(
                "never clipped",
                f"No round was clipped {where}: γ/η is {record['threshold']:.3g} and ‖G_r‖ at most "
                f"{max(norms):.3g}, so clipping does nothing; lower γ if the loss is unsteady.",
            )
        if all(clipped):
            self._warn(
                "always clipped",
                f"Every round was clipped {where}: γ/η is {record['threshold']:.3g} and ‖G_r‖ at "
                f"least {min(norms):.3g}, so every step has length γ whatever η is; near the end "
                "lower γ, or raise γ/η.",
            )

    def _look_at_drift(self, record: Record) -> None:
        if record["clipped"] is not False or record["drift"] is None:
            return
        eta, gamma, drift = record["eta"], record["gamma"], record["drift"]
        reach = gamma * self._local_steps
        limit = REACH * reach
        if self._sigma is not None:
            limit = 2 * eta * self._local_steps * (2 * self._sigma + gamma / eta)
        if drift > EXPLODING * reach:
            self._warn(
                "exploding local steps",
                f"Round {record['round']} was not clipped, but its local steps went {drift:.3g} "
                f"far, {drift / reach:.3g} times as far as a clipped round can: use "
                "episode_guarded, or lower γ/η.",
            )
        elif drift > limit:
            self._warn(
                "drift beyond Lemma 1",
                f"Clients drifted {drift:.3g} in the unclipped round {record['round']}, beyond "
                f"Lemma 1's bound of {limit:.3g}: η or I is too large for this loss or its noise.",
            )

    def _look_at_corrections(self) -> None:
        with self._lock:
            corrections, gradients = self._sums
            self._sums = [0.0, 0.0]
        if gradients > 0:
            self._ratios.append(corrections / gradients)
        if len(self._ratios) < WINDOW:
            return
        ratio = sorted(self._ratios)[WINDOW // 2]
        if ratio > OVERCORRECTED:
            self._warn(
                "corrections larger than gradients",
                f"Corrections are {ratio:.1f} times as large as the gradients that they correct "
                f"(median of {WINDOW} rounds): they are stale or mostly noise; use fresh ones "
                "(episode), more probe_batches, or fewer local steps.",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self.said:
            self.said[kind] = text
            self._say(text)


def also(first: Callable[[Record], None], second: Callable[[Record], None] | None) -> Any:
    """Both observers, one after the other."""
    if second is None:
        return first

    def observe(record: Record) -> None:
        first(record)
        second(record)

    return observe
