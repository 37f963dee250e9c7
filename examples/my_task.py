"""A task of your own in one file: tell noisy sine waves of two frequencies apart.

    episode run --task examples/my_task.py:Waves
    episode run --task examples/my_task.py:Waves --set task.noise=2 --set algorithm=celgc

In an installed package it is found as `my_package.my_task:Waves`, or by a name of its own if the
package has an entry point for it in the group `episode.tasks`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from episode import NeuralTask, TaskSettings, by_dirichlet


class Waves(TaskSettings):
    """The task's settings are fields, checked and stored with the run; `build` makes the task."""

    summary: ClassVar[str] = "slow and fast sine waves, told apart by a GRU"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.5, "gamma": 0.2},
        "budget": {"rounds": 15, "local_steps": 4},
    }

    num_clients: int = Field(default=4, ge=1)
    noise: float = Field(default=1.0, ge=0)
    alpha: float = Field(default=0.5, gt=0)

    def build(self, seed: int, device: str) -> NeuralTask:
        """Make the model and the data. All randomness comes from the seed: runs are repeatable."""
        waves, labels = self._draw(800, seed)
        parts = by_dirichlet(labels, self.num_clients, self.alpha, seed, minimum=32)
        clients = [(waves[part], labels[part]) for part in parts]
        test = self._draw(400, seed + 1)
        torch.manual_seed(seed)
        return NeuralTask(
            Listener().to(device),
            clients,
            lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
            batch_size=32,
            seed=seed,
            evaluate=lambda model: {
                "test_accuracy": (model(test[0]).argmax(1) == test[1]).double().mean().item()
            },
        )

    def _draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(seed)
        labels = torch.randint(2, (count,), generator=source)
        time = torch.linspace(0, 6, 24)
        clean = torch.sin(time * (1.0 + labels[:, None]))
        noisy = clean + self.noise * torch.randn(clean.shape, generator=source)
        return noisy[:, :, None], labels


class Listener(nn.Module):
    """A GRU over the wave, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(1, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, waves: Tensor) -> Tensor:
        """Return scores `[batch, 2]`."""
        scores: Tensor = self.head(self.recurrence(waves)[0][:, -1])
        return scores
