"""The server's step along Δ = mean(x_i) - x̄_r, against torch and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from episode import ALGORITHMS, Algorithm, EpisodeError, ServerAdam, ServerMean, ServerSGD
from episode.core import SERVER_STEPS, ServerAdagrad, ServerAdamW, ServerStep, ServerYogi
from episode.core.fed_opt import FedOpt

MEANS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def walked(server: ServerStep) -> list[torch.Tensor]:
    """x̄ after each round, if the clients' mean were x̄ plus a given vector."""
    x, held = torch.ones(5, dtype=torch.float64), {}
    path = []
    for delta in MEANS:
        x = server.step(x, x + delta, held)
        path.append(x)
    return path


@pytest.mark.parametrize(
    ("server", "theirs"),
    [
        (ServerSGD(0.3), lambda p: torch.optim.SGD(p, 0.3)),
        (ServerSGD(0.3, 0.9), lambda p: torch.optim.SGD(p, 0.3, 0.9)),
        (ServerSGD(0.7, 0.9, True), lambda p: torch.optim.SGD(p, 0.7, 0.9, nesterov=True)),
        (ServerAdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1)),
    ],
    ids=["rate", "momentum", "nesterov", "adamw"],
)
def test_what_torch_has_is_torchs_with_minus_delta_for_a_gradient(
    server: ServerStep, theirs: Any
) -> None:
    p = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = theirs([p])
    for delta, x in zip(MEANS, walked(server), strict=True):
        p.grad = -delta
        optimizer.step()
        assert torch.allclose(p.detach(), x, rtol=1e-14)


def test_a_rate_of_1_without_momentum_is_the_mean_bit_for_bit() -> None:
    mean = torch.rand(5)
    for server in (ServerMean(), ServerSGD()):
        held: dict[str, torch.Tensor] = {}
        assert server.step(torch.rand(5), mean, held) is mean
        assert held == {}


@pytest.mark.parametrize(
    ("server", "expected"),
    [  # Δ = 2, then 1: m = 0.2, then 0.28; x̄ by hand
        (ServerAdam(1.0, start=0.0), 0.2 / (0.2 + 1e-3)),
        (ServerYogi(1.0, start=0.0), 0.2 / (0.2 + 1e-3)),
        (ServerAdagrad(1.0, beta1=0.9, start=0.0), 0.2 / (2 + 1e-3)),
        (ServerAdam(1.0, start=1.0), 0.2 / ((0.04 + 0.99e-6) ** 0.5 + 1e-3)),
        (ServerAdagrad(1.0), 2 / ((4 + 1e-6) ** 0.5 + 1e-3)),
    ],
    ids=str,
)
def test_the_first_adaptive_step_by_hand(server: ServerStep, expected: float) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(server.step(zero, zero + 2, {})) == pytest.approx(expected, rel=1e-12)


SECOND_MOMENTS = {
    ServerAdam: lambda v, square: 0.8 * v + 0.2 * square,
    ServerYogi: lambda v, square: v - 0.2 * square * (1 if v > square else -1),
    ServerAdagrad: lambda v, square: v + square,
}


@pytest.mark.parametrize("kind", SECOND_MOMENTS)
def test_adaptive_steps_follow_reddi_and_others_written_out(kind: type[FedOpt]) -> None:
    """Algorithm 2, from a point that is not zero, with steps that shrink and turn."""
    server = kind(rate=0.5, beta1=0.6, tau=0.01, start=2.0)
    server = server if kind is ServerAdagrad else replace(server, beta2=0.8)  # type: ignore[call-arg]
    found, held = torch.tensor([3.0], dtype=torch.float64), {}
    x, m, v = 3.0, 0.0, 2.0 * 0.01**2
    for delta in (2.0, -0.5, 0.25, 1.0):
        found = server.step(found, found + delta, held)
        m = 0.6 * m + 0.4 * delta
        v = SECOND_MOMENTS[kind](v, delta**2)
        x += 0.5 * m / (v**0.5 + 0.01)
        assert float(found) == pytest.approx(x, rel=1e-12)


