"""Two processes of a cluster against two threads of the simulation: gradients per second, LSTM.

    python benchmarks/cluster.py

Both sides in one run, alternating, several times. Starts its own two processes. Rank 0 measures
both; rank 1 waits, idle, while rank 0 simulates.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

import torch

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.cluster import Cluster
from episode.engines.distributed import Distributed
from episode.engines.simulation import Simulation
from episode.federation.protocols import Engine
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.tasks.neural import NeuralTask
from workloads import LSTM, loss

CLIENTS, LOCAL_STEPS, REPETITIONS = 8, 8, 12


class Side:
    """Rounds of one algorithm on one engine."""

    def __init__(self, engine: Engine, task: NeuralTask, algorithm: str) -> None:
        plan = Plan(ALGORITHMS[algorithm], Schedule(1e-3, 1e-3), 10**9, LOCAL_STEPS)
        self.engine = engine
        self.rounds = Rounds(plan, task, engine)
        self.server = ServerState(*task.initial())

    def rate(self) -> float:
        """Gradients per second of one round."""
        before, started = self.server.counts.gradients, time.perf_counter()
        self.rounds.play(self.server)
        return (self.server.counts.gradients - before) / (time.perf_counter() - started)


def measure(cluster: Cluster, algorithm: str) -> None:
    """One line of the table."""
    torch.manual_seed(0)
    clients = LSTM.clients(CLIENTS, LOCAL_STEPS)
    task = NeuralTask(LSTM.make_model(), clients, loss, batch_size=LSTM.batch_size)
    apart = Side(Distributed(task, ALGORITHMS[algorithm], cluster, 1), task, algorithm)
    alone = Side(Simulation(task, ALGORITHMS[algorithm], 2), task, algorithm)
    apart.rate()
    before = cluster.traffic.collectives, cluster.traffic.bytes
    ratios = []
    if cluster.rank == 0:
        alone.rate()
    for k in range(REPETITIONS):
        if k % 2 and cluster.rank == 0:
            b = alone.rate()
        a = apart.rate()
        if k % 2 == 0 and cluster.rank == 0:
            b = alone.rate()
        if cluster.rank == 0:
            ratios.append(a / b)
    apart.engine.close(), alone.engine.close()
    if cluster.rank == 0:
        low, median, high = statistics.quantiles(ratios, n=4)
        collectives = (cluster.traffic.collectives - before[0]) / REPETITIONS
        vectors = (cluster.traffic.bytes - before[1]) / REPETITIONS / task.initial()[0].nbytes
        print(
            f"{algorithm:<22} {median:.3f} ({low:.3f} to {high:.3f})"
            f"   {collectives:g} collectives a round, {vectors:.3f} vectors of d"
        )


def main() -> None:
    """Starts two ranks, or is one."""
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        cluster = Cluster.join({}, timeout=300)
        with cluster.together():
            for algorithm in ("episode", "fedavg", "scaffold"):
                measure(cluster, algorithm)
        cluster.leave()
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    print("W = 2 processes / simulation with 2 workers, LSTM 2x256 (median, quartiles)")
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **place, "MASTER_PORT": port, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    sys.exit(max(abs(rank.wait(timeout=1800)) for rank in ranks))


if __name__ == "__main__":
    main()
