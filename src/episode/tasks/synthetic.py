"""The paper's synthetic task: two quartics, relaxed-smooth but not smooth (appendix E.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from episode.tasks.closed_form import ClosedForm, Coefficients
from episode.tasks.settings import TaskSettings


class Synthetic(TaskSettings):
    """f_1 = x⁴ - 3x³ + Hx² + x and f_2 = x⁴ - 3x³ - 2Hx² + x, with noise in the gradients."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.01, "gamma": 0.05},
        "budget": {"rounds": 500, "local_steps": 8},
    }

    heterogeneity: float = Field(default=8.0, ge=0)
    """H: how much the two clients differ."""
    noise: float = Field(default=1.0, ge=0)
    """Gradients have noise that is uniform on [-noise, noise]."""
    x_0: float = 1.0
    """The initial point."""

    def build(self, seed: int, device: str) -> Quartics:
        return Quartics([self.heterogeneity], self.x_0, self.noise, [seed])


class Quartics(ClosedForm):
    """The two quartics for one H and seed, or, with `grid`, for several H and seeds at once."""

    def __init__(
        self,
        heterogeneity: Sequence[float],
        x_0: float = 1.0,
        noise: float = 1.0,
        seeds: Sequence[int] = (0,),
        grid: bool = False,
    ) -> None:
        H = torch.tensor(heterogeneity, dtype=torch.float64)
        quadratic = torch.stack([H, -2 * H], dim=-1)[:, None, :, None]  # [H, seeds, clients, 1]
        self.heterogeneity = tuple(heterogeneity)
        super().__init__(
            [quadratic if grid else quadratic[0, 0]],
            torch.tensor([x_0], dtype=torch.float64),
            noise,
            seeds,
        )

    def value(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        (c,) = coefficients
        return (x * (1 + x * (c + x * (x - 3)))).sum(-1)

    def gradient(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        (c,) = coefficients
        return 1 + x * (2 * c + x * (4 * x - 9))

    def evaluate(self, x: Tensor, buffers: Any) -> dict[str, float]:
        """Return the metrics of every closed form, and how far f is above its minimum."""
        metrics = super().evaluate(x, buffers)
        return metrics | {"gap": metrics["value"] - minimum(self.heterogeneity[0])[1]}


def minimum(heterogeneity: float) -> tuple[float, float]:
    """Return (argmin f, min f) of the average f = x⁴ - 3x³ - (H/2)x² + x, from the roots of f'."""
    f = np.polynomial.Polynomial([0, 1, -heterogeneity / 2, -3, 1])
    roots = f.deriv().roots()
    x = min(roots[abs(roots.imag) < 1e-9].real, key=f)
    return float(x), float(f(x))
