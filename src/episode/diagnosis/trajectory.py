"""Steepest descent on the measuring batches, with a line search: the path to measure along.

It needs neither η nor γ, so it works before either is known. The accepted step sizes are useful
measurements themselves: they are steps along -∇f that lowered f as expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from episode.diagnosis.measure import Measurer, Point, State
from episode.diagnosis.options import DiagnosisOptions
from episode.errors import EpisodeError, NotTwiceDifferentiableError

SUFFICIENT_DECREASE = 0.3
"""Share of the decrease predicted by ∇f that a step must deliver (Armijo's rule)."""


@dataclass
class Trajectory:
    """What was measured along the descent."""

    points: list[Point] = field(default_factory=list)
    step_sizes: list[float] = field(default_factory=list)
    """Accepted step sizes, as multiples of ∇f."""
    losses: list[float] = field(default_factory=list)
    """f before each step, and after the last."""
    hessian_error: str | None = None
    """Why the Hessian was not measured; None if it was."""

    def measure(self, measurer: Measurer, step: int) -> None:
        """Add a point with everything but `path`; no Hessians after they have failed once."""
        self.points.append(measurer.point(step))
        if self.hessian_error is None:
            try:
                self.points[-1].hessian = measurer.hessian_norms()
            except NotTwiceDifferentiableError as error:
                self.hessian_error = str(error)


def descend(
    measurer: Measurer, start: State, options: DiagnosisOptions, observe: Callable[[str], None]
) -> Trajectory:
    """Descend from the start, and measure at the points that the options ask for."""
    trajectory = Trajectory()
    measured = options.measured_steps()
    size, (x, buffers) = 1.0, start
    measurer.move_to(x, buffers)
    loss, gradient = measurer.mean_gradient()
    for step in range(options.steps + 1):
        _check_finite(loss, gradient, step)
        trajectory.losses.append(loss)
        if step in measured:
            measurer.move_to(x, buffers)
            observe(f"Measuring point {len(trajectory.points) + 1} of {len(measured)}")
            trajectory.measure(measurer, step)
        found = _line_search(measurer, (x, buffers), loss, gradient, size)
        if found is None:
            break
        size, loss, next_gradient = found
        if step in measured:
            measurer.move_to(x, buffers)
            trajectory.points[-1].path = measurer.smoothness_along(-size * gradient)
        trajectory.step_sizes.append(size)
        x, gradient = x - size * gradient, next_gradient
        size *= 2
    return trajectory


def _line_search(
    measurer: Measurer, start: State, loss: float, gradient: Tensor, size: float
) -> tuple[float, float, Tensor] | None:
    """Return the first of size, size/2, size/4 … that lowers f enough, with f and ∇f there.

    Returns None if there is none: at a stationary point, or where rounding hides the decrease.
    """
    (x, buffers), square = start, gradient.square().sum().item()
    for _ in range(60 if square > 0 else 0):
        measurer.move_to(x - size * gradient, buffers)
        reached, next_gradient = measurer.mean_gradient()
        if math.isfinite(reached) and reached <= loss - SUFFICIENT_DECREASE * size * square:
            return size, reached, next_gradient
        size /= 2
    return None


def _check_finite(loss: float, gradient: Tensor, step: int) -> None:
    norm = gradient.norm().item()
    if not math.isfinite(loss) or not math.isfinite(norm):
        place = "at the start" if step == 0 else f"after {step} steps of gradient descent"
        raise EpisodeError(
            f"The loss is {loss:g} and its gradient norm is {norm:g} {place}, so nothing can be "
            "measured there: check the data and the initial model."
        )
