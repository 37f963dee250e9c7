"""Short test runs from the model's current state, to compare settings before training.

The smoothness measured along one path tells which steps are safe on that path. But a run with
another η takes another path, and local steps drift over many rounds, not one. So step sizes,
clipping, corrections and numbers of local steps are tried in short runs of equally many iterations,
on batches that no real run sees, and compared by how low the loss f gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.diagnosis.measure import Measurer, State
from episode.engines.simulation import Simulation
from episode.federation.protocols import Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ServerState

FIRST_LOCAL_STEPS = 4
"""Local steps per round at which step sizes are tried."""
DOUBLINGS = 6
"""Largest number of doublings (or halvings) from the first step size."""
UNUSED_ROUND = 1_000_000
"""Number of the first round: it determines the batches, and real runs are never that long."""
MEASURED_AFTER = (0.5, 0.75, 0.875, 1.0)
"""Shares of a run's rounds after which f is measured."""
NEGLIGIBLE = 1e-6
"""Share of the total decrease that float32 can hardly resolve: smaller differences are ignored."""
PLAIN, CLIPPED = "episode_unclipped", "episode_guarded"
UNCORRECTED = {PLAIN: "fedavg", CLIPPED: "celgc"}
REMEMBERED = {PLAIN: "scaffold", CLIPPED: "scaffold_clipped"}


@dataclass(frozen=True)
class ShortRun:
    """Settings of one short run, and its loss f on the way (infinite if it diverged)."""

    algorithm: str
    eta: float
    threshold: float
    """γ/η, which algorithms that do not clip ignore."""
    local_steps: int
    before: float
    """f at the start."""
    half: float
    """f after half of the iterations."""
    worst: float
    """Largest f in the last quarter."""
    after: float
    """Mean f in the last quarter: near the edge of stability, a single round may be lucky."""

    @property
    def descends(self) -> bool:
        """Whether f ended lower than it began."""
        return self.after < self.before

    def equals(self, other: ShortRun) -> bool:
        """Whether f ends no higher than it was at some time in the last quarter of the other run.

        So this run may lag by about an eighth of the iterations, or by the noise of the other run.
        """
        negligible = NEGLIGIBLE * max(other.before - other.after, 0.0)
        return self.descends and self.after <= other.worst + negligible

    def keeps_up(self, other: ShortRun) -> bool:
        """Whether f ends as low as it was halfway through the other run, so twice the time will do.

        Equal runs keep up with each other.
        """
        return self.equals(other) or (self.descends and self.after <= other.half)

    def saves_rounds(self, fewer: ShortRun) -> bool:
        """Whether f ends as low as halfway through `fewer`, which has half the local steps.

        If it does not, doubling I took as many rounds to get there and twice the iterations.
        """
        return self.descends and self.after <= fewer.half


@dataclass(frozen=True)
class ShortRuns:
    """All short runs, and the settings that they lead to."""

    iterations: int
    runs: tuple[ShortRun, ...]
    plain: ShortRun
    """Corrected steps without clipping, at the η chosen for them."""
    clipped: ShortRun
    """Corrected steps with clipping, at the η chosen for them."""
    plain_there: ShortRun
    """Corrected steps without clipping, at the η chosen for clipped ones."""
    chosen: ShortRun
    """The better of `plain` and `clipped`, with as many local steps as pay off."""
    beyond: ShortRun | None
    """The same with twice the local steps, if that was tried."""
    uncorrected: ShortRun
    """The chosen settings without corrections."""
    remembered: ShortRun
    """The chosen settings with SCAFFOLD's corrections: one exchange per round instead of two."""

    @property
    def needs_clipping(self) -> bool:
        """Whether clipped steps at some η are more than twice as fast as plain ones at any η."""
        return not _keeps_up_with_clipping(self.plain, self.runs)

    @property
    def clipping_edge(self) -> tuple[ShortRun, ShortRun] | None:
        """Plain and clipped runs at the smallest η above the chosen one where only clipping works.

        Clipping is needed from that η on, even if it is not at the chosen η.
        """
        first = matching(self.runs, local_steps=self.plain.local_steps)
        clipped = {r.eta: r for r in first if r.algorithm == CLIPPED and r.descends}
        larger = [r for r in matching(first, algorithm=PLAIN) if r.eta > self.plain.eta]
        for plain in sorted(larger, key=lambda r: r.eta):
            rival = clipped.get(plain.eta)
            if rival and not plain.equals(self.plain) and not plain.equals(rival):
                return plain, rival
        return None

    @property
    def needs_correction(self) -> bool:
        """Whether f gets lower with corrections than without."""
        return self.chosen.descends and not self.uncorrected.equals(self.chosen)

    @property
    def needs_fresh_correction(self) -> bool:
        """Whether f gets lower with fresh corrections than with SCAFFOLD's."""
        return not self.remembered.equals(self.chosen)

    @property
    def algorithm(self) -> str:
        """The simplest algorithm that did as well as any other."""
        steps = CLIPPED if self.needs_clipping else PLAIN
        if not self.needs_correction:
            return UNCORRECTED[steps]
        return steps if self.needs_fresh_correction else REMEMBERED[steps]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        values["trials"] = values.pop("runs")
        del values["beyond"]
        return values


def matching(runs: Sequence[ShortRun], **settings: object) -> list[ShortRun]:
    """Return the runs with these settings, such as `algorithm=PLAIN, local_steps=4`."""
    return [r for r in runs if settings.items() <= vars(r).items()]


