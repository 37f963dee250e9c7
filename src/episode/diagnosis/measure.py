"""What can be measured at one point: norms, noise, disagreement, curvature; on fixed batches.

A point is measured on `batches` batches of each client, the same at every point, so that what
changes along a path is the point. Where they are all that a client has, its gradient is exact;
else norms are corrected for the noise left in their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from episode.core.vectors import copy_, cut
from episode.diagnosis.hessian import Product, by_differences, top_eigenvalue
from episode.errors import EpisodeError
from episode.federation.protocols import Draw, Task
from episode.federation.state import Buffers
from episode.randomness import generator
from episode.tasks.neural import NeuralTask

FAR = 1_000_000
"""The epoch from which batches for measuring are taken: far from any that a run would see."""


@dataclass(frozen=True)
class Curvature:
    """Smoothness of one client's loss on some of its batches: ‖∇F_i‖ there, and ‖∇²F_i‖."""

    client: int
    gradient_norm: float
    smoothness: float
    iterations: int = 0
    converged: bool = True


@dataclass
class Point:
    """Everything measured at one point of the path."""

    step: int
    loss: float
    gradient_norm: float
    """‖∇f‖."""
    client_norms: list[float]
    """‖∇f_i‖."""
    disagreement: float
    """(mean ‖∇f_i - ∇f‖²)^½."""
    noise: list[float]
    """(E‖∇F_i - ∇f_i‖²)^½ of each client, for one batch."""
    noise_bound: float
    """What 95% of the ‖∇F_i - ∇f_i‖ seen stay below: the bound of Assumption 1 (iii), in practice.
    (Their maximum would also be made of the noise in the means that they are taken from.)"""
    sampled_norms: list[float]
    """‖G_r‖ for batches drawn as in a round."""
    step_norms: list[float]
    """‖∇F_i(x; ξ) - G_r^i + G_r‖ for batches drawn as in a round: a corrected local step from here,
    before it is multiplied by η."""
    hessian: list[Curvature] = field(default_factory=list)
    path: list[Curvature] = field(default_factory=list)
    """Largest ‖∇F_i(x + td) - ∇F_i(x)‖/‖td‖ along the step d that follows, on one batch."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class Ruler:
    """Measures a task on fixed batches."""

    def __init__(self, task: Task, batches: int, seed: int) -> None:
        check_enough(task, batches)
        self.task = task
        self.clients = range(task.num_clients)
        self._seed = seed
        self._objective = task.objective()
        self._buffers = Buffers()
        known = [_batches_of(task, c) for c in self.clients]
        self.batches = [min(batches, m) if m else batches for m in known]
        self._first = [FAR * m if m else FAR for m in known]
        self._known = known
        self._directions: dict[int, Tensor] = {}

    def move(self, x: Tensor, buffers: Buffers) -> None:
        """Where the next measurements are taken."""
        self._objective.x.copy_(x)
        self._buffers = buffers

    def mean_gradient(self) -> tuple[float, Tensor]:
        """f and ∇f at the present point, over all measuring batches."""
        total, sums = 0.0, torch.zeros_like(self._objective.x)
        for client in self.clients:
            count = self.batches[client]
            for k in range(count):
                loss, gradient = self.gradient(client, k)
                total += loss / (count * len(self.clients))
                sums.add_(gradient, alpha=1 / (count * len(self.clients)))
        return total, sums

    def gradient(self, client: int, index: int) -> tuple[float, Tensor]:
        """(F_i, ∇F_i) on one of a client's measuring batches, as a flat vector of its own."""
        self._objective.load_buffers(self._buffers)
        loss, blocks = self._objective.gradient(self._draw(client, index))
        flat = torch.empty_like(self._objective.x)
        copy_(cut(flat, self._objective.blocks), blocks)
        return loss.item(), flat

    def point(self, step: int) -> tuple[Point, Tensor]:
        """Norms, noise and disagreement here, and ∇f."""
        rows = [self._client(c, self.batches[c]) for c in self.clients]
        means = torch.stack([row.mean for row in rows])
        whole = means.mean(0)
        left = [rows[c].variance * (1 - self._share(c, k)) / k for c, k in enumerate(self.batches)]
        count = len(rows)
        spread = (means - whole).square().sum(1).mean().item() - sum(left) / count * (1 - 1 / count)
        norms = [_root(m.square().sum().item() - v) for m, v in zip(means, left, strict=True)]
        samples = min(self.batches)
        drawn = torch.stack([row.gradients[:samples] for row in rows])
        G = drawn.mean(0)
        return Point(
            step,
            sum(row.loss for row in rows) / count,
            _root(whole.square().sum().item() - sum(left) / count**2),
            norms,
            _root(spread),
            [math.sqrt(row.variance) for row in rows],
            torch.cat([row.deviations for row in rows]).quantile(0.95).item(),
            G.norm(dim=1).tolist(),
            # The batch after the first stands for the probe's: another one, as in a round.
            (drawn - (drawn - G).roll(1, dims=1)).norm(dim=2).flatten().tolist(),
        ), whole

    def hessian(
        self, clients: Sequence[int], batches: int, tolerance: float, iterations: int
    ) -> list[Curvature]:
        """‖∇²F_i‖ of some clients, each on the mean of its first `batches` batches."""
        found = []
        for client in clients:
            count = min(batches, self.batches[client])
            row = self._client(client, count)
            left = row.variance * (1 - self._share(client, count)) / count
            norm = _root(row.mean.square().sum().item() - left)
            product = self._mean_product(client, count)
            start = self._directions.get(client)
            if start is None:
                start = torch.randn(
                    self._objective.x.shape, generator=generator(self._seed, "eigenvector", client)
                )
                start = start.to(self._objective.x)
            top = top_eigenvalue(product, start, tolerance, iterations)
            # The next point's iteration starts here, with a little of the old to see the rest by.
            self._directions[client] = top.vector + 0.1 * start / start.norm()
            found.append(Curvature(client, norm, top.norm, top.iterations, top.converged))
        return found

    def path(self, d: Tensor, pieces: int = 4) -> list[Curvature]:
        """Smoothness along the step d from here, on one batch of each client."""
        origin = self._objective.x.clone()
        before = [self.gradient(c, 0)[1] for c in self.clients]
        largest = [0.0 for _ in self.clients]
        for piece in range(1, pieces + 1):
            share = piece / pieces
            self._objective.x.copy_(origin).add_(d, alpha=share)
            for c in self.clients:
                change = (self.gradient(c, 0)[1] - before[c]).norm().item()
                largest[c] = max(largest[c], change / (share * d.norm().item()))
        self._objective.x.copy_(origin)
        return [Curvature(c, before[c].norm().item(), largest[c]) for c in self.clients]

    def _client(self, client: int, count: int) -> _Row:
        pairs = [self.gradient(client, k) for k in range(count)]
        gradients = torch.stack([gradient for _, gradient in pairs])
        mean = gradients.mean(0)
        deviations = (gradients - mean).norm(dim=1)
        # Deviations from a mean that they are part of are too small by a factor.
        variance = deviations.square().sum().item() / max(count - 1, 1)
        return _Row(sum(loss for loss, _ in pairs) / count, gradients, mean, variance, deviations)

    def _share(self, client: int, count: int) -> float:
        """What share of a client's batches is seen: with all of them, a mean has no noise."""
        known = self._known[client]
        return count / known if known else 0.0

    def _mean_product(self, client: int, count: int) -> Product:
        self._objective.load_buffers(self._buffers)
        make: Callable[[Draw], Product] | None = getattr(self._objective, "hessian_product", None)
        if make is None:
            return by_differences(
                lambda x: self._gradient_at(x, client, count), self._objective.x.clone()
            )
        products = [make(self._draw(client, k)) for k in range(count)]
        return lambda v: torch.stack([product(v) for product in products]).mean(0)

    def _gradient_at(self, x: Tensor, client: int, count: int) -> Tensor:
        here = self._objective.x.clone()
        self._objective.x.copy_(x)
        mean = torch.stack([self.gradient(client, k)[1] for k in range(count)]).mean(0)
        self._objective.x.copy_(here)
        return mean

    def _draw(self, client: int, index: int) -> Draw:
        return Draw(client, "probe", self._first[client] + index)


@dataclass
class _Row:
    loss: float
    gradients: Tensor
    mean: Tensor
    variance: float
    deviations: Tensor


def check_enough(task: Task, batches: int) -> None:
    """Refuses too few clients or batches to estimate anything from."""
    if batches < 2:
        raise EpisodeError(f"batches is {batches}: noise cannot be seen in fewer than 2 of them.")
    if task.num_clients < 2:
        raise EpisodeError(
            "There is one client: how clients differ needs 2 or more, so split the data."
        )
    for client in range(task.num_clients):
        if _batches_of(task, client) == 1:
            raise EpisodeError(
                f"Client {client} has {task.examples(client)} examples, which make a single batch: "
                "noise needs 2 or more, so use a smaller batch_size or leave the client out."
            )


def _batches_of(task: Task, client: int) -> int | None:
    """How many whole batches a client has; None where they never end."""
    if not isinstance(task, NeuralTask):
        return None
    held = task.batches[client]
    return held.examples // held.batch_size


def _root(square: float) -> float:
    return math.sqrt(max(square, 0.0))
