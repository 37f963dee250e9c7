"""Short runs from where the model stands: what an η, a clipping, a correction and an I then do.

Smoothness measured along a path says which steps are safe on that path. But a run with another η
goes another way (a large one is thrown out of sharp places, or off altogether), and local steps
drift over rounds, not over one. So the settings are tried, on batches that no run sees, for equally
many iterations each; what is compared is how far f came down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.protocols import Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ServerState
from episode.theory.measure import Ruler

CLOSE = 0.9
"""Two settings are taken for equally good where one comes down at least so far as a share of the
other; then the simpler is chosen: plain steps, no corrections, fewer rounds."""
FIRST_LOCAL_STEPS = 4
"""At which I step sizes are tried."""
DOUBLINGS = 6
"""A step size is sought up to so many doublings (or halvings) from the first."""
FAR = 1_000_000
"""The first round's number: batches are drawn by it, and a run's own rounds are not so many."""
LAST = 4
"""Of how many rounds at the end f is averaged (of the last quarter at most): near the edge of
stability a single round may be lucky."""
PLAIN, CLIPPED = "episode_unclipped", "episode_guarded"
UNCORRECTED = {PLAIN: "fedavg", CLIPPED: "celgc"}
REMEMBERED = {PLAIN: "scaffold", CLIPPED: "scaffold_clipped"}


@dataclass(frozen=True)
class Trial:
    """One short run: its settings, f before it, and f at its end (infinite where it blew up)."""

    algorithm: str
    eta: float
    threshold: float
    """γ/η, which algorithms that do not clip ignore."""
    local_steps: int
    before: float
    after: float

    @property
    def descent(self) -> float:
        """How far f came down."""
        return self.before - self.after

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"descent": self.descent}


@dataclass(frozen=True)
class Rehearsal:
    """All that was tried, and what it came to."""

    iterations: int
    trials: tuple[Trial, ...]
    plain: Trial
    """The best step size of plain, corrected steps."""
    clipped: Trial
    """The same with clipping."""
    plain_there: Trial
    """Plain steps at the clipped ones' step size."""
    chosen: Trial
    """Of plain and clipped, with as many local steps as it bears."""
    beyond: Trial | None
    """The same with twice the local steps, if that was tried."""
    uncorrected: Trial
    """The chosen settings without corrections."""
    remembered: Trial
    """The chosen settings with SCAFFOLD's corrections, which need one exchange a round, not two."""

    @property
    def clipping(self) -> bool:
        """Whether clipped steps come further than plain ones do at any step size tried."""
        return self.plain.descent < CLOSE * self.clipped.descent

    @property
    def correction(self) -> bool:
        """Whether corrected steps come further than uncorrected ones."""
        return self.uncorrected.descent < CLOSE * self.chosen.descent

    @property
    def freshness(self) -> bool:
        """Whether corrections must be fresh: SCAFFOLD's come less far."""
        return self.remembered.descent < CLOSE * self.chosen.descent

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("plain", "clipped", "plain_there", "chosen", "uncorrected", "remembered")
        return {
            "iterations": self.iterations,
            **{name: getattr(self, name).to_dict() for name in names},
            "trials": [t.to_dict() for t in self.trials],
        }


