"""An algorithm is a declaration: a correction and a clipping. All of the paper's are one step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from episode.core.clipping import CLIPPINGS, Clipping, Episodic, Guarded, PerStep, Unclipped
from episode.core.correction import (
    CORRECTIONS,
    Correction,
    Remembered,
    Resampled,
    Synchronous,
    Uncorrected,
)
from episode.core.descent import Descent
from episode.core.vectors import Scalar, Vector, descend_, norm
from episode.errors import EpisodeError, unknown


@dataclass(frozen=True)
class Algorithm:
    """A cell of the grid and its options: frozen, hashable, and rebuilt anywhere from its JSON."""

    correction: Correction
    clipping: Clipping
    descent: Descent = field(default_factory=Descent)
    probe_batches: int = 1
    """How many batches a probe averages: a less noisy anchor for as many gradients."""
    reuse_probe: bool = False
    """The first local step re-uses the probe's batch, where g = G_r exactly: I gradients a round
    instead of I + 1."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Means over clients: the paper's uniform one, or by number of examples (for G and x alike)."""

    def __post_init__(self) -> None:
        """Refuses cells and options that have no meaning."""
        row, column = type(self.correction).__name__, type(self.clipping).__name__
        if self.clipping.needs_global and not self.correction.has_global:
            raise EpisodeError(
                f"{column} clipping needs a global gradient, but the correction is {row}: "
                "use Resampled or Remembered, or PerStep clipping."
            )
        if self.reuse_probe and not (self.correction.probes and self.correction.steps_locally):
            raise EpisodeError(
                f"reuse_probe takes the first local step from the probe, but with {row} "
                "correction there is none: use Resampled, or leave reuse_probe off."
            )
        if self.probe_batches < 1:
            raise EpisodeError(f"probe_batches is {self.probe_batches}: it must be 1 or more.")
        if self.probe_batches > 1 and not self.correction.probes:
            raise EpisodeError(
                f"probe_batches is {self.probe_batches}, but {row} correction makes no probe: "
                "use Resampled or Synchronous, or leave it at 1."
            )
        if self.weighting not in ("uniform", "examples"):
            raise unknown("weighting", self.weighting, ("uniform", "examples"))

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
        """One step on x, in place (Algorithm 1, lines 9 and 10); returns its size and ‖g‖.

        `gradient` holds ∇F_i(x; ξ) and is overwritten; `shift` is G_r - G_r^i. The norm is None
        where the clipping has no use for it: it would cost as much as the step.
        """
        g = self.descent.direction(gradient, shift, velocity)  # line 9
        g_norm = norm(g) if self.clipping.asks_for_norm(G_norm, eta, gamma) else None
        size = self.clipping.step_size(math.nan if g_norm is None else g_norm, G_norm, eta, gamma)
        descend_(x, size, g)  # line 10
        return size, g_norm

    def to_dict(self) -> dict[str, Any]:
        """JSON values from which `from_dict` builds an equal algorithm."""
        return {
            "correction": self.correction.name,
            "clipping": self.clipping.name,
            **dataclasses.asdict(self.descent),
            "probe_batches": self.probe_batches,
            "reuse_probe": self.reuse_probe,
            "weighting": self.weighting,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algorithm:
        """The algorithm of `to_dict`; what is left out takes its default."""
        rest = dict(values)
        correction, clipping = rest.pop("correction", None), rest.pop("clipping", None)
        if correction not in CORRECTIONS:
            raise unknown("correction", correction, CORRECTIONS)
        if clipping not in CLIPPINGS:
            raise unknown("clipping", clipping, CLIPPINGS)
        names = {f.name for f in dataclasses.fields(Descent)}
        descent = Descent(**{k: rest.pop(k) for k in names & rest.keys()})
        options = {"probe_batches", "reuse_probe", "weighting"}
        if extra := rest.keys() - options:
            raise unknown("algorithm option", min(extra), names | options)
        return cls(CORRECTIONS[correction](), CLIPPINGS[clipping](), descent, **rest)

    @classmethod
    def of(cls, algorithm: str | Algorithm) -> Algorithm:
        """Return the algorithm itself, or the one of this name.

        Raises:
            EpisodeError: There is no algorithm of this name, or it is neither name nor algorithm.
        """
        if isinstance(algorithm, str):
            return cls.named(algorithm)
        if not isinstance(algorithm, Algorithm):
            raise EpisodeError(
                f"algorithm is a {type(algorithm).__name__}: give a name, such as 'episode', or "
                "an Algorithm(correction, clipping)."
            )
        return algorithm

    @classmethod
    def named(cls, name: str, **options: Any) -> Algorithm:
        """One of the table, with options changed, as in `named("episode", momentum=0.9)`."""
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS)
        return cls.from_dict({**ALGORITHMS[name].to_dict(), **options})


ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": Algorithm(Uncorrected(), Unclipped()),
    "celgc": Algorithm(Uncorrected(), PerStep()),
    "scaffold": Algorithm(Remembered(), Unclipped()),
    "scaffold_clipped": Algorithm(Remembered(), PerStep()),
    "naive_parallel_clip": Algorithm(Synchronous(), PerStep()),
    "episode": Algorithm(Resampled(), Episodic()),
    "episode_unclipped": Algorithm(Resampled(), Unclipped()),
    "episode_guarded": Algorithm(Resampled(), Guarded()),
    "episode_plus_plus": Algorithm(Remembered(), Episodic()),
    "parallel_sgd": Algorithm(Synchronous(), Unclipped()),
}
