"""A path to measure along: steepest descent on the measuring batches, each step found by search.

It needs no η and no γ, so it can be walked before either is known; and a step that is accepted is
itself a figure: that far along -∇f, f fell as it should.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from episode.diagnosis.measure import Point, Ruler
from episode.errors import EpisodeError, NotTwiceDifferentiableError
from episode.federation.state import Buffers

SUFFICIENT = 0.3
"""Of the decrease that ∇f promises, how much a step must deliver (Armijo's rule)."""


@dataclass(frozen=True)
class Options:
    """How much is measured; the defaults take some seconds for a small network."""

    steps: int = 40
    """Length of the path."""
    points: int = 12
    """At how many of its points everything is measured: more of them early than late."""
    batches: int = 8
    """Batches of each client to measure on; all it has, where it has fewer."""
    hessian_clients: int = 4
    hessian_batches: int = 4
    """Of how many clients, and on how many batches each, the top eigenvalue is sought."""
    tolerance: float = 2e-3
    iterations: int = 60
    """Of the power iteration: the relative error it aims at, and when it gives up."""
    local_steps: int = 32
    """Up to how many local steps in a round are tried."""
    rehearsal: int = 128
    """Iterations of each short run that tries a setting."""

    def __post_init__(self) -> None:
        least = {"steps": 2, "points": 3, "batches": 2, "iterations": 3}
        for name, value in vars(self).items():
            low = least.get(name, 1 if name != "tolerance" else 0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < low:
                raise EpisodeError(f"{name} is {value!r}: it must be a number of {low} or more.")
            if name != "tolerance" and not isinstance(value, int):
                raise EpisodeError(f"{name} is {value!r}: it must be a whole number.")

    def measured_steps(self) -> list[int]:
        """Which steps are measured: 0, the last, and others evenly on a logarithmic scale."""
        spaced = np.geomspace(1, self.steps + 1, self.points) - 1
        return sorted({round(float(s)) for s in spaced} | {0, self.steps})


@dataclass
class Path:
    """What was seen along the way."""

    points: list[Point]
    places: list[Tensor]
    """x at each of the points."""
    sizes: list[float]
    """The accepted steps, as multiples of ∇f."""
    losses: list[float]
    note: str | None = None
    """Why the Hessian was left out, if it was."""


def walk(
    ruler: Ruler,
    x: Tensor,
    buffers: Buffers,
    options: Options,
    observe: Callable[[str], None] = lambda _: None,
) -> Path:
    """Walks from x, measuring at the points that the options name."""
    path = Path([], [], [], [])
    measured = options.measured_steps()
    chosen = _spread(len(ruler.clients), options.hessian_clients)
    size = 1.0
    ruler.move(x, buffers)
    loss, gradient = ruler.mean_gradient()
    for step in range(options.steps + 1):
        _check_finite(loss, gradient, step)
        path.losses.append(loss)
        point = None
        if step in measured:
            ruler.move(x, buffers)
            observe(f"point {len(path.points) + 1} of {len(measured)}")
            point = _measure(ruler, step, chosen, options, path)
            path.places.append(x.clone())
        found = _search(ruler, x, buffers, loss, gradient, size)
        if found is None:
            break
        size, loss, ahead = found
        if point is not None:
            ruler.move(x, buffers)
            point.path = ruler.path(-size * gradient)
        path.sizes.append(size)
        x, gradient = x - size * gradient, ahead
        size *= 2
    return path


def _measure(ruler: Ruler, step: int, chosen: Sequence[int], options: Options, path: Path) -> Point:
    point, _ = ruler.point(step)
    if path.note is None:
        try:
            point.hessian = ruler.hessian(
                chosen, options.hessian_batches, options.tolerance, options.iterations
            )
        except NotTwiceDifferentiableError as error:
            path.note = str(error)
    path.points.append(point)
    return point


def _search(
    ruler: Ruler, x: Tensor, buffers: Buffers, loss: float, gradient: Tensor, size: float
) -> tuple[float, float, Tensor] | None:
    """The first of size, size/2, size/4 … that lowers f enough, with f and ∇f there.

    None where there is none: at a stationary point, or where rounding hides the decrease.
    """
    square = gradient.square().sum().item()
    for _ in range(60 if square > 0 else 0):
        ruler.move(x - size * gradient, buffers)
        reached, ahead = ruler.mean_gradient()
        if math.isfinite(reached) and reached <= loss - SUFFICIENT * size * square:
            return size, reached, ahead
        size /= 2
    return None


def _check_finite(loss: float, gradient: Tensor, step: int) -> None:
    norm = gradient.norm().item()
    if not math.isfinite(loss) or not math.isfinite(norm):
        place = "at the start" if step == 0 else f"after {step} steps of the path"
        raise EpisodeError(
            f"The loss is {loss:g} and its gradient's norm {norm:g} {place}: nothing can be "
            "measured there; look at the data and the initial model."
        )


def _spread(count: int, wanted: int) -> list[int]:
    """As many of `count` clients as wanted, evenly spread."""
    return sorted({round(k) for k in np.linspace(0, count - 1, min(count, wanted)).tolist()})
