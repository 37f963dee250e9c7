"""Buffers of every type travel without rounding, and are written back in their own type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import EpisodeError
from episode.federation import checkpoint
from episode.federation.state import Buffers, ServerState
from episode.runs.records import Run
from episode.tasks.model_buffers import read_buffers, write_buffers
from episode.tasks.neural import NeuralTask

CLIENTS = 3
THIRD = 1 / 3  # no float type holds it


class Typed(nn.Module):
    """A linear model with buffers of all types; `moving` ones follow the data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        angles = torch.arange(5.0)
        self.register_buffer("rotary", torch.polar(torch.ones(5), angles))
        self.register_buffer("odd", torch.tensor([THIRD]))  # so that no pair begins evenly
        self.register_buffer(
            "wide_rotary", torch.polar(torch.ones(2).double(), angles[:2].double())
        )
        self.register_buffer("wide", torch.tensor([THIRD, 1e300], dtype=torch.float64))
        self.register_buffer("small", torch.tensor([THIRD], dtype=torch.float16))
        self.register_buffer("brain", torch.tensor([THIRD], dtype=torch.bfloat16))
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("moving", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("phase", torch.zeros(4, dtype=torch.complex64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.moving.copy_(x.double().mean(0) * THIRD)
            self.phase.copy_(torch.complex(x.mean(0), -x.mean(0)))
            self.seen += int(x.mean() > 0)
        return self.head(x)


def silos() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(20, 4, generator=g) + c - 0.5, torch.randn(20, generator=g))
        for c in range(CLIENTS)
    ]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]).squeeze(-1), batch[1])


def train(folder: Path | None = None, **changes: Any) -> Run:
    torch.manual_seed(0)
    options: dict[str, Any] = {"eta": 0.1, "gamma": 0.1, "local_steps": 1, "rounds": 2}
    options |= {"batch_size": 20, "folder": folder, **changes}
    return episode.fit(Typed(), silos(), loss, **options)


CONSTANT = ("rotary", "odd", "wide_rotary", "wide", "small", "brain", "mask", "flags")


def test_buffers_that_no_client_changes_stay_what_they_were() -> None:
    trained, before = dict(train().model.named_buffers()), dict(Typed().named_buffers())
    for name in CONSTANT:
        assert trained[name].dtype == before[name].dtype, name
        if before[name].dtype.itemsize < 8 or before[name].dtype == torch.complex64:
            assert torch.equal(trained[name], before[name]), name
        else:  # a mean over three clients, in float64
            assert torch.allclose(trained[name], before[name], rtol=1e-15, atol=0), name


@pytest.mark.parametrize("algorithm", ["episode", "fedavg", "scaffold", "parallel_sgd"])
def test_the_mean_of_float64_and_complex_buffers_is_not_rounded(algorithm: str) -> None:
    model = train(algorithm=algorithm).model
    assert isinstance(model, Typed)
    means = [x.double().mean(0) * THIRD for x, _ in silos()]
    expected = (means[0] + means[1] + means[2]) / 3
    assert torch.allclose(model.moving, expected, rtol=1e-14, atol=0)
    assert not torch.equal(model.moving, model.moving.float().double())
    real = torch.stack([x.mean(0) for x, _ in silos()]).mean(0)
    assert torch.allclose(model.phase, torch.complex(real, -real), rtol=1e-6, atol=0)


def test_of_integer_buffers_the_maximum_is_taken() -> None:
    model = train(rounds=1).model
    assert isinstance(model, Typed)
    # The first client's mean is below zero: its count stays at 0, and those of others rise to 1.
    assert [bool(x.mean() > 0) for x, _ in silos()] == [False, True, True]
    assert model.seen.item() == 1
    assert model.flags.tolist() == [True, False]


def test_buffers_of_the_parameters_own_type_travel_in_it() -> None:
    for dtype, expected in ((torch.float32, torch.float32), (torch.float64, torch.float64)):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)).to(dtype)
        data = [(x.to(dtype), y.to(dtype)) for x, y in silos()]
        task = NeuralTask(model, data, loss, batch_size=20)
        assert task.initial()[1].floats.dtype == expected
    assert NeuralTask(Typed(), silos(), loss, batch_size=20).initial()[1].floats.dtype == (
        torch.float64
    )


def test_buffers_are_read_and_written_without_loss() -> None:
    one, other = Typed(), Typed()
    with torch.no_grad():
        for buffer in other.buffers():
            buffer.zero_()
    write_buffers(other, read_buffers(one, torch.float64, torch.device("cpu")))
    for (name, a), b in zip(one.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b), name


class PowerCut(BaseException):
    """Stops a run in the middle."""


def test_a_stopped_run_goes_on_with_the_same_buffers(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise PowerCut

    whole = train(rounds=4)
    with pytest.raises(PowerCut):
        train(tmp_path, rounds=4, checkpoint_seconds=0, observe=stop)
    resumed = train(tmp_path, rounds=4, checkpoint_seconds=0)
    assert torch.equal(resumed.buffers.floats, whole.buffers.floats)
    assert torch.equal(resumed.x, whole.x)
    for (name, a), b in zip(whole.model.named_buffers(), resumed.model.buffers(), strict=True):
        assert torch.equal(a, b), name
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["wide"], whole.model.wide)
    assert torch.equal(stored["phase"], whole.model.phase)
    # safetensors has no complex128.
    assert torch.equal(torch.view_as_complex(stored["wide_rotary"]), whole.model.wide_rotary)


def test_a_checkpoint_holds_every_float_type(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        server = ServerState(
            torch.tensor([THIRD], dtype=dtype),
            Buffers(torch.tensor([THIRD], dtype=torch.float64), torch.tensor([3])),
        )
        path = tmp_path / f"{dtype}.safetensors"
        checkpoint.save(path, server, {}, "a run")
        found, _ = checkpoint.load(path, "a run", "cpu")
        assert torch.equal(found.x, server.x)
        assert found.x.dtype == dtype
        assert torch.equal(found.buffers.floats, server.buffers.floats)


def with_buffer(buffer: Tensor) -> nn.Module:
    model = nn.Linear(4, 1)
    model.register_buffer("extra", buffer)
    return model


def inference_buffer() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (torch.eye(3).to_sparse(), "The buffer extra is sparse"),
        (torch.ones(1).expand(4), "The buffer extra repeats elements in memory"),
        (torch.ones(3, device="meta"), "extra is on the meta device"),
        (inference_buffer(), "The buffer extra was made under torch.inference_mode"),
    ],
)
def test_buffers_that_cannot_be_averaged_are_refused_by_name(buffer: Tensor, message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        NeuralTask(with_buffer(buffer), silos(), loss, batch_size=20)


class Cached(nn.Module):
    """A model with a constant that is no state, and which a forward pass scribbles on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.register_buffer("constant", torch.tensor([THIRD, 1.1, 0.7]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(x) * self.constant.sum()
        self.constant += 0.1
        return found


def test_buffers_that_are_no_state_are_not_averaged_and_every_phase_begins_with_them() -> None:
    models = [Cached() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    runs = [
        episode.fit(
            model, silos(), loss, eta=0.1, gamma=0.1, local_steps=2, rounds=3, batch_size=20,
            workers=workers,
        )
        for model, workers in zip(models, (1, 3), strict=True)
    ]  # fmt: skip
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].buffers.nbytes == 0
    assert torch.equal(models[0].constant, Cached().constant)
