"""The batched engine: what it refuses, and that it goes on from the states of its clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from episode import Algorithm, EpisodeError, Schedule, Uniform
from episode.engines.batched import Batched
from episode.federation.protocols import Draw, Objective
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ServerState
from episode.tasks.synthetic import Quartics

SCAFFOLD = Algorithm.named("scaffold_clipped", momentum=0.5)


def start(algorithm: Algorithm, **options: Any) -> tuple[Rounds, ServerState, Batched]:
    """Return three runs of two clients each, before their first round."""
    task = Quartics([1.0, 2.0, 4.0], 1.0, seeds=(0,), grid=True)
    engine = Batched(task.all_clients((3, 1, task.num_clients, 1)), algorithm)
    plan = Plan(algorithm, Schedule(0.01, 0.05), 6, local_steps=3, measure_every=1, **options)
    return Rounds(plan, task, engine), ServerState(task.x_0.expand(3, 1, 1).clone()), engine


def test_a_batch_that_is_stopped_goes_on_from_its_states() -> None:
    whole, server, _ = start(SCAFFOLD)
    for _ in range(6):
        whole.play(server)
    first, half, engine = start(SCAFFOLD)
    for _ in range(3):
        first.play(half)
    second, _, another = start(SCAFFOLD)
    another.load_client_states(engine.client_states())
    for _ in range(3):
        second.play(half)
    assert torch.equal(half.x, server.x)
    assert torch.unique(half.x).numel() == 3


def test_clients_of_which_only_some_take_part_are_refused() -> None:
    rounds, server, _ = start(SCAFFOLD, cohorts=Uniform(1))
    with pytest.raises(EpisodeError, match="needs every client each round: use simulation"):
        rounds.play(server)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"weighting": "examples"}, "uniform weighting only"), ({"descent": "adamw"}, "no AdamW")],
)
def test_what_it_does_not_offer_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(EpisodeError, match=f"The batched engine .*{reason}: use simulation"):
        start(Algorithm.named("fedavg", **options))


class Slopes(Objective):
    """All clients at once: the gradient of client c is its slope, and the loss its number."""

    def __init__(self, *leading: int) -> None:
        self.slopes = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
        self.x = self.blocks = torch.zeros(*leading, 3, 4, dtype=torch.float64)
        self.draws: list[Draw] = []

    def gradient(self, draw: Draw) -> tuple[Tensor, Tensor]:
        self.draws.append(draw)
        return torch.arange(3.0).expand(self.x.shape[:-1]), self.slopes.expand_as(self.x).clone()


@pytest.mark.parametrize("leading", [(), (5,), (2, 5)])
def test_means_are_taken_over_the_clients_whatever_stands_before_them(
    leading: tuple[int, ...],
) -> None:
    objective = Slopes(*leading)
    engine = Batched(objective, Algorithm.named("episode_unclipped"))
    x = torch.randn(*leading, 4, dtype=torch.float64)
    sent: dict[str, Any] = {"weights": [1.0] * 3, "round": 2, "x": x, "buffers": Buffers()}
    reply = engine.average("probe", range(3), **sent)
    G = objective.slopes.mean(0).expand_as(x)
    assert torch.equal(reply.vectors["gradient"], G)
    (loss,) = reply.metrics["loss"]
    assert loss.tolist() == torch.arange(3.0).expand(*leading, 3).tolist()
    eta = torch.full((*leading, 1), 0.5, dtype=torch.float64)
    steps = {"eta": eta, "gamma": eta, "G": G, "G_norm": G.norm(dim=-1, keepdim=True)}
    reply = engine.average("local", range(3), **sent, **steps, local_steps=2)
    assert torch.allclose(reply.vectors["x"], x - G)
    assert {draw.client for draw in objective.draws} == {0}
    with pytest.raises(EpisodeError, match="needs every client each round"):
        engine.average("probe", range(4), **sent)
