"""Measurements at one point: gradient norms, noise, disagreement of clients and curvature.

Every point is measured on the same batches of each client, so that differences along a path come
from the points alone. If these are all batches of a client, its gradient is exact; otherwise norms
are corrected for the noise that is left in the means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from episode.core.vectors import copy_, cut
from episode.diagnosis.hessian import HessianProduct, by_differences, top_eigenvalue
from episode.diagnosis.options import DiagnosisOptions
from episode.errors import EpisodeError
from episode.federation.protocols import Draw, Task
from episode.federation.state import Buffers
from episode.randomness import generator
from episode.tasks.neural import NeuralTask

State = tuple[Tensor, Buffers]
"""A point, and the model's buffers there."""
UNUSED_EPOCH = 1_000_000
"""Epoch from which measuring batches are taken: training never gets that far."""


@dataclass(frozen=True)
class Curvature:
    """Smoothness of one client's loss on some of its batches."""

    client: int
    gradient_norm: float
    """‖∇F_i‖ on these batches."""
    smoothness: float
    """‖∇²F_i‖, or how fast ∇F_i changes along a step."""
    iterations: int = 0
    converged: bool = True


@dataclass
class Point:
    """Everything measured at one point of the descent."""

    step: int
    loss: float
    gradient_norm: float
    """‖∇f‖."""
    client_norms: list[float]
    """‖∇f_i‖ of each client."""
    disagreement: float
    """How much client gradients differ: (mean ‖∇f_i - ∇f‖²)^½."""
    noise: list[float]
    """Noise of one batch, (E‖∇F_i - ∇f_i‖²)^½, of each client."""
    noise_bound: float
    """The 95% quantile of ‖∇F_i - ∇f_i‖, in practice the bound σ of Assumption 1 (iii).
    (The maximum would also contain the noise of the means that deviations are taken from.)"""
    sampled_norms: list[float]
    """‖G_r‖ (norm of the averaged gradient) for batches drawn as in a round."""
    step_norms: list[float]
    """‖∇F_i(x; ξ) - G_r^i + G_r‖ for batches drawn as in a round: the length of a corrected local
    step from here, before it is multiplied by η."""
    hessian: list[Curvature] = field(default_factory=list)
    """Norms of client Hessians."""
    path: list[Curvature] = field(default_factory=list)
    """Largest ‖∇F_i(x + td) - ∇F_i(x)‖/‖td‖ along the step d that follows, on one batch."""

    @property
    def curvature(self) -> list[Curvature]:
        """The norms of client Hessians, or smoothness along the path if there are none."""
        return self.hessian or self.path


