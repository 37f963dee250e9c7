"""f_i(x) = ½ a_i x² + b_i x: the paper's counter-example, with a known minimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from episode.tasks.closed_form import ClosedForm, Coefficients
from episode.tasks.settings import TaskSettings


class Quadratics(TaskSettings):
    """Clients with f_i(x) = ½ a_i x² + b_i x.

    The default is the counter-example of the paper's section 4.1 with γ = 2 and b = (-γ-1, γ+2):
    CELGC stays at 0, but the minimum is at -1/2.
    """

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 1.0, "gamma": 2.0},
        "budget": {"rounds": 40, "local_steps": 1},
    }

    slopes: tuple[float, ...] = Field(default=(-3.0, 4.0), min_length=1)
    """b_i of each client."""
    curvatures: tuple[float, ...] = (1.0, 1.0)
    """a_i of each client."""
    noise: float = Field(default=0.0, ge=0)
    """Gradients have noise that is uniform on [-noise, noise]."""
    x_0: float = 0.0
    """The initial point."""

    @model_validator(mode="after")
    def _one_curvature_per_slope(self) -> Quadratics:
        if len(self.slopes) != len(self.curvatures):
            raise ValueError(
                f"there are {len(self.slopes)} slopes and {len(self.curvatures)} curvatures, "
                "but each client needs one of each"
            )
        return self

    def build(self, seed: int, device: str) -> QuadraticTask:
        return QuadraticTask(
            torch.tensor(self.curvatures, dtype=torch.float64)[:, None],
            torch.tensor(self.slopes, dtype=torch.float64)[:, None],
            torch.tensor([self.x_0], dtype=torch.float64),
            self.noise,
            [seed],
        )


class QuadraticTask(ClosedForm):
    """f_i(x) = Σ_k ½ a_ik x_k² + b_ik x_k, with curvatures a and slopes b `[clients, d]`."""

    def __init__(
        self,
        curvatures: Tensor,
        slopes: Tensor,
        x_0: Tensor,
        noise: float = 0.0,
        seeds: Sequence[int] = (0,),
    ) -> None:
        super().__init__([curvatures, slopes], x_0, noise, seeds)

    def value(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        curvature, slope = coefficients
        return (curvature * x * x / 2 + slope * x).sum(-1)

    def gradient(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        curvature, slope = coefficients
        return curvature * x + slope

    def minimum(self) -> Tensor:
        """Return the minimiser x* `[d]` of the average objective."""
        curvatures, slopes = self.coefficients
        return -slopes.mean(0) / curvatures.mean(0)
