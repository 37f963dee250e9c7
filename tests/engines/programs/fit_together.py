"""`episode.fit` on every rank of a cluster: twice in one process, and one of them fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from threads import assert_none_of_gloos_is_left
from torch import nn
from torch.nn import functional as F

import episode

torch.manual_seed(0)
silos = [(torch.randn(40, 4) + s, torch.randint(3, (40,))) for s in (-1.0, 0.0, 1.0)]
start = nn.Linear(4, 3).state_dict()


def train(engine: Any, folder: Path | None = None, fails: bool = False) -> episode.Run:
    model = nn.Linear(4, 3)
    model.load_state_dict(start)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if fails and batch[0].mean() > 0.5:  # the last silo's data
            raise ValueError("these numbers are too large")
        return F.cross_entropy(model(batch[0]), batch[1])

    return episode.fit(
        model, silos, loss=loss, eta=0.3, gamma=0.1, local_steps=2, rounds=4, batch_size=8,
        folder=folder, engine=engine, timeout_seconds=20,
    )  # fmt: skip


alone = train("simulation")
for _ in range(2):  # the second time it is read back
    together = train("distributed", Path(sys.argv[1]))
    assert together.status == "finished"
    assert torch.allclose(together.x, alone.x, rtol=0, atol=1e-6)
    assert together.model is not None
assert train("distributed").status == "finished"
try:
    train("distributed", fails=True)
except episode.EpisodeError as error:
    sys.stdout.write(f"{error}\n")
assert_none_of_gloos_is_left()
