"""A cheap watch on a run: it warns when training leaves the regime that the theory covers.

It reads only the record of each round.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from episode.arguments import number
from episode.errors import EpisodeError
from episode.federation.job import Job
from episode.runs.records import Record

WINDOW = 20
"""Number of rounds over which "never", "always" and medians are meant."""
REACH = 2 * (1 + 2 / 11)
"""Lemma 1 bounds an unclipped round's drift by 2ηI(2σ + γ/η). The theorem has γ/η ≥ 11σ, so the
bound is at most REACH·γI."""
EVERY = 3
"""One in so many clients measures its correction in a round: two norms are cheap, but not free."""
EXPLODING = 10.0
"""An unclipped round has exploded if it went this many times as far as a clipped one can, γI."""
OVERCORRECTED = 1.5
"""Heterogeneous clients need corrections of about the gradients' size; larger ones are stale or
mostly noise."""


class Monitor:
    """Watches one run and gives each kind of warning once.

    Pass it to `fit(monitor=...)`.

    Args:
        sigma: Standard deviation of the stochastic gradients, if known; it sharpens the bound on
            drift.
        say: Called with each warning; by default it becomes a Python warning.

    Raises:
        EpisodeError: `sigma` is negative or not a number.

    Example:
        >>> warnings_given = []
        >>> monitor = Monitor(say=warnings_given.append)
        >>> monitor.said
        {}
    """

    def __init__(
        self, sigma: float | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        if sigma is not None and not number("sigma", sigma) >= 0:
            raise EpisodeError(f"sigma is {sigma}: it must be 0 or more.")
        self.said: dict[str, str] = {}
        """Warnings given, by kind."""
        self._sigma = sigma
        self._say = say or (lambda text: warnings.warn(text, stacklevel=2))
        self._recent: deque[Record] = deque(maxlen=WINDOW)
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._local_steps = 1
        self._knows_lengths = True
        """Whether γ is the length of clipped steps, as it is not with AdamW."""

    def watch(self, job: Job) -> Job:
        """Return the job with measured corrections; the run is the same, bit for bit."""
        self._local_steps = job.plan.local_steps
        self._knows_lengths = not job.plan.algorithm.descent.adapts
        return replace(job, plan=replace(job.plan, measure_every=EVERY))

    def __call__(self, record: Record) -> None:
        """Examine a round's record."""
        self._recent.append(record)
        self._look_at_threshold(record)
        self._look_at_drift(record)
        self._look_at_corrections(record)

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
        if all(clipped) and self._knows_lengths:
            self._warn(
                "always clipped",
                f"Every round was clipped {where}: γ/η is {record['threshold']:.3g} and ‖G_r‖ at "
                f"least {min(norms):.3g}, so every step has length γ whatever η is; near the end "
                "lower γ, or raise γ/η.",
            )

    def _look_at_drift(self, record: Record) -> None:
        if record["clipped"] is not False or record["drift"] is None or not self._knows_lengths:
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

    def _look_at_corrections(self, record: Record) -> None:
        if "correction_ratio" in record:
            self._ratios.append(record["correction_ratio"])
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
