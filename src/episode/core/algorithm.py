"""An algorithm is a declaration of its pieces: correction, trust, clipping, descent, server step.

All algorithms take the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from episode.core.adamw import AdamW
from episode.core.clipping import Clipping, Episodic, Guarded, PerStep, Unclipped
from episode.core.combination import check_combination
from episode.core.correction import (
    Correction,
    Remembered,
    Resampled,
    Synchronous,
    Uncorrected,
)
from episode.core.descent import Descent
from episode.core.fed_opt import ServerAdagrad, ServerAdam, ServerYogi
from episode.core.server_step import ServerMean, ServerSGD, ServerStep
from episode.core.trust import FullTrust, MeasuredTrust, Trust
from episode.core.values import changed, described, pieces_and_options
from episode.core.vectors import Scalar, Vector, norm
from episode.errors import EpisodeError
from episode.pieces import GROUP
from episode.registry import Registry


@dataclass(frozen=True)
class Algorithm:
    """A cell of the grid, correction x clipping, with its options.

    It is frozen and hashable, and `from_dict` builds it again from its JSON values anywhere.

    Args:
        correction: Where the anchor (G_r^i, G_r) comes from.
        clipping: How long a step is.
        descent: How a gradient becomes a direction; plain gradient descent by default.
        trust: How much of the correction is believed; all of it by default, as in the paper.
        server: What is done with the mean of the clients' models; by default it is the next x̄.
        probe_batches: How many batches a probe averages: a number, or `"local_steps"` for I. More
            of them make the anchor less noisy, for as many gradients. A synchronous algorithm with
            I batches takes one step a round, and so R steps in all.
        probe_first: Whether remembered gradients start from a probe at x_0 instead of zero. Where
            the clipping decides by G_r, they always do.
        reuse_probe: Whether the first local step uses the probe's batch again, where g = G_r
            exactly: I gradients a round instead of I + 1.
        weighting: How means over clients are weighted: `"uniform"`, as in the paper, or by the
            number of `"examples"`, for G and x alike.

    Raises:
        EpisodeError: A piece is not sound, or the combination has no meaning.

    Example:
        >>> Algorithm(Resampled(), Episodic()) == ALGORITHMS["episode"]
        True
        >>> Algorithm(Resampled(), Episodic(), Descent(momentum=0.9)).to_dict()["momentum"]
        0.9
    """

    correction: Correction
    clipping: Clipping
    descent: Descent = field(default_factory=Descent)
    trust: Trust = field(default_factory=FullTrust)
    server: ServerStep = field(default_factory=ServerMean)
    probe_batches: int | str = 1
    probe_first: bool = False
    reuse_probe: bool = False
    weighting: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        check_combination(self)

    def step(
        self,
        x: Vector,
        gradient: Vector,
        shift: Vector | None,
        velocity: Any,
        G_norm: Scalar,
        eta: Scalar,
        gamma: Scalar,
        trust: Scalar = 1.0,
    ) -> tuple[Scalar, Scalar | None]:
        """Take one step on x, in place (Algorithm 1, lines 9 and 10).

        Args:
            x: The point; it is changed in place.
            gradient: ∇F_i(x; ξ); it is overwritten.
            shift: G_r - G_r^i, or None for zero.
            velocity: What the descent keeps, updated in place: a vector, `Moments`, or None.
            G_norm: ‖G_r‖, or NaN.
            eta: η_r.
            gamma: γ_r.
            trust: λ, how much of the correction is believed; 1 in the paper.

        Returns:
            The step size and ‖g‖; None for the norm if the clipping has no use for it, since
            computing it would cost as much as the step.
        """
        g = self.descent.direction(gradient, shift, velocity, trust)  # line 9
        g_norm = norm(g) if self.clipping.asks_for_norm(G_norm, eta, gamma) else None
        size = self.clipping.step_size(math.nan if g_norm is None else g_norm, G_norm, eta, gamma)
        self.descent.move_(x, size, g, eta, velocity)  # line 10
        return size, g_norm

    def threshold(self, eta: Scalar, gamma: Scalar) -> Scalar:
        """Return γ/η, above which a gradient is clipped to a step of length γ.

        It is infinite if γ is not the length of a step: without clipping, and with AdamW.
        """
        bounded = not (isinstance(self.clipping, Unclipped) or self.descent.adapts)
        return gamma / eta if bounded else math.inf

    def batches_of_probe(self, local_steps: int) -> int:
        """Return how many batches a probe averages, if a round has I local steps."""
        return local_steps if isinstance(self.probe_batches, str) else self.probe_batches

    @property
    def summary(self) -> str:
        """The names of its pieces, for `episode list`."""
        trust = "" if self.trust == FullTrust() else f", trust {self.trust.name}"
        descent = "" if type(self.descent) is Descent else f", {self.descent.name}"
        server = "" if self.server == ServerMean() else f", server {self.server.name}"
        return f"[{self.correction.name} x {self.clipping.name}{trust}{descent}{server}]"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which `from_dict` builds an equal algorithm.

        A piece without fields is its name, any other a table of its name and its fields. The
        fields of the built-in descent stand among the options. A server step that is the mean is
        left out, so that a run has the identity that it had before there were others.

        Returns:
            The correction, the clipping and all options, defaults included.

        Example:
            >>> values = Algorithm.named("episode", momentum=0.9).to_dict()
            >>> values["correction"], values["clipping"], values["momentum"]
            ('resampled', 'episodic', 0.9)
        """
        return described(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algorithm:
        """Build the algorithm of `to_dict`; what is left out takes its default.

        Args:
            values: `correction` and `clipping` (or the `name` of an algorithm), each a name or a
                table of a name and fields, and any options.

        Returns:
            The algorithm.

        Raises:
            EpisodeError: There is no such piece or option, or a value is wrong.

        Example:
            >>> cell = {"correction": "resampled", "clipping": "guarded", "reuse_probe": True}
            >>> Algorithm.from_dict(cell).clipping
            Guarded()
        """
        if "name" in values:
            return cls.named(**values)
        return cls(**pieces_and_options(cls, values))

    @classmethod
    def named(cls, name: str | Algorithm, **options: Any) -> Algorithm:
        """Find an algorithm by its name, and change some of its options.

        Args:
            name: One of `ALGORITHMS`, an entry point in the group `episode.algorithms`,
                `my_file.py:MINE` or `my_package.module:MINE`; or an algorithm itself.
            **options: Values as in `to_dict`.

        Returns:
            The algorithm.

        Raises:
            EpisodeError: There is no such algorithm or option, or a value is wrong.

        Example:
            >>> Algorithm.named("episode", momentum=0.9).descent.momentum
            0.9
            >>> Algorithm.named("fedadam", server={"rate": 0.03}).server.rate
            0.03
        """
        found = ALGORITHMS.find(name) if isinstance(name, str) else name
        if not isinstance(found, Algorithm):
            raise EpisodeError(
                f"algorithm is {name!r}: give a name, such as 'episode', or an "
                "Algorithm(correction, clipping)."
            )
        return cls.from_dict(changed(found.to_dict(), options)) if options else found


_BUILT_IN = {
    "fedavg": Algorithm(Uncorrected(), Unclipped()),
    "celgc": Algorithm(Uncorrected(), PerStep()),
    "scaffold": Algorithm(Remembered(), Unclipped()),
    "scaffold_clipped": Algorithm(Remembered(), PerStep()),
    "naive_parallel_clip": Algorithm(Synchronous(), PerStep()),
    "episode": Algorithm(Resampled(), Episodic()),
    "episode_unclipped": Algorithm(Resampled(), Unclipped()),
    "episode_guarded": Algorithm(Resampled(), Guarded()),
    "episode_plus_plus": Algorithm(Remembered(), Episodic()),
    "episode_trust": Algorithm(Resampled(), PerStep(), trust=MeasuredTrust()),
    "parallel_sgd": Algorithm(Synchronous(), Unclipped()),
    "fedavgm": Algorithm(Uncorrected(), Unclipped(), server=ServerSGD(momentum=0.9)),
    "fedadam": Algorithm(Uncorrected(), Unclipped(), server=ServerAdam()),
    "fedyogi": Algorithm(Uncorrected(), Unclipped(), server=ServerYogi()),
    "fedadagrad": Algorithm(Uncorrected(), Unclipped(), server=ServerAdagrad()),
    "fedprox": Algorithm(Uncorrected(), Unclipped(), Descent(proximal=0.1)),
    "minibatch_clip": Algorithm(Synchronous(), PerStep(), probe_batches="local_steps"),
    "diloco": Algorithm(
        Uncorrected(),
        Unclipped(),
        AdamW(weight_decay=0.1),
        server=ServerSGD(rate=0.7, momentum=0.9, nesterov=True),
    ),
    "episode_nesterov": Algorithm(
        Resampled(), Guarded(), server=ServerSGD(rate=0.7, momentum=0.9, nesterov=True)
    ),
}
ALGORITHMS: Registry[Algorithm] = Registry("algorithm", GROUP, _BUILT_IN)
"""The built-in algorithms by name, as a read-only mapping: `ALGORITHMS["episode"]`.

`ALGORITHMS.find(name)` also finds algorithms in files, modules and other packages.

Example:
    >>> ALGORITHMS["fedavg"].correction, ALGORITHMS["fedavg"].clipping
    (Uncorrected(), Unclipped())
"""
