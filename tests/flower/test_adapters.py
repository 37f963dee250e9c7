"""Adapters at sites: only they travel, and the numbers are those of the simulation."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from local_grid import LocalGrid
from tiny_transformers import bert, collator, loss, settings, silo, with_lora
from torch import nn

import episode
from episode.flower import EpisodeStrategy, attach

pytestmark = pytest.mark.slow


def model() -> nn.Module:
    return with_lora(bert())


def test_an_adapter_trained_at_sites_is_that_of_the_simulation() -> None:
    simulated = model()
    chosen = settings()
    run = episode.fit(simulated, [silo(client) for client in range(3)], loss, **chosen)
    app = ClientApp()
    attach(
        app, model, lambda context: silo(int(context.node_config["partition-id"])), loss,
        batch_size=8, collate=collator(), threads=1, accumulate=1,
    )  # fmt: skip
    names = {n for n, p in simulated.named_parameters() if p.requires_grad}
    start = {n: p.detach() for n, p in model().named_parameters() if n in names}
    strategy = EpisodeStrategy(
        eta=chosen["eta"], gamma=chosen["gamma"], local_steps=chosen["local_steps"],
        deadline=60.0, start_seconds=60.0,
    )  # fmt: skip
    network = LocalGrid(app, [0, 1, 2])
    result = strategy.start(network, ArrayRecord(start), num_rounds=chosen["rounds"])
    found = result.arrays.to_torch_state_dict()
    assert found.keys() == names
    for name, p in simulated.named_parameters():
        if name in names:
            torch.testing.assert_close(found[name], p.detach(), rtol=1e-6, atol=1e-7)
    sent = max(
        sum(
            len(array.data)
            for record in m.content.array_records.values()
            for array in record.values()
        )
        for m in network.sent
    )
    assert sent < 3 * run.x.nbytes
