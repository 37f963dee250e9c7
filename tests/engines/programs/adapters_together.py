"""Adapters of a transformer with dropout, on every rank: the numbers of the simulation."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import episode

sys.path.insert(0, str(Path(__file__).parents[2] / "tasks"))
from tiny_transformers import bert, loss, settings, silo, with_lora

warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")
SILOS = [silo(client) for client in range(3)]


def train(engine: Any, algorithm: str, folder: Path | None = None) -> episode.Run:
    return episode.fit(
        with_lora(bert()), SILOS, loss, algorithm=algorithm, engine=engine, folder=folder,
        **settings(gamma=None if algorithm == "fedavg" else 0.2),
    )  # fmt: skip


def main(folder: Path) -> None:
    for algorithm in ("fedavg", "episode"):
        alone = train("simulation", algorithm)
        together = train("distributed", algorithm, folder / algorithm)
        assert together.model is not None
        frozen = [p for p in together.model.parameters() if not p.requires_grad]
        base = [p for p in with_lora(bert()).parameters() if not p.requires_grad]
        assert all(map(torch.equal, frozen, base))
        assert together.x.numel() < sum(p.numel() for p in frozen) / 10
        gap = (together.x - alone.x).abs().max().item()
        sys.stdout.write(f"{algorithm}: gap {gap:.1e}\n")


main(Path(sys.argv[1]))
