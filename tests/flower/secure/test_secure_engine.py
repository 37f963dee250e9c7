"""The secure engine keeps the contract of engines, up to the rounding of fixed-point numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from episode import Algorithm
from episode.federation.protocols import Task
from episode.flower.client import Site, add_actions
from episode.flower.secure.server import SecureEngine
from episode.flower.sites import Limits, Sites
from episode.testing import check_engine


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_secure_engine_is_sound(tmp_path: Path) -> None:
    tasks: list[Task] = []

    def engine(task: Task, algorithm: Algorithm) -> SecureEngine:
        if not any(task is known for known in tasks):
            tasks.append(task)
        number = next(k for k, known in enumerate(tasks) if known is task)
        client, states = ClientApp(), tmp_path / str(number)
        add_actions(client, lambda context, c, seed, told: Site(task, c), 1, states)
        network = LocalGrid(client, list(range(task.num_clients)))
        sites = Sites(network, Limits(deadline=20, start_seconds=20), 0, secure=True)
        sites.meet()
        return SecureEngine(sites, algorithm)

    assert check_engine(engine, tolerance=1e-8, sums_only=True)
