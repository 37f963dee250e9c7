"""Short test runs from the model's current state, to compare settings before training.

The smoothness measured along one path tells which steps are safe on that path. But a run with
another η takes another path, and local steps drift over many rounds, not one. So step sizes,
clipping, corrections and numbers of local steps are tried in short runs of equally many iterations,
on batches that no real run sees, and compared by how low the loss f gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.diagnosis.decisions import (
    CLIPPED,
    PLAIN,
    REMEMBERED,
    TRUSTED,
    UNCORRECTED,
    ShortRun,
    ShortRuns,
    Votes,
    keeps_up_with_clipping,
    matching,
    pays_off,
)
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
REPEATS = 2
"""How often the runs that decide are played again, with other batches."""
MEASURED_AFTER = (0.5, 0.75, 0.875, 1.0)
"""Shares of a run's rounds after which f is measured."""


def try_settings(runner: ShortRunner, eta: float, most: int) -> ShortRuns:
    """Choose η with and without clipping, then I; then try other corrections and measured trust."""
    first = min(FIRST_LOCAL_STEPS, most, runner.iterations)
    plain = runner.best_eta(PLAIN, eta, first)
    clipped = runner.best_eta(CLIPPED, eta, first)
    plain_there = runner.run(PLAIN, clipped.eta, first)
    tried = tuple(runner.done.values())
    unclipped = matching(tried, algorithm=PLAIN)
    fast_enough = [r for r in unclipped if keeps_up_with_clipping(r, tried)]
    if plain not in fast_enough:
        plain = min(fast_enough, key=lambda r: r.eta, default=plain)
    fastest = min(matching(tried, algorithm=CLIPPED), key=lambda r: r.half)
    clipping = Votes(
        (
            not fast_enough,
            *(
                rival.descends and not slow.keeps_up(rival)
                for slow, rival in runner.repeats(plain, fastest)
            ),
        )
    )
    chosen, beyond = runner.most_local_steps(clipped if clipping.answer else plain, most)
    uncorrected = runner.run(UNCORRECTED[chosen.algorithm], chosen.eta, chosen.local_steps)
    remembered = runner.run(REMEMBERED[chosen.algorithm], chosen.eta, chosen.local_steps)
    kinds: list[tuple[ShortRun, ...]] = [(chosen, uncorrected, remembered)]
    kinds += runner.repeats(chosen, uncorrected, remembered)
    found = ShortRuns(
        runner.iterations, tuple(runner.done.values()),
        plain, clipped, plain_there, chosen, uncorrected, remembered,
        trusted=runner.best_eta(TRUSTED, chosen.eta, chosen.local_steps),
        recommended=chosen, beyond=beyond, clipping=clipping,
        correction=Votes(tuple(pays_off(fresh, without) for fresh, without, _ in kinds)),
        fresh_correction=Votes(tuple(pays_off(fresh, stored) for fresh, _, stored in kinds)),
        trust=Votes(()),
    )  # fmt: skip
    return _with_recommendation(runner, found, most)


def _with_recommendation(runner: ShortRunner, found: ShortRuns, most: int) -> ShortRuns:
    """Compare measured trust with the simplest of the others, and name the better one."""
    pairs = [(found.trusted, found.simplest), *runner.repeats(found.trusted, found.simplest)]
    trust = Votes(tuple(pays_off(ours, other) for ours, other in pairs))
    recommended, beyond = found.simplest, found.beyond
    if trust.answer:
        recommended, beyond = runner.most_local_steps(found.trusted, most)
    runs = tuple(runner.done[key] for key in runner.done if key[-1] == 0)
    return replace(found, runs=runs, trust=trust, recommended=recommended, beyond=beyond)


@dataclass
class ShortRunner:
    """Performs short runs from one state, each setting once."""

    task: Task
    measurer: Measurer
    start: State
    threshold: float
    iterations: int
    observe: Callable[[str], None] = lambda _: None
    done: dict[tuple[str, float, int, int], ShortRun] = field(default_factory=dict)

    @cached_property
    def before(self) -> float:
        """f at the start."""
        return self._loss(*self.start)

    def run(self, algorithm: str, eta: float, local_steps: int, repeat: int = 0) -> ShortRun:
        """Return the short run with these settings; each repeat has other batches."""
        key = algorithm, eta, local_steps, repeat
        if key not in self.done:
            setting = f"{algorithm}, η = {eta:.3g}, I = {local_steps}"
            setting += f", repeat {repeat}" if repeat else ""
            self.observe(f"Short run {len(self.done) + 1}: {setting}")
            half, *last = self._losses(*key)
            losses = self.before, half, max(last), sum(last) / len(last)
            self.done[key] = ShortRun(algorithm, eta, self.threshold, local_steps, *losses)
        return self.done[key]

    def repeats(self, *runs: ShortRun) -> list[tuple[ShortRun, ...]]:
        """Return these runs again, several times, with other batches each time."""
        return [
            tuple(self.run(r.algorithm, r.eta, r.local_steps, repeat) for r in runs)
            for repeat in range(1, REPEATS + 1)
        ]

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
            if not self._saves_rounds(beyond, found):
                break
            found, beyond = beyond, None
        while 1 < found.local_steps <= first.local_steps:
            fewer = self.run(found.algorithm, found.eta, found.local_steps // 2)
            if self._saves_rounds(found, fewer):
                break
            found, beyond = fewer, found
        return found, beyond

    def _saves_rounds(self, more: ShortRun, fewer: ShortRun) -> bool:
        """Whether twice the local steps save rounds; most repeats must agree if the first does."""
        if not more.saves_rounds(fewer):
            return False
        repeats = self.repeats(more, fewer)
        return Votes((True, *(a.saves_rounds(b) for a, b in repeats))).answer

    def _losses(self, name: str, eta: float, local_steps: int, repeat: int) -> list[float]:
        """Train, and return f after each share of the rounds in MEASURED_AFTER."""
        algorithm = ALGORITHMS[name]
        rounds = max(self.iterations // local_steps, 1)
        schedule = Schedule(eta, max(self.threshold * eta, 1e-300))
        x, buffers = self.start
        server = ServerState(x.clone(), buffers, round=(1 + repeat) * UNUSED_ROUND)
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