def test_yogi_forgets_slowly_where_adam_forgets_fast() -> None:
    """After a Δ of 10 and then of 0.1, Yogi's v falls by (1 - β2) · 0.01, Adam's by 1%."""
    for server, expected in ((ServerYogi(), 1.0 - 1e-4), (ServerAdam(), 0.99 + 1e-4)):
        zero, held = torch.zeros(1, dtype=torch.float64), {}
        server.step(zero, zero + 10, held)
        server.step(zero, zero + 0.1, held)
        assert float(held["v"]) == pytest.approx(expected, rel=1e-5)


def test_yogi_stays_where_v_is_right_already() -> None:
    held: dict[str, torch.Tensor] = {}
    ServerYogi(tau=1.0, start=4.0).step(torch.zeros(1), torch.full((1,), 2.0), held)
    assert held["v"].tolist() == [4.0]


@pytest.mark.parametrize("name", SERVER_STEPS)
def test_a_step_leaves_its_arguments_as_they_were(name: str) -> None:
    """An attempt at a round may be repeated, and the last finite model must stay."""
    server, x, mean, held = SERVER_STEPS[name](), torch.zeros(3), torch.ones(3), {}
    server.step(x, mean, held)
    before = {key: value.clone() for key, value in held.items()}
    kept = dict(held)
    server.step(x, mean, held)
    assert (x.tolist(), mean.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert all(torch.equal(kept[key], before[key]) for key in before)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"name": "sgd", "rate": 0.0}, "server.rate is 0.0: it must be a number above 0"),
        ({"name": "adam", "rate": -1}, "server.rate is -1"),
        ({"name": "sgd", "momentum": 1.0}, "server.momentum is 1.0: it must be at least 0"),
        ({"name": "sgd", "nesterov": True}, "looks ahead along the momentum"),
        ({"name": "yogi", "beta1": 1.0}, "server.beta1 is 1.0: it must be at least 0 and below 1"),
        ({"name": "adam", "beta2": -0.1}, "server.beta2 is -0.1"),
        ({"name": "adagrad", "beta2": 0.9}, "There is no setting 'algorithm.server.beta2'"),
        ({"name": "adam", "tau": 0}, "server.tau is 0"),
        ({"name": "adam", "start": -1}, "server.start is -1.0: it must be 0 or more"),
        ({"name": "adamw", "rate": 0}, "server.rate is 0"),
        ({"name": "adamw", "beta1": 1}, "server.beta1 is 1"),
        ({"name": "adamw", "beta2": 1}, "server.beta2 is 1"),
        ({"name": "adamw", "eps": 0}, "server.eps is 0"),
        ({"name": "adamw", "weight_decay": -1}, "server.weight_decay is -1"),
        ({"name": "adam", "rate": "fast"}, "algorithm.server.rate is 'fast': it must be a number"),
        ("adm", "There is no server 'adm': did you mean 'adam'"),
        ({"rate": 0.1}, "The algorithm has no server: set algorithm.server to one of adagrad"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_one_sentence(server: Any, says: str) -> None:
    with pytest.raises(EpisodeError, match=r"^[^\n]*$") as caught:
        Algorithm.named("fedavg", server=server)
    assert says in str(caught.value)


def test_a_server_step_has_no_meaning_without_local_steps() -> None:
    for name in ("naive_parallel_clip", "parallel_sgd"):
        with pytest.raises(EpisodeError, match="ServerAdam steps along the mean of local steps"):
            Algorithm.named(name, server="adam")


def test_some_fields_of_a_named_server_step_can_be_changed() -> None:
    server = Algorithm.named("fedadam", server={"rate": 0.5}).server
    assert server == ServerAdam(rate=0.5)
    assert Algorithm.named("fedavgm", server={"name": "adam", "rate": 1}).server == ServerAdam(1)
    assert Algorithm.named("fedadam", server="mean") == ALGORITHMS["fedavg"]


def test_a_run_without_a_server_step_is_described_as_it_was_before_there_were_any() -> None:
    assert "server" not in ALGORITHMS["episode"].to_dict()
