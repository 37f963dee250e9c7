"""A relaxed-smooth problem in d dimensions whose constants L0, L1, κ, ρ and σ can be chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from episode.federation.protocols import Phase
from episode.tasks.closed_form import ClosedForm, Coefficients
from episode.tasks.settings import TaskSettings


class RelaxedSmooth(TaskSettings):
    """The constants of the paper's Assumption 1, and the starting point of `RelaxedSmoothTask`."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.05, "gamma": 0.05},
        "budget": {"rounds": 200, "local_steps": 8},
    }

    L0: float = Field(default=1.0, gt=0)
    """The Hessian's norm is at most L0 + L1·‖∇f‖."""
    L1: float = Field(default=1.0, ge=0)
    """The Hessian's norm is at most L0 + L1·‖∇f‖."""
    kappa: float = Field(default=1.0, ge=0)
    """The norm of a client's gradient is at most κ + ρ·‖∇f‖."""
    rho: float = Field(default=1.5, ge=1)
    """The norm of a client's gradient is at most κ + ρ·‖∇f‖."""
    sigma: float = Field(default=0.5, ge=0)
    """Norm of the noise in the gradients."""
    num_clients: int = Field(default=8, ge=1)
    """N: number of clients."""
    dimensions: int = Field(default=10, ge=3)
    """d: number of parameters."""
    start_norm: float = Field(default=20.0, ge=0)
    """‖∇f(x_0)‖: by default so large that clipping matters."""

    @model_validator(mode="after")
    def _check_heterogeneity(self) -> RelaxedSmooth:
        if self.num_clients == 1 and (self.kappa > 0 or self.rho > 1):
            raise ValueError("one client cannot differ from the mean: kappa must be 0 and rho 1")
        if self.rho > self.num_clients:
            raise ValueError(
                f"rho is {self.rho}: with {self.num_clients} convex clients it can be at most "
                f"{self.num_clients}"
            )
        return self

    def build(self, seed: int, device: str) -> RelaxedSmoothTask:
        return RelaxedSmoothTask(self, [seed])


class RelaxedSmoothTask(ClosedForm):
    """f_i(u, v) = s_i h(‖u‖) + ½μ‖v‖² + ⟨b_i, v⟩, with h″ = L + L1·h′ exactly.

    h(r) = (L/L1²)(e^{L1 r} - 1 - L1 r) with L = L0/ρ has ‖∇²h‖ = L + L1‖∇h‖ everywhere. The s_i
    have mean 1 and largest value ρ, Σ b_i = 0, ‖b_i‖ = κ and μ = L. So the constants of Assumption
    1 are L0, L1, κ and ρ, and none could be smaller: L0 and κ are attained where ∇f = 0, L1 and ρ
    far away from there. The noise lies on the sphere of radius σ. The minimum of f is 0, at 0.
    """

    def __init__(self, settings: RelaxedSmooth, seeds: Sequence[int] = (0,)) -> None:
        self.settings = s = settings
        self.curvature = s.L0 / s.rho
        self.split = s.dimensions - max(2, s.dimensions // 2)  # u, then v
        scales = torch.ones(s.num_clients, 1, dtype=torch.float64)
        slopes = torch.zeros(s.num_clients, s.dimensions, dtype=torch.float64)
        if s.num_clients > 1:
            scales[0] = s.rho
            scales[1:] = (s.num_clients - s.rho) / (s.num_clients - 1)
            angles = 2 * math.pi * torch.arange(s.num_clients, dtype=torch.float64) / s.num_clients
            slopes[:, self.split] = s.kappa * torch.cos(angles)
            slopes[:, self.split + 1] = s.kappa * torch.sin(angles)
        x_0 = torch.zeros(s.dimensions, dtype=torch.float64)
        x_0[0] = self.radius(s.start_norm)
        super().__init__([scales, slopes], x_0, s.sigma, seeds)

    def radius(self, gradient_norm: float) -> float:
        """Return ‖u‖ at which ‖∇h‖ has this value."""
        L1 = self.settings.L1
        if L1 == 0:
            return gradient_norm / self.curvature
        return math.log1p(L1 * gradient_norm / self.curvature) / L1

    def value(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        scale, slope = coefficients
        u, v = x[..., : self.split], x[..., self.split :]
        L, L1, r = self.curvature, self.settings.L1, _length(u)
        h = L / L1**2 * (torch.expm1(L1 * r) - L1 * r) if L1 else L * r * r / 2
        value = scale * h + L * v.square().sum(-1, keepdim=True) / 2
        return (value + (slope * x).sum(-1, keepdim=True)).squeeze(-1)

    def gradient(self, x: Tensor, coefficients: Coefficients) -> Tensor:
        scale, slope = coefficients
        u, v = x[..., : self.split], x[..., self.split :]
        L, L1, r = self.curvature, self.settings.L1, _length(u)
        steepness = L * torch.expm1(L1 * r) / (L1 * r) if L1 else torch.full_like(r, L)  # h′(r)/r
        radial = scale * steepness * u
        flat = (L * v).expand(*radial.shape[:-1], -1)
        return torch.cat([radial, flat], -1) + slope

    def draw_noise(self, clients: Sequence[int], stream: Phase, indices: Sequence[int]) -> Tensor:
        """Return noise on the sphere of radius σ, the bound of Assumption 1 (iii)."""
        flat = super().draw_noise(clients, stream, indices) / (self.noise or 1.0)
        normal = torch.erfinv(flat.clamp(-1 + 1e-15, 1 - 1e-15))
        return self.noise * torch.nn.functional.normalize(normal, dim=-1)


def _length(u: Tensor) -> Tensor:
    """Return ‖u‖, never exactly 0, so that h′(r)/r and its derivative exist everywhere."""
    return (u.square().sum(-1, keepdim=True) + 1e-200).sqrt()
