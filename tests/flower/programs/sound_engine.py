"""Run `check_engine` on Flower's simulation: every message goes through Ray to a ClientApp.

The checks play many small tasks. Each is written to a file whose number takes the place of the
run's seed, so that a site, in another process, can find its task. Trajectories are those of
EPISODE alone: `every_algorithm.py` plays all algorithms on the same grid.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from episode import Algorithm
from episode.federation.protocols import Task
from episode.flower.client import Site, add_actions
from episode.flower.server import FlowerEngine
from episode.flower.simulation import quiet_environment, simulated_grid
from episode.flower.sites import Limits, Sites
from episode.testing import check_engine
from episode.testing.problems import QuadraticProblem

FOLDER = "EPISODE_TEST_TASKS"
MOST = 6
"""Number of clients of the largest task in the checks."""
LIMITS = Limits(deadline=120, start_seconds=120)


class First:
    """A grid that shows only some of its nodes."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> Iterable[int]:
        return self._nodes

    def get_nodes(self) -> Iterable[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._nodes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def task_file(number: int) -> Path:
    return Path(os.environ[FOLDER]) / f"{number}.task"


def site(context: Context, client: int, number: int, told: Mapping[str, Any]) -> Site:
    return Site(pickle.loads(task_file(number).read_bytes()), client)  # a file that we wrote


def check(grid: Grid) -> list[str]:
    numbers = iter(range(10**6))

    def meet(task: Task, nodes: list[int] | None = None) -> Sites:
        number = next(numbers)
        task_file(number).write_bytes(pickle.dumps(task))
        seen: Any = grid if nodes is None else First(grid, nodes)
        sites = Sites(seen, LIMITS, number)
        sites.meet(task.num_clients)
        return sites

    known = meet(QuadraticProblem.heterogeneous(MOST).task()).known

    def make_engine(task: Task, algorithm: Algorithm) -> FlowerEngine:
        nodes = [known[client].node for client in range(task.num_clients)]
        return FlowerEngine(meet(task, nodes), algorithm)

    return [str(done) for done in check_engine(make_engine, names=["episode"])]


def main() -> None:
    client = ClientApp()
    add_actions(client, site, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        with quiet_environment(), simulated_grid(client, MOST, workers=2) as grid:
            lines = check(grid)
        for line in lines:
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
