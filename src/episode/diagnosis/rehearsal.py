"""Short runs from where the model stands: what an η, a clipping, a correction and an I then do.

Smoothness measured along a path says which steps are safe on that path. But a run with another η
goes another way (a large one is thrown out of sharp places, or off altogether), and local steps
drift over rounds, not over one. So the settings are tried, on batches that no run sees, for equally
many iterations each; what is compared is how far f came down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.diagnosis.measure import Ruler
from episode.engines.simulation import Simulation
from episode.federation.protocols import Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ServerState

FIRST_LOCAL_STEPS = 4
"""At which I step sizes are tried."""
DOUBLINGS = 6
"""A step size is sought up to so many doublings (or halvings) from the first."""
FAR = 1_000_000
"""The first round's number: batches are drawn by it, and a run's own rounds are not so many."""
LOOKS = (0.5, 0.75, 0.875, 1.0)
"""After which shares of its rounds f is measured."""
NEGLIGIBLE = 1e-6
"""A share of the way down that float32 hardly tells apart: both have arrived."""
PLAIN, CLIPPED = "episode_unclipped", "episode_guarded"
UNCORRECTED = {PLAIN: "fedavg", CLIPPED: "celgc"}
REMEMBERED = {PLAIN: "scaffold", CLIPPED: "scaffold_clipped"}


@dataclass(frozen=True)
class Trial:
    """One short run: its settings, and f on its way (infinite where it blew up)."""

    algorithm: str
    eta: float
    threshold: float
    """γ/η, which algorithms that do not clip ignore."""
    local_steps: int
    before: float
    half: float
    """f after half of the iterations."""
    worst: float
    """The largest f in the last quarter."""
    after: float
    """The mean f in the last quarter: near the edge of stability a single round may be lucky."""

    @property
    def descends(self) -> bool:
        """Whether f ended lower than it began."""
        return self.after < self.before

    def equals(self, other: Trial) -> bool:
        """Whether it ends no higher than the other was at some time in its last quarter.

        So it may lag by about an eighth of the iterations, or be as high as the other's noise.
        """
        nothing = NEGLIGIBLE * max(other.before - other.after, 0.0)
        return self.descends and self.after <= other.worst + nothing

    def keeps_up(self, other: Trial) -> bool:
        """Whether it ends as low as the other was half-way: twice the time is enough for it."""
        return self.equals(other) or (self.descends and self.after <= other.half)

    def saves_rounds(self, fewer: Trial) -> bool:
        """Whether it ends as low as `fewer`, with half its local steps, was after half of its run.

        Else doubling I took as many rounds to get there, and twice the iterations, for nothing.
        """
        return self.descends and self.after <= fewer.half

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Rehearsal:
    """All that was tried, and what it came to."""

    iterations: int
    trials: tuple[Trial, ...]
    plain: Trial
    """Plain, corrected steps, at the η chosen for them."""
    clipped: Trial
    """The same with clipping, at the η chosen for those."""
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
        """Whether clipped steps, at some η, are more than twice as fast as plain ones at any."""
        return not _does_without_clipping(self.plain, self.trials)

    @property
    def edge(self) -> tuple[Trial, Trial] | None:
        """Plain and clipped steps at the smallest η tried where plain ones fall off, clipped less.

        From there on clipping is needed, whatever it is at the η chosen.
        """
        first = [t for t in self.trials if t.local_steps == self.plain.local_steps]
        ends = {(t.algorithm, t.eta): t for t in first}
        for eta in sorted({t.eta for t in first if t.eta > self.plain.eta}):
            plain, clipped = ends.get((PLAIN, eta)), ends.get((CLIPPED, eta))
            if not (plain and clipped and clipped.descends) or plain.equals(self.plain):
                continue
            if not plain.equals(clipped):
                return plain, clipped
        return None

    @property
    def correction(self) -> bool:
        """Whether corrected steps come further than uncorrected ones."""
        return self.chosen.descends and not self.uncorrected.equals(self.chosen)

    @property
    def freshness(self) -> bool:
        """Whether corrections must be fresh: SCAFFOLD's come less far."""
        return not self.remembered.equals(self.chosen)

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
            half, *last = self._looks(algorithm, eta, local_steps)
            mean = sum(last) / len(last)
            self.played[key] = Trial(
                algorithm, eta, self._threshold, local_steps, self.before, half, max(last), mean
            )
        return self.played[key]

    def best_eta(self, algorithm: str, first: float, local_steps: int) -> Trial:
        """Doubles η from the first while f ends lower, or halves it, where doubling was worse.

        Of those that equal the best, the smallest η: the best is often the last before the edge,
        where a longer run, or another client's data, falls off.
        """
        found = [self.play(algorithm, first, local_steps)]
        for factor in (2.0, 0.5):
            best = found[0]
            for k in range(1, DOUBLINGS + 1):
                found.append(self.play(algorithm, first * factor**k, local_steps))
                if found[-1].after < best.after:
                    best = found[-1]
                elif factor > 1 or best.descends:
                    break
            if best.eta > first:
                break
        lowest = min(found, key=lambda t: t.after)
        return min([t for t in found if t.equals(lowest)] or found, key=lambda t: t.eta)

    def most_local_steps(self, first: Trial, most: int) -> tuple[Trial, Trial | None]:
        """Doubles I while that saves rounds; or halves it, where it did not even at first.

        Returns the trial with that I, and the one with twice as many, if there was one.
        """
        found, beyond = first, None
        while 2 * found.local_steps <= min(most, self.iterations // 2):
            beyond = self._again(found, 2 * found.local_steps)
            if not beyond.saves_rounds(found):
                break
            found, beyond = beyond, None
        while 1 < found.local_steps <= first.local_steps:
            fewer = self._again(found, found.local_steps // 2)
            if found.saves_rounds(fewer):
                break
            found, beyond = fewer, found
        return found, beyond

    def _again(self, trial: Trial, local_steps: int) -> Trial:
        return self.play(trial.algorithm, trial.eta, local_steps)

    def _looks(self, name: str, eta: float, local_steps: int) -> list[float]:
        """f after the shares of the rounds that LOOKS says."""
        algorithm = ALGORITHMS[name]
        rounds = max(self.iterations // local_steps, 1)
        schedule = Schedule(eta, max(self._threshold * eta, 1e-300))
        x, buffers = self._start
        server = ServerState(x.clone(), buffers, round=FAR)
        due = [max(math.ceil(share * rounds), 1) for share in LOOKS]
        values: dict[int, float] = {}
        engine = Simulation(self._task, algorithm)
        try:
            game = Rounds(Plan(algorithm, schedule, rounds, local_steps), self._task, engine)
            for played in range(1, rounds + 1):
                game.play(server)
                if played in due:
                    values[played] = self._value(server.x, server.buffers)
        finally:
            engine.close()
        return [values[played] for played in due]

    def _value(self, x: Tensor, buffers: Buffers) -> float:
        self._ruler.move(x, buffers)
        value = self._ruler.mean_gradient()[0]
        return value if math.isfinite(value) else math.inf


def _does_without_clipping(plain: Trial, trials: Sequence[Trial]) -> bool:
    """Whether these plain steps keep up with clipped ones, whatever the η of those."""
    rivals = (t for t in trials if (t.algorithm, t.local_steps) == (CLIPPED, plain.local_steps))
    return all(plain.keeps_up(t) for t in rivals if t.descends)


def rehearse(stage: Stage, eta: float, most: int) -> Rehearsal:
    """Looks for η with and without clipping, then for I, then leaves the corrections out."""
    first = min(FIRST_LOCAL_STEPS, most, stage.iterations)
    plain = stage.best_eta(PLAIN, eta, first)
    clipped = stage.best_eta(CLIPPED, eta, first)
    there = stage.play(PLAIN, clipped.eta, first)
    tried = tuple(stage.played.values())
    enough = [t for t in tried if t.algorithm == PLAIN and _does_without_clipping(t, tried)]
    if plain not in enough:
        plain = min(enough, key=lambda t: t.eta, default=plain)
    chosen, beyond = stage.most_local_steps(plain if enough else clipped, most)
    uncorrected = stage.play(UNCORRECTED[chosen.algorithm], chosen.eta, chosen.local_steps)
    remembered = stage.play(REMEMBERED[chosen.algorithm], chosen.eta, chosen.local_steps)
    return Rehearsal(
        stage.iterations, tuple(stage.played.values()), plain, clipped, there, chosen, beyond,
        uncorrected, remembered,
    )  # fmt: skip
