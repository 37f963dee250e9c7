"""What a client does in a phase, on a toy objective with numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from episode import ALGORITHMS, AdamW, Algorithm, PerStep, Remembered
from episode.core import Unclipped, Uncorrected
from episode.federation.protocols import Draw, Objective, Reply
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import REPEAT, ReplyForm, Worker


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Toy(Objective):
    """Each batch has the gradient (3, 4) times one more than its index, and its index as loss."""

    def __init__(self) -> None:
        self.x = self.blocks = vector(0, 0)
        self.drawn: list[Draw] = []

    def gradient(self, draw: Draw) -> tuple[Tensor, Tensor]:
        self.drawn.append(draw)
        index = draw.index % REPEAT
        return torch.tensor(float(index)), vector(3, 4) * (index + 1)

    def buffers(self) -> Buffers:
        return Buffers(torch.tensor([float(len(self.drawn))]))


def worker(name: str | Algorithm, **options: Any) -> tuple[Worker, Toy]:
    toy = Toy()
    return Worker(toy, Algorithm.named(name, **options)), toy


def probe(of: Worker, state: ClientState, *, client: int = 3, **given: Any) -> Reply:
    values = {"round": 0, "x": vector(0, 0), "buffers": Buffers()}
    return of.probe(client, state, **{**values, **given})


def local(of: Worker, state: ClientState, *, client: int = 3, **given: Any) -> Reply:
    """Two steps from 0 with η = 0.1; γ = 0.6 clips the second, whose gradient is (6, 8)."""
    values = {"round": 0, "x": vector(0, 0), "buffers": Buffers(), "G": None, "G_norm": math.nan}
    values |= {"eta": 0.1, "gamma": 0.6, "local_steps": 2}
    return of.local(client, state, **{**values, **given})


def test_a_probe_averages_fresh_batches_of_its_own_stream() -> None:
    of, toy = worker("episode", probe_batches=2)
    state = ClientState()
    reply = probe(of, state, round=2, batches=2)
    assert toy.drawn == [Draw(3, "probe", 4), Draw(3, "probe", 5)]
    assert reply.vectors["gradient"].tolist() == [16.5, 22]
    assert reply.metrics["loss"].item() == 4.5
    toy.drawn.clear()
    probe(of, state, round=2, batches=2, repeat=3)
    assert toy.drawn == [Draw(3, "probe", 3 * REPEAT + 4), Draw(3, "probe", 3 * REPEAT + 5)]


@pytest.mark.parametrize(
    ("name", "given", "kept", "sends_buffers"),
    [
        ("episode", {}, "anchor", False),
        ("episode_plus_plus", {"memorise": True}, "memory", False),
        ("parallel_sgd", {}, "", True),
    ],
)
def test_a_probe_is_kept_as_the_anchor_or_the_first_memory(
    name: str, given: dict[str, Any], kept: str, sends_buffers: bool
) -> None:
    of, toy = worker(name)
    state = ClientState()
    reply = probe(of, state, **given)
    assert toy.drawn == [Draw(3, "probe", 0)]
    assert reply.vectors["gradient"].tolist() == [3, 4]
    assert (reply.buffers is not None) is sends_buffers
    held = {name for name, value in vars(state).items() if value is not None}
    assert held == ({kept} if kept else set())


def test_local_steps_draw_the_rounds_batches_one_after_another() -> None:
    of, toy = worker("fedavg")
    reply = local(of, ClientState(), round=5)
    assert toy.drawn == [Draw(3, "local", 10), Draw(3, "local", 11)]
    assert torch.allclose(reply.vectors["x"], -0.1 * 23 * vector(3, 4))
    toy.drawn.clear()
    local(of, ClientState(), round=5, repeat=1)
    assert [draw.index - REPEAT for draw in toy.drawn] == [10, 11]


def test_metrics_of_local_steps_are_means_shares_and_extremes() -> None:
    of, _ = worker("celgc")
    metrics = local(of, ClientState(), gamma=0.6, local_steps=3).metrics
    assert metrics["loss"].item() == 1
    assert metrics["clipped"] == pytest.approx(2 / 3)
    assert metrics["largest_norm"] == pytest.approx(15)
    assert metrics["drift"] == pytest.approx(0.5 + 2 * 0.6)
    assert metrics.keys() == {"loss", "clipped", "largest_norm", "drift"}
    of, _ = worker("fedavg")
    assert local(of, ClientState()).metrics["largest_norm"] is None


def test_losses_of_many_runs_at_once_are_averaged_over_steps_alone() -> None:
    class Two(Toy):
        def gradient(self, draw: Draw) -> tuple[Tensor, Tensor]:
            loss, gradient = super().gradient(draw)
            return torch.stack([loss, loss + 10]), gradient

    of = Worker(Two(), ALGORITHMS["fedavg"])
    assert local(of, ClientState()).metrics["loss"].tolist() == [0.5, 10.5]


def test_one_in_k_clients_measures_its_first_correction() -> None:
    of, _ = worker("episode_unclipped")
    for client, measures in ((0, False), (1, True), (2, False), (3, False), (4, True)):
        state = ClientState(anchor=vector(1, 0))
        given = {"G": vector(1, 2), "round": 2, "measure_every": 3}
        metrics = local(of, state, client=client, **given).metrics
        expected = [2, 25] if measures else [None, None]
        assert [metrics["correction_norm"], metrics["gradient_norm"]] == expected
    given = {"G": vector(1, 2), "measure_every": 1}
    assert local(of, ClientState(anchor=vector(1, 0)), **given).metrics["correction_norm"] == 2
    of, _ = worker("fedavg")
    metrics = local(of, ClientState(), client=1, round=2, measure_every=3).metrics
    assert metrics["correction_norm"] is metrics["gradient_norm"] is None


def test_trust_is_measured_in_each_step_against_the_deviation() -> None:
    """D = G_i - G = (12, 0): of it the gradients hold 3/12 and 6/12."""
    of, _ = worker("episode_trust", trust={"full_from": 1.0})
    state = ClientState(anchor=vector(12, 0))
    reply = local(of, state, G=vector(0, 0), G_norm=0.0, gamma=1e9)
    assert (reply.metrics["trust"], reply.metrics["least_trust"]) == (0.375, 0.25)
    assert torch.allclose(reply.vectors["x"], vector(0, -1.2))
    assert state.anchor is None


@pytest.mark.parametrize(
    ("G_norm", "lifetime", "second"),
    [(8.0, 2.0, 0.25), (1.5, 2.0, 0.4375), (0.0, 2.0, 0.5), (3.0, 1.0, 0.375)],
)
def test_a_correction_ages_by_the_length_of_a_step_along_the_global_gradient(
    G_norm: float, lifetime: float, second: float
) -> None:
    """γ/η = 6 and ‖D‖ = 12: a step counts ‖G_r‖/6, with a lifetime of 1 ‖G_r‖/12."""
    of, _ = worker("episode_trust", trust={"full_from": 1.0, "lifetime": lifetime})
    given = {"G": vector(0, 0), "G_norm": G_norm, "gamma": 0.6}
    reply = local(of, ClientState(anchor=vector(12, 0)), **given)
    assert reply.metrics["trust"] == pytest.approx((0.25 + second) / 2, rel=1e-6)


def test_a_reused_probe_is_the_first_gradient_and_believed_in_full() -> None:
    of, toy = worker("episode_trust", trust={"full_from": 1.0}, reuse_probe=True)
    state = ClientState(anchor=vector(12, 0))
    reply = local(of, state, G=vector(0, 0), G_norm=0.0, gamma=1e9)
    assert toy.drawn == [Draw(3, "local", 1)]
    assert reply.metrics["trust"] == (1 + 0.5) / 2
    assert reply.metrics["loss"].item() == 1
    state = ClientState(anchor=vector(12, 0))
    assert local(of, state, G=vector(0, 0), G_norm=0.0, local_steps=1).metrics["loss"] is None


def test_a_memory_is_the_mean_raw_gradient_and_its_change_is_sent() -> None:
    of, _ = worker(Algorithm(Remembered(), PerStep()))
    state = ClientState(memory=vector(1, 1))
    reply = local(of, state, G=vector(5, 5), gamma=1e9)
    assert state.memory is not None
    assert state.memory.tolist() == [4.5, 6]
    assert reply.vectors["change"].tolist() == [3.5, 5]
    assert torch.allclose(reply.vectors["x"], -0.1 * vector(9 + 2 * 4, 12 + 2 * 4))


def test_a_proximal_term_pulls_local_steps_but_not_the_memory() -> None:
    """The second step feels μ(x - x̄_r) = 0.5 · (-0.3, -0.4)."""
    of, _ = worker("scaffold", proximal=0.5)
    state = ClientState()
    x = vector(7, 7)
    reply = local(of, state, x=x)
    assert torch.allclose(reply.vectors["x"] - x, -0.1 * vector(9 - 0.15, 12 - 0.2))
    assert state.memory is not None
    assert state.memory.tolist() == [4.5, 6]


@pytest.mark.parametrize("moments", ["kept", "reset"])
def test_moments_are_counted_and_kept_or_forgotten(moments: str) -> None:
    descent = AdamW(beta1=0.5, beta2=0.5, moments=moments)  # type: ignore[arg-type]
    of, _ = worker(Algorithm(Uncorrected(), Unclipped(), descent))
    state = ClientState()
    local(of, state)
    if moments == "reset":
        assert state == ClientState()
        return
    assert state.velocity is not None
    assert state.second is not None
    assert state.steps is not None
    assert torch.allclose(state.velocity, vector(3, 4) * (0.25 + 2 * 0.5))
    assert torch.allclose(state.second, vector(9, 16) * (0.25 + 4 * 0.5))
    assert (state.steps.tolist(), state.steps.dtype) == ([2], torch.int64)
    local(of, state)
    assert state.steps.tolist() == [4]
    assert ClientState.of(state.tensors()) == state


def test_momentum_is_kept_by_the_client() -> None:
    of, _ = worker("fedavg", momentum=0.5)
    state = ClientState()
    local(of, state)
    assert state.velocity is not None
    assert state.velocity.tolist() == [7.5, 10]
    local(of, state, local_steps=1)
    assert state.velocity.tolist() == [6.75, 9]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("measure_every", [0, 2])
def test_the_form_of_a_reply_is_known_in_advance(name: str, measure_every: int) -> None:
    def form(reply: Reply) -> ReplyForm:
        return ReplyForm(tuple(reply.vectors), reply.buffers is not None, tuple(reply.metrics))

    algorithm = ALGORITHMS[name]
    of, _ = worker(name)
    rule, state = algorithm.correction, ClientState()
    if rule.probes:
        assert form(probe(of, state)) == ReplyForm.of(algorithm, "probe")
    if rule.remembers:
        reply = probe(of, state, memorise=True)
        assert form(reply) == ReplyForm.of(algorithm, "probe", memorise=True)
    if rule.steps_locally:
        G = vector(1, 1) if rule.has_global else None
        reply = local(of, state, G=G, measure_every=measure_every)
        assert form(reply) == ReplyForm.of(algorithm, "local", measure_every=measure_every)
    if not measure_every:
        assert ReplyForm.of(algorithm, "local", False, 0) == ReplyForm.of(algorithm, "local")