def try_settings(runner: ShortRunner, eta: float, most: int) -> ShortRuns:
    """Choose η with and without clipping, then I; then try the choice with other corrections."""
    first = min(FIRST_LOCAL_STEPS, most, runner.iterations)
    plain = runner.best_eta(PLAIN, eta, first)
    clipped = runner.best_eta(CLIPPED, eta, first)
    plain_there = runner.run(PLAIN, clipped.eta, first)
    tried = tuple(runner.done.values())
    unclipped = matching(tried, algorithm=PLAIN)
    fast_enough = [r for r in unclipped if _keeps_up_with_clipping(r, tried)]
    if plain not in fast_enough:
        plain = min(fast_enough, key=lambda r: r.eta, default=plain)
    chosen, beyond = runner.most_local_steps(plain if fast_enough else clipped, most)
    uncorrected = runner.run(UNCORRECTED[chosen.algorithm], chosen.eta, chosen.local_steps)
    remembered = runner.run(REMEMBERED[chosen.algorithm], chosen.eta, chosen.local_steps)
    return ShortRuns(
        runner.iterations, tuple(runner.done.values()), plain, clipped, plain_there, chosen, beyond,
        uncorrected, remembered,
    )  # fmt: skip


@dataclass
class ShortRunner:
    """Performs short runs from one state, each setting once."""

    task: Task
    measurer: Measurer
    start: State
    threshold: float
    iterations: int
    observe: Callable[[str], None] = lambda _: None
    done: dict[tuple[str, float, int], ShortRun] = field(default_factory=dict)

    @cached_property
    def before(self) -> float:
        """f at the start."""
        return self._loss(*self.start)

    def run(self, algorithm: str, eta: float, local_steps: int) -> ShortRun:
        """Return the short run with these settings."""
        key = algorithm, eta, local_steps
        if key not in self.done:
            setting = f"{algorithm}, η = {eta:.3g}, I = {local_steps}"
            self.observe(f"Short run {len(self.done) + 1}: {setting}")
            half, *last = self._losses(*key)
            losses = self.before, half, max(last), sum(last) / len(last)
            self.done[key] = ShortRun(algorithm, eta, self.threshold, local_steps, *losses)
        return self.done[key]

    def best_eta(self, algorithm: str, first: float, local_steps: int) -> ShortRun:
        """Double η from the first while f ends lower, or halve it if doubling was worse.

        Of all runs that equal the best one, the smallest η is chosen: the best is often the last
        before the edge of stability, where a longer run, or other data, would diverge.
        """
        found = [self.run(algorithm, first, local_steps)]
        for factor in (2.0, 0.5):
            best = found[0]
            for k in range(1, DOUBLINGS + 1):
                found.append(self.run(algorithm, first * factor**k, local_steps))
                if found[-1].after < best.after:
                    best = found[-1]
                elif factor > 1 or best.descends:
                    break
            if best.eta > first:
                break
        lowest = min(found, key=lambda r: r.after)
        return min([r for r in found if r.equals(lowest)] or found, key=lambda r: r.eta)

    def most_local_steps(self, first: ShortRun, most: int) -> tuple[ShortRun, ShortRun | None]:
        """Double I while that saves rounds, or halve it if the first I did not save any.

        Returns:
            The run with that I, and the run with twice as many local steps if there was one.
        """
        found, beyond = first, None
        while 2 * found.local_steps <= min(most, self.iterations // 2):
            beyond = self.run(found.algorithm, found.eta, 2 * found.local_steps)
            if not beyond.saves_rounds(found):
                break
            found, beyond = beyond, None
        while 1 < found.local_steps <= first.local_steps:
            fewer = self.run(found.algorithm, found.eta, found.local_steps // 2)
            if found.saves_rounds(fewer):
                break
            found, beyond = fewer, found
        return found, beyond

    def _losses(self, name: str, eta: float, local_steps: int) -> list[float]:
        """Train, and return f after each share of the rounds in MEASURED_AFTER."""
        algorithm = ALGORITHMS[name]
        rounds = max(self.iterations // local_steps, 1)
        schedule = Schedule(eta, max(self.threshold * eta, 1e-300))
        x, buffers = self.start
        server = ServerState(x.clone(), buffers, round=UNUSED_ROUND)
        due = [max(math.ceil(share * rounds), 1) for share in MEASURED_AFTER]
        losses: dict[int, float] = {}
        with closing(Simulation(self.task, algorithm)) as engine:
            player = Rounds(Plan(algorithm, schedule, rounds, local_steps), self.task, engine)
            for played in range(1, rounds + 1):
                player.play(server)
                if played in due:
                    losses[played] = self._loss(server.x, server.buffers)
        return [losses[played] for played in due]

    def _loss(self, x: Tensor, buffers: Buffers) -> float:
        self.measurer.move_to(x, buffers)
        loss = self.measurer.mean_gradient()[0]
        return loss if math.isfinite(loss) else math.inf


def _keeps_up_with_clipping(plain: ShortRun, runs: Sequence[ShortRun]) -> bool:
    """Whether this plain run keeps up with clipped ones at every η that was tried."""
    rivals = matching(runs, algorithm=CLIPPED, local_steps=plain.local_steps)
    return all(plain.keeps_up(r) for r in rivals if r.descends)
