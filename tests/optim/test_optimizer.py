"""FederatedSGD: an ordinary optimizer for one process, the engine's trajectory for several."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from launch import PROGRAMS, ranks
from torch import Tensor, nn

from episode import AdamW, Algorithm, EpisodeError, Resampled, ServerSGD, Unclipped, Uncorrected
from episode.optim import FederatedSGD


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_it_walks_the_engines_trajectory(size: int) -> None:
    for ended in ranks(size, [str(PROGRAMS / "optimizer.py")]):
        assert ended.code == 0, ended.output
        assert "agrees" in ended.output


def quadratic(x: Tensor) -> Tensor:
    return (x * x * torch.arange(1, x.numel() + 1, dtype=x.dtype)).sum()


def train(optimizer: FederatedSGD, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        quadratic(x).backward()
        optimizer.step()


def test_alone_it_is_clipped_sgd() -> None:
    x = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    optimizer = FederatedSGD([x], lr=0.1, gamma=0.2, local_steps=3, algorithm="celgc")
    y = x.detach().clone()
    for _ in range(7):
        g = 2 * y * torch.tensor([1.0, 2.0], dtype=torch.float64)
        y = y - min(0.1, 0.2 / (float(g.norm()) + 1e-10)) * g
    train(optimizer, x, 7)
    assert torch.allclose(x.detach(), y, rtol=0, atol=1e-14)


def test_an_outer_step_is_taken_after_each_round_and_is_in_the_state() -> None:
    """By hand: v ← 0.5v + (x̄ - mean), x̄ ← x̄ - 0.3 v; stopped and loaded on the way."""
    x = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    outer = ServerSGD(0.3, 0.5)

    def made(x: Tensor, outer: Any) -> FederatedSGD:
        return FederatedSGD([x], lr=0.1, local_steps=2, algorithm="fedavg", outer=outer)

    train(first := made(x, outer), x, 5)
    again = made(x, {"name": "sgd", "rate": 0.3, "momentum": 0.5})
    again.load_state_dict(first.state_dict())
    train(again, x, 1)
    y, v = 3.0, 0.0
    for _ in range(3):
        v = 0.5 * v + (y - 0.8 * 0.8 * y)
        y -= 0.3 * v
    assert float(x.detach()) == pytest.approx(y, rel=1e-12)
    with pytest.raises(EpisodeError, match="There is no server 'adm': did you mean 'adam'"):
        made(x, "adm")


@pytest.mark.parametrize("stop", [0, 3])
def test_alone_with_adamw_it_is_torchs(stop: int) -> None:
    """With groups of their own rate and decay, and stopped on the way."""
    ours, theirs = ([nn.Parameter(torch.arange(1.0, 4.0)) for _ in range(2)] for _ in range(2))

    def groups(x: list[Any]) -> list[dict[str, Any]]:
        return [{"params": x[:1]}, {"params": x[1:], "lr": 0.05, "weight_decay": 0.0}]

    local = Algorithm(Uncorrected(), Unclipped(), AdamW(weight_decay=0.2))
    optimizer = FederatedSGD(groups(ours), lr=0.1, local_steps=2, algorithm=local)
    other = torch.optim.AdamW(groups(theirs), lr=0.1, weight_decay=0.2)
    for step in range(5):
        if stop and step == stop:
            stored = copy.deepcopy(optimizer.state_dict())
            optimizer = FederatedSGD(groups(ours), lr=0.1, local_steps=2, algorithm=local)
            optimizer.load_state_dict(stored)
        for x, stepped in ((ours, optimizer), (theirs, other)):
            stepped.zero_grad()
            sum(quadratic(p) for p in x).backward()
            stepped.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


def test_alone_episode_decides_once_a_round() -> None:
    x = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    optimizer = FederatedSGD([x], lr=0.1, gamma=0.2, local_steps=3)
    y = x.detach().clone()
    for step in range(9):
        g = 2 * y * torch.tensor([1.0, 2.0], dtype=torch.float64)
        if step % 3 == 0:
            clipped = float(g.norm()) > 0.2 / 0.1
        y = y - (0.2 / (float(g.norm()) + 1e-10) if clipped else 0.1) * g
    train(optimizer, x, 9)
    assert torch.allclose(x.detach(), y, rtol=0, atol=1e-14)


def test_schedulers_move_gamma_along() -> None:
    x = nn.Parameter(torch.tensor([30.0, 0.0], dtype=torch.float64))
    optimizer = FederatedSGD([x], lr=0.1, gamma=0.2, local_steps=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    places = [30.0]
    for _ in range(3):
        train(optimizer, x, 1)
        scheduler.step()
        places.append(float(x.detach()[0]))
    lengths = [a - b for a, b in itertools.pairwise(places)]
    assert lengths == pytest.approx([0.2, 0.1, 0.05], abs=1e-9)


def test_groups_step_in_proportion_to_their_rates() -> None:
    a, b = (nn.Parameter(torch.full((2,), 5.0, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [a]}, {"params": [b], "lr": 0.01, "weight_decay": 0.5}]
    optimizer = FederatedSGD(groups, lr=0.1, gamma=0.2, local_steps=2)
    (quadratic(a) + quadratic(b)).backward()
    optimizer.step()
    plain = 2 * 5.0 * torch.tensor([1.0, 2.0], dtype=torch.float64)
    decayed = plain + 0.5 * 5.0
    norm = float(torch.cat([plain, decayed]).norm())
    assert torch.allclose(a.detach(), 5 - 0.1 * 2.0 / norm * plain, rtol=0, atol=1e-9)
    assert torch.allclose(b.detach(), 5 - 0.01 * 2.0 / norm * decayed, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["episode", "scaffold_clipped", "episode_plus_plus", "celgc"])
def test_stored_in_the_middle_of_a_round_it_goes_on_the_same(name: str) -> None:
    def make() -> tuple[nn.Parameter, FederatedSGD]:
        x = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
        return x, FederatedSGD([x], 0.02, 0.05, 4, name, momentum=0.5)

    x, whole = make()
    train(whole, x, 11)
    y, first = make()
    train(first, y, 6)
    stored = copy.deepcopy(first.state_dict())
    z, second = make()
    with torch.no_grad():
        z.copy_(y)
    second.load_state_dict(stored)
    train(second, z, 5)
    assert torch.equal(x.detach(), z.detach())


def test_a_closure_and_a_fresh_probe_are_called_when_they_should_be() -> None:
    x = nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = FederatedSGD([x], 0.01, 0.05, 3)
    calls: list[str] = []

    def evaluate(name: str) -> Tensor:
        calls.append(name)
        optimizer.zero_grad()
        loss = quadratic(x)
        loss.backward()
        return loss

    for _ in range(4):
        loss = optimizer.step(lambda: evaluate("step"), probe=lambda: evaluate("probe"))
    assert loss.item() > 0
    assert calls == ["step", "probe", "step", "step", "step", "probe"]


def test_the_loops_gradients_are_left_as_they_were() -> None:
    x = nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = FederatedSGD([x], 0.01, 0.05, 3, momentum=0.9)
    quadratic(x).backward()
    before = x.grad.clone() if x.grad is not None else None
    optimizer.step(probe=lambda: quadratic(x).backward())
    assert torch.equal(x.grad, before)


def test_frozen_and_untouched_parameters_stay() -> None:
    moving, idle, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = FederatedSGD([moving, idle, frozen], 0.1, 0.1, 2)
    train(optimizer, moving, 4)
    assert not torch.equal(moving.detach(), torch.ones(2))
    assert torch.equal(idle.detach(), torch.ones(2))
    assert torch.equal(frozen, torch.ones(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0: it must be a number above 0"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"algorithm": "epsode"}, "did you mean 'episode'"),
        ({"algorithm": 3}, "algorithm is 3: give a name"),
        ({"algorithm": Algorithm(Resampled(), Unclipped()), "momentum": 0.5}, "Descent"),
        ({"momentum": 1.5}, "momentum is 1.5"),
        ({"lr": True}, "lr is True: it must be a number"),
        ({"lr": "0.1"}, "lr is '0.1': it must be a number"),
        ({"gamma": None}, "gamma is None: it must be a number"),
        ({"gamma": float("inf")}, "gamma is inf: it must be a number above 0"),
        ({"local_steps": True}, "local_steps is True: it must be a whole number"),
        ({"local_steps": 2.0}, "local_steps is 2.0: it must be a whole number"),
        ({"momentum": "x"}, "momentum is 'x'"),
        ({"nesterov": 3}, "nesterov is 3"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0: it must be 0 or more"),
        ({"weight_decay": "x"}, "weight_decay is 'x': it must be a number"),
        ({"weight_decay": True}, "weight_decay is True: it must be a number"),
        ({"buffers": torch.ones(3)}, r"buffers is a tensor of shape \[3\]: give model.buffers"),
        ({"buffers": nn.Linear(2, 1).buffers}, r"buffers is a.*: give model.buffers\(\)"),
        ({"buffers": [1.0]}, r"buffers is \[1.0\]: give model.buffers"),
        ({"process_group": 3}, "process_group is given, but there are no processes"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"lr": 0.1, "gamma": 0.1, "local_steps": 2, **arguments}
    with pytest.raises(EpisodeError, match=message):
        FederatedSGD([nn.Parameter(torch.ones(2))], **values)


def test_numbers_of_numpy_and_groups_at_rest_are_accepted() -> None:
    x, y = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [x]}, {"params": [y], "lr": 0.0}]
    optimizer = FederatedSGD(groups, np.float32(0.1), np.float64(0.1), np.int64(2))
    (quadratic(x) + quadratic(y)).backward()
    optimizer.step()
    assert not torch.equal(x.detach(), torch.ones(2))
    assert torch.equal(y.detach(), torch.ones(2))
    for wrong in ({"lr": "x"}, {"lr": -1.0}, {"weight_decay": None}):
        with pytest.raises(EpisodeError, match=f"{next(iter(wrong))} is"):
            FederatedSGD([{"params": [x], **wrong}], 0.1, 0.1, 1)


def test_parameters_that_it_cannot_train_are_refused_by_name() -> None:
    fine = nn.Parameter(torch.ones(2))
    complex_one = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(EpisodeError, match="spin is complex"):
        FederatedSGD([("weight", fine), ("spin", complex_one)], 0.1, 0.1, 1)
    double = nn.Parameter(torch.ones(2, dtype=torch.float64))
    with pytest.raises(EpisodeError, match=r"Parameter 1 of group 0, \[2\], is torch.float64"):
        FederatedSGD([fine, double], 0.1, 0.1, 1)
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = FederatedSGD(table.named_parameters(), 0.1, 0.1, 1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(EpisodeError, match="The gradient of weight is sparse"):
        optimizer.step()
    with pytest.raises(EpisodeError, match="gamma and momentum are for all"):
        FederatedSGD([{"params": [fine], "gamma": 3}], 0.1, 0.1, 1)


def test_training_alone_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = nn.Parameter(torch.ones(2))
    FederatedSGD([x], lr=0.1, gamma=0.2, local_steps=3)
    assert "trains alone and averages with nobody: there is no process group" in caplog.text
    monkeypatch.setenv("WORLD_SIZE", "4")
    FederatedSGD([x], lr=0.1, gamma=0.2, local_steps=3)
    assert "4 processes were started, but there is no process group" in caplog.text


def test_gamma_is_asked_for_where_it_is_used() -> None:
    x = nn.Parameter(torch.ones(2))
    FederatedSGD([x], lr=0.1, local_steps=3, algorithm="fedavg")
    with pytest.raises(EpisodeError, match="gamma is None: it must be a number"):
        FederatedSGD([x], lr=0.1, local_steps=3)
