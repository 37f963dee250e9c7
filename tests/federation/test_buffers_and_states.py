"""What becomes of buffers in a mean, of buffers that blow up, and of a client's anchor."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import ALGORITHMS, Schedule
from episode.engines.simulation import Simulation
from episode.federation.mean import OrderedSum, mean_of
from episode.federation.protocols import Engine, Evaluation, Reply
from episode.federation.rounds import Plan, Rounds, divergence
from episode.federation.state import Buffers, ServerState
from episode.testing.problems import QuadraticProblem, play

DATA = [
    (torch.randn(12, 2, generator=g), torch.randint(2, (12,), generator=g))
    for g in map(torch.Generator().manual_seed, range(3))
]


def reply(floats: list[float], integers: list[int]) -> Reply:
    return Reply({}, Buffers(torch.tensor(floats), torch.tensor(integers)))


def test_float_buffers_are_averaged_and_of_integer_buffers_the_maximum_is_taken() -> None:
    replies = [reply([2.0], [7, -5]), reply([4.0], [3, -1]), reply([8.0], [5, -9])]
    found = mean_of(replies, [1.0, 2.0, 1.0]).buffers
    assert found is not None
    assert found.floats.tolist() == [4.5]
    assert found.integers.tolist() == [7, -1]
    assert found.integers.dtype == torch.int64


def test_the_maximum_does_not_depend_on_who_answers_first() -> None:
    total = OrderedSum([0.25, 0.25, 0.5])
    replies = [reply([1.0], [1]), reply([1.0], [9]), reply([1.0], [4])]
    for place in (2, 1, 0):
        total.add(place, replies[place])
    assert total.reply.buffers is not None
    assert total.reply.buffers.integers.tolist() == [9]


def test_a_model_that_comes_before_its_turn_is_copied() -> None:
    """The worker that brings it goes on to its next client and overwrites it."""
    total, x = OrderedSum([0.25, 0.75]), torch.ones(2)
    total.add(1, Reply({"x": x}))
    x.fill_(8.0)
    total.add(0, Reply({"x": x}))
    assert total.reply.vectors["x"].tolist() == [2.75, 2.75]


class Counting(nn.Module):
    """A model that counts its batches by their size, so that clients count differently."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.linear(x)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_after_a_round_integer_buffers_are_those_of_the_client_that_counted_most() -> None:
    model = Counting()
    uneven = [(x[:size], y[:size]) for (x, y), size in zip(DATA, (2, 12, 4), strict=True)]
    with pytest.warns(UserWarning, match="fewer examples"):
        episode.fit(model, uneven, loss, algorithm="fedavg", eta=0.1, gamma=1.0, local_steps=3,
                    rounds=1, batch_size=12, workers=1)  # fmt: skip
    assert int(model.seen) == 3 * 12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_client_keeps_its_anchor_after_the_round(name: str) -> None:
    """It would be one more vector per client, and a wrong one in the next round."""
    task = QuadraticProblem.heterogeneous().task()
    engine = Simulation(task, ALGORITHMS[name], 1)
    rounds = Rounds(Plan(ALGORITHMS[name], Schedule(0.1, 0.1), 2, 3), task, engine)
    server = ServerState(*task.initial())
    for _ in range(2):
        rounds.play(server)
        assert all(state.anchor is None for state in engine.client_states().values())
    engine.close()


class Exploding(nn.Module):
    """A model with a buffer that leaves the finite numbers, although x does not."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.factor = factor
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("mask", torch.full((2,), -math.inf))

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= self.factor
        return self.linear(x)


@pytest.mark.parametrize(("factor", "status"), [(1e20, "diverged"), (1.0, "finished")])
def test_a_buffer_that_leaves_the_finite_numbers_ends_the_run_as_diverged(
    factor: float, status: str
) -> None:
    """A buffer that was infinite from the start, such as a mask, does not."""
    run = episode.fit(Exploding(factor), DATA, loss, algorithm="fedavg", eta=0.1, gamma=1.0,
                      local_steps=2, rounds=3, batch_size=12, workers=1)  # fmt: skip
    assert run.status == status
    if status == "diverged":
        assert run.summary["reason"] == "a buffer of the model is not finite in round 0"
        assert torch.isfinite(run.x).all()


def test_divergence_looks_at_buffers() -> None:
    played = play(QuadraticProblem.heterogeneous(), ALGORITHMS["fedavg"], 1)
    server, telemetry = played.server, played.telemetry[-1]
    before = ServerState(server.x, Buffers(torch.tensor([-math.inf, 1.0, math.nan])))
    server.buffers = Buffers(torch.tensor([-math.inf, 2.0, math.nan]))
    assert divergence(server, telemetry, before) is None
    assert divergence(server, telemetry) == "a buffer of the model is not finite"
    for value in (math.nan, math.inf, -math.inf):
        server.buffers = Buffers(torch.tensor([-math.inf, value, math.nan]))
        assert divergence(server, telemetry, before) == "a buffer of the model is not finite"
    server.buffers = Buffers(torch.tensor([math.inf, 1.0, math.nan]))
    assert divergence(server, telemetry, before) is not None


def test_the_buffers_of_the_model_are_part_of_every_evaluation() -> None:
    class Telling:
        def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
            return {"buffer": buffers.floats.item(), "x": x.item()}

        def evaluate_client(self, client: int, x: Tensor, buffers: Buffers) -> dict[str, float]:
            return {"buffer": client + buffers.floats.item(), "x": x.item()}

    engine, task = cast("Any", None), cast("Any", Telling())
    found = Engine.evaluate(engine, task, torch.ones(1), Buffers(torch.tensor([0.5])), [1, 2])
    by_client = {client: {"buffer": client + 0.5, "x": 1.0} for client in (1, 2)}
    assert found == Evaluation({"buffer": 0.5, "x": 1.0}, by_client)