class Measurer:
    """Measures a task on fixed batches."""

    def __init__(self, task: Task, options: DiagnosisOptions, seed: int) -> None:
        self.clients = range(task.num_clients)
        self._options = options
        self._seed = seed
        self._objective = task.objective()
        self._buffers = Buffers()
        self._available = _whole_batches(task)
        self.batches = [min(options.batches, m or options.batches) for m in self._available]
        self._eigenvectors: dict[int, Tensor] = {}
        """Where the power iteration of each client starts at the next point."""

    def move_to(self, x: Tensor, buffers: Buffers) -> None:
        """Set the point at which the next measurements are taken."""
        self._objective.x.copy_(x)
        self._buffers = buffers

    def mean_gradient(self) -> tuple[float, Tensor]:
        """Return f and ∇f at the current point, over all measuring batches."""
        total, sums = 0.0, torch.zeros_like(self._objective.x)
        for client in self.clients:
            parts = self.batches[client] * len(self.clients)
            for k in range(self.batches[client]):
                loss, gradient = self.gradient(client, k)
                total += loss / parts
                sums.add_(gradient, alpha=1 / parts)
        return total, sums

    def gradient(self, client: int, index: int) -> tuple[float, Tensor]:
        """Return (F_i, ∇F_i) on one measuring batch of a client, as a new flat vector."""
        self._objective.load_buffers(self._buffers)
        loss, blocks = self._objective.gradient(self._draw(client, index))
        flat = torch.empty_like(self._objective.x)
        copy_(cut(flat, self._objective.blocks), blocks)
        return loss.item(), flat

    def point(self, step: int) -> Point:
        """Measure norms, noise and disagreement at the current point."""
        found = [self._client(c, self.batches[c]) for c in self.clients]
        means = torch.stack([client.mean for client in found])
        whole = means.mean(0)
        left = [client.noise_of_mean for client in found]
        count = len(found)
        spread = (means - whole).square().sum(1).mean().item() - sum(left) / count * (1 - 1 / count)
        samples = min(self.batches)
        drawn = torch.stack([client.gradients[:samples] for client in found])
        G = drawn.mean(0)
        # In a round, correction and local step use different batches: pair each with the previous.
        corrected = drawn - (drawn - G).roll(1, dims=1)
        return Point(
            step,
            sum(client.loss for client in found) / count,
            _root(whole.square().sum().item() - sum(left) / count**2),
            [client.norm for client in found],
            _root(spread),
            [math.sqrt(client.variance) for client in found],
            torch.cat([client.deviations for client in found]).quantile(0.95).item(),
            G.norm(dim=1).tolist(),
            corrected.norm(dim=2).flatten().tolist(),
        )

    def hessian_norms(self) -> list[Curvature]:
        """Measure ‖∇²F_i‖ of some clients, evenly spread, each on the mean of some batches."""
        options, last = self._options, len(self.clients) - 1
        spread = np.linspace(0, last, min(last + 1, options.hessian_clients)).tolist()
        found = []
        for client in sorted({round(c) for c in spread}):
            count = min(options.hessian_batches, self.batches[client])
            start = self._eigenvectors.get(client)
            if start is None:
                random = generator(self._seed, "eigenvector", client)
                x = self._objective.x
                start = torch.randn(x.shape, generator=random).to(x)
            product = self._mean_product(client, count)
            top = top_eigenvalue(product, start, options.tolerance, options.iterations)
            # A little of the old start keeps other directions in sight at the next point.
            self._eigenvectors[client] = top.vector + 0.1 * start / start.norm()
            norm = self._client(client, count).norm
            found.append(Curvature(client, norm, top.norm, top.iterations, top.converged))
        return found

    def smoothness_along(self, d: Tensor, pieces: int = 4) -> list[Curvature]:
        """Measure smoothness along the step d from the current point, on one batch per client."""
        origin = self._objective.x.clone()
        before = [self.gradient(c, 0)[1] for c in self.clients]
        largest = [0.0] * len(before)
        for piece in range(1, pieces + 1):
            share = piece / pieces
            self._objective.x.copy_(origin).add_(d, alpha=share)
            for c in self.clients:
                change = (self.gradient(c, 0)[1] - before[c]).norm().item()
                largest[c] = max(largest[c], change / (share * d.norm().item()))
        self._objective.x.copy_(origin)
        return [Curvature(c, before[c].norm().item(), largest[c]) for c in self.clients]

    def _client(self, client: int, count: int) -> _ClientGradients:
        """Measure one client on its first `count` batches."""
        pairs = [self.gradient(client, k) for k in range(count)]
        return _ClientGradients(pairs, self._available[client])

    def _mean_product(self, client: int, count: int) -> HessianProduct:
        self._objective.load_buffers(self._buffers)
        products = []
        for k in range(count):
            product = self._objective.hessian_product(self._draw(client, k))
            if product is None:
                here = self._objective.x.clone()
                return by_differences(lambda x: self._gradient_at(x, client, count), here)
            products.append(product)
        return lambda v: torch.stack([product(v) for product in products]).mean(0)

    def _gradient_at(self, x: Tensor, client: int, count: int) -> Tensor:
        here = self._objective.x.clone()
        self._objective.x.copy_(x)
        mean = torch.stack([self.gradient(client, k)[1] for k in range(count)]).mean(0)
        self._objective.x.copy_(here)
        return mean

    def _draw(self, client: int, index: int) -> Draw:
        return Draw(client, "probe", UNUSED_EPOCH * (self._available[client] or 1) + index)


class _ClientGradients:
    """Statistics of (loss, gradient) pairs on some of the batches that a client has."""

    def __init__(self, pairs: Sequence[tuple[float, Tensor]], available: int | None) -> None:
        count = len(pairs)
        self.loss = sum(loss for loss, _ in pairs) / count
        self.gradients = torch.stack([gradient for _, gradient in pairs])
        self.mean = self.gradients.mean(0)
        self.deviations = (self.gradients - self.mean).norm(dim=1)
        # The mean contains each gradient, so deviations from it are too small by a factor.
        self.variance = self.deviations.square().sum().item() / max(count - 1, 1)
        share = count / available if available else 0.0
        self.noise_of_mean = self.variance * (1 - share) / count
        """Variance that is left in the mean: 0 if it is over all batches of the client."""
        self.norm = _root(self.mean.square().sum().item() - self.noise_of_mean)
        """Norm of the mean, corrected for the noise left in it."""


def _whole_batches(task: Task) -> list[int] | list[None]:
    """Return how many whole batches each client has; None if they never end.

    Raises:
        EpisodeError: There are too few clients or batches to estimate anything.
    """
    if task.num_clients < 2:
        raise EpisodeError(
            "There is one client, but measuring how clients differ needs 2 or more: split the data."
        )
    if not isinstance(task, NeuralTask):
        return [None] * task.num_clients
    counts = [held.examples // held.batch_size for held in task.batches.values()]
    if 1 in counts:
        client = counts.index(1)
        raise EpisodeError(
            f"Client {client} has {task.examples(client)} examples, which make a single batch, but "
            "measuring noise needs 2 or more: use a smaller batch_size or leave the client out."
        )
    return counts


def _root(square: float) -> float:
    return math.sqrt(max(square, 0.0))
