"""The direction of a step: correction, momentum and weight decay, in a stated order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from episode.arguments import not_negative, share, switch
from episode.core.vectors import Scalar, Vector, add_, copy_, descend_, difference, scale_
from episode.errors import EpisodeError, unknown
from episode.pieces import Pieces


@dataclass(frozen=True)
class Descent:
    """Gradient descent: plain, or with momentum and weight decay.

    Momentum belongs to each client: it is kept across rounds and never averaged. Derive a frozen
    dataclass from this class to compute the direction in another way.

    Args:
        momentum: μ, at least 0 and below 1.
        weight_decay: λ, at least 0; λx is added to every gradient.
        nesterov: Whether to look ahead along the momentum.
        momentum_of: `"corrected"` puts the correction into the momentum, as for any other gradient;
            `"raw"` adds it afterwards, so that old corrections leave no trace in the momentum.
        proximal: FedProx's μ, at least 0: μ(x - x̄_r) is added to every local gradient, so that
            clients stay near the model that they were given. Unlike weight decay it is no part of
            the objective: anchors, memories and trust are measured without it.

    Raises:
        EpisodeError: A value is out of its range.

    Example:
        >>> Descent(momentum=0.9).has_velocity, Descent().has_velocity
        (True, False)
    """

    adapts: ClassVar[bool] = False
    """Whether `move_` takes other steps than size · g, so that a clipping does not bound them."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    momentum_of: Literal["corrected", "raw"] = "corrected"
    proximal: float = 0.0

    def __post_init__(self) -> None:
        share("momentum", self.momentum)
        not_negative("weight_decay", self.weight_decay)
        not_negative("proximal", self.proximal)
        if switch("nesterov", self.nesterov) and not self.momentum:
            raise EpisodeError("nesterov looks ahead along the momentum, but momentum is 0.")
        if self.momentum_of not in ("corrected", "raw"):
            raise unknown("momentum_of", self.momentum_of, ("corrected", "raw"))

    @property
    def name(self) -> str:
        """Name under which it can be found: `sgd`, or `my_descent.py:Mine`."""
        return DESCENTS.name_of(type(self))

    @property
    def has_velocity(self) -> bool:
        """Whether each client (or a server that steps itself) keeps a velocity across rounds."""
        return bool(self.momentum)

    @property
    def kept(self) -> tuple[str, ...]:
        """What a client keeps of it from round to round: fields of `ClientState`."""
        return ("velocity",) if self.has_velocity else ()

    def decay_(self, gradient: Vector, x: Vector) -> None:
        """∇F ← ∇F + λx: decay is part of the objective, so of anchors, norms and corrections."""
        if self.weight_decay:
            add_(gradient, x, scale=self.weight_decay)

    def pull_(self, gradient: Vector, x: Vector, start: Vector) -> None:
        """∇F ← ∇F + μ(x - x̄_r): the gradient of FedProx's μ/2 ‖x - x̄_r‖²."""
        add_(gradient, difference(x, start), scale=self.proximal)

    def direction(
        self,
        gradient: Vector,
        shift: Vector | None,
        velocity: Any,
        trust: Scalar = 1.0,
    ) -> Vector:
        """Return the direction to step along: g = ∇F_i(x; ξ) + λ(G_r - G_r^i), or momentum.

        Args:
            gradient: ∇F_i(x; ξ); it is overwritten.
            shift: G_r - G_r^i, or None for zero.
            velocity: What the descent keeps, updated in place: a vector, or None if `has_velocity`
                is false.
            trust: λ, how much of the correction is believed; 1 in the paper.
        """
        if velocity is None:
            return shifted(gradient, shift, trust)  # line 9
        if self.momentum_of == "corrected":
            return self._accelerated(shifted(gradient, shift, trust), velocity)
        g = self._accelerated(gradient, velocity)
        if g is velocity:
            copy_(gradient, velocity)
        return shifted(gradient, shift, trust)

    def move_(self, x: Vector, size: Scalar, g: Vector, eta: Scalar, velocity: Any) -> None:
        """x ← x - size · g (line 10).

        Args:
            x: The point; it is changed in place.
            size: The step size that the clipping gives.
            g: What `direction` has returned; it may be overwritten.
            eta: η_r; the step is clipped if `size` differs from it.
            velocity: What the descent keeps, as for `direction`.
        """
        descend_(x, size, g)

    def _accelerated(self, g: Vector, velocity: Vector) -> Vector:
        """v ← μv + g; return v, or g + μv with Nesterov's look-ahead (written to g)."""
        scale_(velocity, self.momentum)
        add_(velocity, g)
        if not self.nesterov:
            return velocity
        add_(g, velocity, scale=self.momentum)
        return g


def shifted(gradient: Vector, shift: Vector | None, trust: Scalar) -> Vector:
    """Return the corrected gradient, ∇F_i(x; ξ) + λ(G_r - G_r^i), in place of the raw one."""
    if shift is not None:
        add_(gradient, shift, trust)
    return gradient


DESCENTS = Pieces("descent", Descent, {"sgd": Descent, "adamw": "episode.core.adamw:AdamW"})
"""The built-in descents by name."""
