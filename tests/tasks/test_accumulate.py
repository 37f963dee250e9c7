"""Batches in parts: the gradient of the whole, with the memory of a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import EpisodeError
from episode.core.vectors import blocks_of
from episode.data.forms import Columns
from episode.federation.protocols import Draw
from episode.optim import FederatedSGD
from episode.runs.config import Experiment
from episode.runs.trainer import job_of
from episode.tasks.neural import NeuralTask


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch.values() if isinstance(batch, dict) else batch
    return F.cross_entropy(model(x), y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(size: int = 24) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(size, 4, generator=g).double(), torch.randint(3, (size,), generator=g)


def gradient(client: Any, accumulate: int, **options: Any) -> tuple[Tensor, Tensor]:
    options = {"loss": loss, "batch_size": 12, **options}
    task = NeuralTask(network(), [client], accumulate=accumulate, **options)
    value, blocks = task.objective().gradient(Draw(0, "local", 1))
    return value, torch.cat([b.reshape(-1) for b in blocks_of(blocks)])


FORMS = {
    "tensors": data(),
    "columns": Columns(dict(zip("xy", data(), strict=True))),
    "examples": list(zip(*data(), strict=True)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accumulate", [2, 3, 12])
def test_parts_have_the_gradient_of_the_whole_batch(form: str, accumulate: int) -> None:
    whole, parts = gradient(FORMS[form], 1), gradient(FORMS[form], accumulate)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore:.*fewer examples than a batch")
@pytest.mark.parametrize("size", [2, 5, 7])
def test_unequal_parts_of_a_small_client_count_by_their_examples(size: int) -> None:
    whole, parts = gradient(data(size), 1), gradient(data(size), 4)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_a_loss_sees_no_more_than_a_part() -> None:
    seen: list[int] = []

    def watched(model: nn.Module, batch: Any) -> Tensor:
        seen.append(len(batch[0]))
        return loss(model, batch)

    gradient(data(), 4, loss=watched)
    assert seen == [3] * 5  # one to try the loss


def test_each_part_has_random_numbers_of_its_own_that_repeat() -> None:
    masks: list[Tensor] = []

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        masks.append(torch.rand(3))
        return loss(model, batch)

    first = gradient(data(), 3, loss=noisy)
    torch.rand(5)
    again = gradient(data(), 3, loss=noisy)
    assert torch.equal(first[1], again[1])
    assert all(map(torch.equal, masks[1:4], masks[5:]))  # without those of trials
    assert len({tuple(mask.tolist()) for mask in masks[1:4]}) == 3


def test_a_run_in_parts_is_the_run_in_whole_batches_to_rounding(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eta": 0.5, "gamma": 0.1, "local_steps": 3, "rounds": 4}
    settings |= {"batch_size": 12, "algorithm": "episode"}
    whole = episode.fit(network(), [data(), data(36)], loss, **settings)
    folder = tmp_path / "run"
    parts = episode.fit(
        network(), [data(), data(36)], loss, accumulate=4, folder=folder, **settings
    )
    torch.testing.assert_close(whole.x, parts.x, rtol=1e-11, atol=1e-13)
    with pytest.raises(EpisodeError, match=r"they differ in task\.accumulate"):
        episode.fit(network(), [data(), data(36)], loss, folder=folder, **settings)


@pytest.mark.parametrize(("given", "message"), [
    (5, "accumulate is 5, but a batch of 12 has no 5 equal parts: choose a number that divides"),
    (24, "accumulate is 24, but a batch of 12 has no 24 equal parts"),
    (0, "accumulate is 0: it must be 1 or more"),
    (1.5, "accumulate is 1.5: it must be a whole number"),
])  # fmt: skip
def test_parts_that_a_batch_does_not_have_are_refused(given: Any, message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        gradient(data(), given)


def test_a_config_can_ask_for_parts_and_stays_the_same_without() -> None:
    values: dict[str, Any] = {"task": {"name": "digits", "num_clients": 2, "batch_size": 32}}
    plain = Experiment.from_dict(values)
    assert "accumulate" not in plain.to_dict()["task"]
    values["task"]["accumulate"] = 4
    task = job_of(Experiment.from_dict(values)).task
    _, parts = task.objective().gradient(Draw(1, "local", 0))
    _, whole = job_of(plain).task.objective().gradient(Draw(1, "local", 0))
    for one, other in zip(blocks_of(parts), blocks_of(whole), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    values["task"]["accumulate"] = 5
    with pytest.raises(EpisodeError, match="a batch of 32 has no 5 equal parts"):
        job_of(Experiment.from_dict(values))


@pytest.mark.filterwarnings("ignore:.*trains alone")
def test_the_optimizer_takes_a_step_along_all_parts_that_were_differentiated() -> None:
    ends = []
    for parts in (1, 3):
        model = network()
        optimizer = FederatedSGD(model.parameters(), lr=0.5, gamma=0.1, local_steps=2)
        for _ in range(4):
            optimizer.zero_grad()
            for x, y in zip(*(t.chunk(parts) for t in data()), strict=True):
                (loss(model, (x, y)) / parts).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-11, atol=1e-13)
