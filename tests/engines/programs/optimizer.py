"""On every rank: FederatedSGD in a plain loop walks the engine's path, one client per rank."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from threads import assert_none_of_gloos_is_left
from torch import nn
from torch.nn import functional as F

from episode import ALGORITHMS, Algorithm
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.optim import FederatedSGD
from episode.tasks.neural import NeuralTask

STEPS, ROUNDS, ETA, GAMMA, DECAY = 3, 4, 0.1, 0.05, 0.01


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Tanh(), nn.Linear(6, 3)
    return nn.Sequential(*layers).double()


def make_task(size: int) -> NeuralTask:
    generator = torch.Generator().manual_seed(1)
    clients = [
        (
            torch.randn(24, 4, dtype=torch.float64, generator=generator) + c,
            torch.randint(3, (24,), generator=generator),
        )
        for c in range(size)
    ]
    return NeuralTask(make_model(0), clients, loss, batch_size=8)


def compare(name: str, momentum: float, fresh: bool, nesterov: bool = False) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    task = make_task(size)
    probes, remembers = ALGORITHMS[name].correction.probes, ALGORITHMS[name].correction.remembers
    locally = ALGORITHMS[name].correction.steps_locally
    options: dict[str, Any] = {"momentum": momentum, "weight_decay": DECAY, "nesterov": nesterov}
    if nesterov and ALGORITHMS[name].descent.adapts:
        return  # AdamW has no momentum of its own
    if probes and locally and not fresh:
        options["reuse_probe"] = True
    chosen: str | Algorithm = name
    if ALGORITHMS[name].descent.adapts:
        # The gradient of a bias before BatchNorm is rounding alone, which AdamW divides by ε.
        chosen = Algorithm.named(name, descent={"eps": 1e-3})
    algorithm = Algorithm.named(chosen, **options)
    engine = Simulation(task, algorithm, 1)
    server = ServerState(*task.initial())
    rounds = Rounds(Plan(algorithm, Schedule(ETA, GAMMA), ROUNDS, STEPS), task, engine)

    model = make_model(rank)  # ranks that start apart: the optimizer begins with the first's
    optimizer = FederatedSGD(
        model.parameters(), ETA, GAMMA, STEPS, chosen, momentum, DECAY, nesterov,
        buffers=model.buffers(),
    )  # fmt: skip
    for r in range(ROUNDS if locally else ROUNDS * STEPS):
        rounds.play(server)

        def backward(stream: str, index: int) -> None:
            optimizer.zero_grad()
            loss(model, task.batches[rank].draw(stream, index)).backward()

        for step in range(STEPS if locally else 1):
            reused = probes and (not locally or (step == 0 and not fresh))
            index = r if reused else r * STEPS + step
            backward("probe" if reused else "local", index)
            asked: list[int] = []

            def probe(r: int = r, asked: list[int] = asked) -> None:
                kept = [b.clone() for b in model.buffers()]
                asked.append(r)
                backward("probe", r)
                for b, value in zip(model.buffers(), kept, strict=True):
                    b.copy_(value)

            wants_one = fresh or (remembers and algorithm.clipping.needs_global)
            optimizer.step(probe=probe if wants_one else None)
            expected = step == 0 and wants_one and (probes or (remembers and r == 0))
            assert bool(asked) == expected, (name, r, step)
        got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        gap = float((got - server.x).abs().max())
        assert gap <= 1e-12, (name, momentum, fresh, r, gap)
        floats = torch.cat([b.reshape(-1) for b in model.buffers() if b.is_floating_point()])
        gap = float((floats - server.buffers.floats).abs().max())
        if fresh or not (probes and locally):  # a re-used probe is a pass that moves them, too
            assert gap <= 1e-12, (name, "buffers", r, gap)
    engine.close()


def check_average_in_the_middle() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = FederatedSGD([p], 1.0, 100.0, 4, "fedavg")
    p.grad = torch.tensor([1.0 + rank, 0.0], dtype=torch.float64)
    optimizer.step()
    before = p.detach().clone()
    with optimizer.averaged():
        assert abs(float(p[0].detach()) + (size + 1) / 2) < 1e-12, p
    assert torch.equal(p.detach(), before)
    stored = optimizer.state_dict()
    again = FederatedSGD([p], 1.0, 100.0, 4, "fedavg")
    with torch.no_grad():
        p.copy_(before)  # the constructor has put the first rank's here
    again.load_state_dict(stored)
    for _ in range(3):
        again.step()
    assert abs(float(p[0].detach()) + 4 * (size + 1) / 2) < 1e-12, p


def check_buffers_of_other_types() -> None:
    """Float64 and complex buffers of a float32 model are averaged without rounding."""
    rank, size = dist.get_rank(), dist.get_world_size()
    p = nn.Parameter(torch.zeros(2))
    wide = torch.tensor([1 / 3], dtype=torch.float64)
    turned = torch.zeros(2, dtype=torch.complex64)
    single, count = torch.zeros(3), torch.tensor([rank])
    for algorithm in ("fedavg", "parallel_sgd"):
        optimizer = FederatedSGD(
            [p], 1.0, 100.0, 1, algorithm, buffers=[single, wide, turned, count]
        )
        wide.fill_(1 / 3 + rank)
        turned.fill_(complex(rank, -rank))
        single.fill_(rank)
        p.grad = torch.ones(2)
        optimizer.step()
        middle = (size - 1) / 2
        assert abs(float(wide) - (1 / 3 + middle)) < 1e-15, wide
        assert torch.allclose(turned, torch.full_like(turned, complex(middle, -middle))), turned
        assert torch.allclose(single, torch.full_like(single, middle)), single
        assert count.item() == rank
    wide.fill_(1 / 3 + rank)
    FederatedSGD([p], 1.0, 100.0, 1, buffers=[wide])
    assert float(wide) == 1 / 3, "the first rank's"


def main() -> None:
    dist.init_process_group("gloo")
    for name in ALGORITHMS:
        if ALGORITHMS[name].probe_batches != 1:  # for the engines alone
            continue
        compare(name, 0.0, fresh=False)
        compare(name, 0.5, fresh=False, nesterov=True)
        if ALGORITHMS[name].correction.probes and ALGORITHMS[name].correction.steps_locally:
            compare(name, 0.5, fresh=True)
    check_average_in_the_middle()
    check_buffers_of_other_types()
    dist.destroy_process_group()
    assert_none_of_gloos_is_left()
    sys.stdout.write("agrees\n")


main()
