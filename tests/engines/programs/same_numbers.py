"""On every rank: this engine's numbers are the simulation's, and each phase is one collective."""

from __future__ import annotations

import sys
from typing import Any

import torch
from threads import assert_none_of_gloos_is_left
from torch import nn
from torch.nn import functional as F

from episode import ALGORITHMS, Algorithm, Uniform
from episode.core.schedule import Schedule
from episode.engines.cluster import Cluster
from episode.engines.distributed import Distributed
from episode.engines.simulation import Simulation
from episode.federation.protocols import Engine
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.tasks.neural import NeuralTask
from episode.testing import check_engine

CLIENTS, STEPS, ROUNDS = 5, 3, 4
COLLECTIVES = {name: 1 + (a.correction.name == "resampled") for name, a in ALGORITHMS.items()}
"""Of a round."""


def task(dtype: torch.dtype) -> NeuralTask:
    """A small network with BatchNorm, so with float and integer buffers, on unequal clients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    clients = [
        (
            torch.randn(20 + 5 * c, 4, dtype=dtype, generator=generator) + c,
            torch.randint(3, (20 + 5 * c,), generator=generator),
        )
        for c in range(CLIENTS)
    ]
    return NeuralTask(model, clients, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=8)


def played(engine: Engine, problem: NeuralTask, plan: Plan) -> tuple[ServerState, list[Any]]:
    server = ServerState(*problem.initial())
    rounds = Rounds(plan, problem, engine)
    metrics = [rounds.play(server).metrics for _ in range(plan.rounds_to_play)]
    engine.close()
    return server, metrics


def compare(cluster: Cluster, name: str, dtype: torch.dtype, **options: Any) -> None:
    problem = task(dtype)
    cohorts = Uniform(2)  # with three ranks, one of them has nobody to ask
    algorithm = Algorithm.named(name, **options)
    plan = Plan(algorithm, Schedule(0.1, 0.05), ROUNDS, STEPS, 0, cohorts)
    expected, metrics = played(Simulation(problem, algorithm, 1), problem, plan)
    before = cluster.traffic.collectives, cluster.traffic.bytes
    got, ours = played(Distributed(problem, algorithm, cluster, 1), problem, plan)
    collectives = cluster.traffic.collectives - before[0]
    first = 1 if name == "episode_plus_plus" else 0
    assert collectives == first + plan.rounds_to_play * COLLECTIVES[name], (
        name,
        collectives,
    )
    # Beside vectors and buffers, a few integers per client and rank.
    size = (cluster.traffic.bytes - before[1]) / (collectives * expected.x.nbytes)
    vectors = 2 if name in ("scaffold", "scaffold_clipped", "episode_plus_plus") else 1
    spare = (4 * 2 + 3 * cluster.size) * 4 * expected.x.element_size() + expected.buffers.nbytes
    assert vectors - 0.5 <= size <= vectors + spare / expected.x.nbytes, (name, size)
    rounding = 1e-12 if dtype == torch.float64 else 1e-5
    bound = 0.0 if cluster.size == 1 else rounding
    for a, b in (
        (got.x, expected.x),
        (got.buffers.floats, expected.buffers.floats),
        (got.memory, expected.memory),
    ):
        if a is None or b is None:
            assert a is b
            continue
        gap = float((a - b).abs().max())
        assert gap <= bound, (name, gap)
    assert torch.equal(got.buffers.integers, expected.buffers.integers), name
    assert vars(got.counts) | {"seconds": 0} == vars(expected.counts) | {"seconds": 0}
    for one, other in zip(ours, metrics, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            for u, v in zip(one[key], other[key], strict=True):
                same = u == v if v is None or cluster.size == 1 else abs(u - v) <= bound
                assert same, (name, key, u, v)


class Typed(nn.Module):
    """A float32 model with complex and float64 buffers, some of which follow the data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("rotary", torch.polar(torch.ones(5), torch.arange(5.0)))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.complex128))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.copy_(torch.complex(x, -x).mean(0))
        self.seen += 1
        return self.head(x.float())


def check_buffers_of_other_types(cluster: Cluster) -> None:
    """They arrive in float64, whatever type the parameters have, by one more collective."""
    torch.manual_seed(0)
    clients = [
        (torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))) for _ in range(CLIENTS)
    ]
    problem = NeuralTask(
        Typed(), clients, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=8
    )
    algorithm = ALGORITHMS["fedavg"]
    plan = Plan(algorithm, Schedule(0.1, 0.05), ROUNDS, STEPS, 0, Uniform(2))
    expected, _ = played(Simulation(problem, algorithm, 1), problem, plan)
    before = cluster.traffic.collectives
    got, _ = played(Distributed(problem, algorithm, cluster, 1), problem, plan)
    assert cluster.traffic.collectives - before == 2 * ROUNDS
    assert got.x.dtype == torch.float32
    assert got.buffers.floats.dtype == torch.float64
    assert float((got.buffers.floats - expected.buffers.floats).abs().max()) <= 1e-15
    assert torch.equal(got.buffers.integers, expected.buffers.integers)
    model = problem.install(got.x, got.buffers)
    assert torch.equal(model.rotary, Typed().rotary)
    assert model.mean.abs().min() > 0


def main() -> None:
    cluster = Cluster.join({}, timeout=60)
    with cluster.together():
        check_engine(lambda problem, algorithm: Distributed(problem, algorithm, cluster))
        for name in ALGORITHMS:
            # The gradient of a bias before BatchNorm is rounding alone, which AdamW divides by ε.
            adamw = {"descent": {"eps": 1e-3}}
            own = adamw if ALGORITHMS[name].descent.adapts else {"momentum": 0.5}
            compare(cluster, name, torch.float64, weighting="examples", **own)
        compare(cluster, "episode", torch.float64, reuse_probe=True, weight_decay=0.1)
        compare(cluster, "scaffold_clipped", torch.float32)
        check_buffers_of_other_types(cluster)
    cluster.leave()
    assert_none_of_gloos_is_left()
    sys.stdout.write(f"rank {cluster.rank} agrees\n")


main()