class Stage:
    """Plays short runs from one state, each once."""

    def __init__(
        self,
        task: Task,
        ruler: Ruler,
        start: tuple[Tensor, Buffers],
        threshold: float,
        iterations: int,
        observe: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._task = task
        self._ruler = ruler
        self._start = start
        self._threshold = threshold
        self._observe = observe
        self.iterations = iterations
        self.before = self._value(*start)
        self.played: dict[tuple[str, float, int], Trial] = {}

    def play(self, algorithm: str, eta: float, local_steps: int) -> Trial:
        """The short run with these settings."""
        key = algorithm, eta, local_steps
        if key not in self.played:
            self._observe(f"short run {len(self.played) + 1}: {algorithm}, η = {eta:.3g}")
            after = self._after(algorithm, eta, local_steps)
            self.played[key] = Trial(
                algorithm, eta, self._threshold, local_steps, self.before, after
            )
        return self.played[key]

    def best_eta(self, algorithm: str, first: float, local_steps: int) -> Trial:
        """Doubles η from the first while f ends lower, or halves it, where doubling was worse.

        Of those that came (nearly) as far as the best, the smallest η: the best is often the last
        before the edge, where a longer run, or another client's data, falls off.
        """
        found = [self.play(algorithm, first, local_steps)]
        for factor in (2.0, 0.5):
            best = found[0]
            for k in range(1, DOUBLINGS + 1):
                found.append(self.play(algorithm, first * factor**k, local_steps))
                if found[-1].after < best.after:
                    best = found[-1]
                elif factor > 1 or best.descent > 0:
                    break
            if best.eta > first:
                break
        return min(_good(found), key=lambda t: t.eta)

    def most_local_steps(self, best: Trial, most: int) -> tuple[Trial, Trial | None]:
        """The largest I = 1, 2, 4 … that comes (nearly) as far as the best I; and twice that."""
        found = [best]
        while 2 * found[-1].local_steps <= min(most, self.iterations):
            found.append(self._again(found[-1], 2 * found[-1].local_steps))
            if found[-1] not in _good(found):
                break
        # Where twice as many were too many, the first may have been too many already.
        while found[0].local_steps > 1 and (len(found) == 1 or found[1] not in _good(found[:2])):
            found.insert(0, self._again(found[0], found[0].local_steps // 2))
        chosen = _good(found)[-1]
        beyond = [t for t in found if t.local_steps > chosen.local_steps]
        return chosen, beyond[0] if beyond else None

    def _again(self, trial: Trial, local_steps: int) -> Trial:
        return self.play(trial.algorithm, trial.eta, local_steps)

    def _after(self, name: str, eta: float, local_steps: int) -> float:
        algorithm = ALGORITHMS[name]
        rounds = max(self.iterations // local_steps, 1)
        gamma = max(self._threshold * eta, 1e-300)
        plan = Plan(algorithm, Schedule(eta, gamma), rounds, local_steps)
        x, buffers = self._start
        server = ServerState(x.clone(), buffers, round=FAR)
        engine = Simulation(self._task, algorithm)
        values = []
        try:
            game = Rounds(plan, self._task, engine)
            for k in range(rounds):
                game.play(server)
                if rounds - k <= max(min(LAST, rounds // 4), 1):
                    values.append(self._value(server.x, server.buffers))
        finally:
            engine.close()
        return sum(values) / len(values)

    def _value(self, x: Tensor, buffers: Buffers) -> float:
        self._ruler.move(x, buffers)
        value = self._ruler.mean_gradient()[0]
        return value if math.isfinite(value) else math.inf


def _good(trials: list[Trial]) -> list[Trial]:
    """Those that came (nearly) as far down as the best; the first, where none came down."""
    deepest = max(t.descent for t in trials)
    return [t for t in trials if 0 < t.descent >= CLOSE * deepest] or trials[:1]


def rehearse(stage: Stage, eta: float, most: int) -> Rehearsal:
    """Looks for η with and without clipping, then for I, then leaves the corrections out."""
    first = min(FIRST_LOCAL_STEPS, most, stage.iterations)
    plain = stage.best_eta(PLAIN, eta, first)
    clipped = stage.best_eta(CLIPPED, eta, first)
    there = stage.play(PLAIN, clipped.eta, first)
    needed = plain.descent < CLOSE * clipped.descent
    chosen, beyond = stage.most_local_steps(clipped if needed else plain, most)
    uncorrected = stage.play(UNCORRECTED[chosen.algorithm], chosen.eta, chosen.local_steps)
    remembered = stage.play(REMEMBERED[chosen.algorithm], chosen.eta, chosen.local_steps)
    return Rehearsal(
        stage.iterations, tuple(stage.played.values()), plain, clipped, there, chosen, beyond,
        uncorrected, remembered,
    )  # fmt: skip
