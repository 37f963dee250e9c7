"""What short runs decide: clipping, corrections, an algorithm, and how firm each answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

NEGLIGIBLE = 1e-6
"""Share of the total decrease that float32 can hardly resolve: smaller differences are ignored."""
LITTLE = 0.1
"""Share of f: short runs in which it falls by less, and then no more, tell little."""
PLAIN, CLIPPED = "episode_unclipped", "episode_guarded"
UNCORRECTED = {PLAIN: "fedavg", CLIPPED: "celgc"}
REMEMBERED = {PLAIN: "scaffold", CLIPPED: "scaffold_clipped"}
TRUSTED = "episode_trust"


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
class Votes:
    """The answer to a question in each of several repeats with other batches."""

    votes: tuple[bool, ...]

    @property
    def answer(self) -> bool:
        """What most repeats say."""
        return 2 * sum(self.votes) > len(self.votes)

    @property
    def agreeing(self) -> int:
        """How many repeats give that answer."""
        return sum(vote == self.answer for vote in self.votes)


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
    uncorrected: ShortRun
    """The chosen settings without corrections."""
    remembered: ShortRun
    """The chosen settings with SCAFFOLD's corrections: one exchange per round instead of two."""
    trusted: ShortRun
    """Measured trust, with clipping, at the chosen I and the η that suits it."""
    recommended: ShortRun
    """The algorithm to use, and its settings."""
    beyond: ShortRun | None
    """The corrected steps that were recommended, with twice the local steps, if that was tried."""
    clipping: Votes
    """Whether clipped steps at some η are more than twice as fast as plain ones at any η."""
    correction: Votes
    """Whether f gets lower with corrections than without."""
    fresh_correction: Votes
    """Whether f gets lower with fresh corrections than with SCAFFOLD's."""
    trust: Votes
    """Whether f gets lower with measured trust than with the simplest other algorithm."""

    @property
    def stuck(self) -> bool:
        """Whether f fell by little, and hardly any more, in the run that got lowest.

        Then all settings look alike, such as where the model says the same of every example.
        """
        lowest = min(self.runs, key=lambda r: r.after)
        fell, lately = lowest.before - lowest.after, lowest.half - lowest.after
        return fell < LITTLE * abs(lowest.before) and lately < 0.2 * fell

    @property
    def needs_clipping(self) -> bool:
        """Whether most runs say that clipping is more than twice as fast."""
        return self.clipping.answer

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
        """Whether most runs say that f gets lower with corrections."""
        return self.correction.answer

    @property
    def needs_fresh_correction(self) -> bool:
        """Whether most runs say that f gets lower with fresh corrections than with SCAFFOLD's."""
        return self.fresh_correction.answer

    @property
    def needs_trust(self) -> bool:
        """Whether most runs say that f gets lower with measured trust."""
        return self.trust.answer

    @property
    def simplest(self) -> ShortRun:
        """The simplest algorithm that did as well as any other without measured trust."""
        if not self.needs_correction:
            return self.uncorrected
        return self.chosen if self.needs_fresh_correction else self.remembered

    @property
    def recommends_clipping(self) -> bool:
        """Whether the recommended algorithm clips."""
        return self.needs_clipping or self.needs_trust

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        values["trials"] = values.pop("runs")
        del values["beyond"]
        return values


def matching(runs: Sequence[ShortRun], **settings: object) -> list[ShortRun]:
    """Return the runs with these settings, such as `algorithm=PLAIN, local_steps=4`."""
    return [r for r in runs if settings.items() <= vars(r).items()]


def pays_off(corrected: ShortRun, uncorrected: ShortRun) -> bool:
    """Whether f gets lower with these corrections than without them, or with others."""
    return corrected.descends and not uncorrected.equals(corrected)


def keeps_up_with_clipping(plain: ShortRun, runs: Sequence[ShortRun]) -> bool:
    """Whether this plain run keeps up with clipped ones at every η that was tried."""
    rivals = matching(runs, algorithm=CLIPPED, local_steps=plain.local_steps)
    return all(plain.keeps_up(r) for r in rivals if r.descends)
