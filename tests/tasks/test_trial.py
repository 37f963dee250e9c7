"""What cannot be trained is one sentence before training; what is unusual but sound works."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import episode
from episode import EpisodeError
from episode.core import ALGORITHMS
from episode.engines.simulation import Simulation
from episode.runs.records import Run
from episode.tasks.neural import NeuralTask


def silos(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(20, 4, generator=g).to(dtype), torch.randn(20, generator=g).to(dtype))
        for _ in range(3)
    ]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]).squeeze(-1).float(), batch[1].float())


def fit(model: nn.Module, clients: Any = None, loss: Any = loss, **more: Any) -> Run:
    options: dict[str, Any] = {"eta": 0.1, "gamma": 0.1, "local_steps": 2, "rounds": 2}
    options |= {"batch_size": 10, **more}
    return episode.fit(model, silos() if clients is None else clients, loss, **options)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


OTHER = nn.Linear(4, 1)
CONSTANT = torch.ones(1, requires_grad=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m, b: loss(OTHER, b), "does not depend on the model's trainable parameters"),
        (lambda m, b: 2 * CONSTANT.sum(), "does not depend on the model's trainable parameters"),
        (lambda m, b: m(b[0]).detach().sum() + CONSTANT.sum(), "does not depend on the model's"),
        (lambda m, b: m(b[0]).mean() * 1j, "The loss is a complex number"),
    ],
    ids=["another model", "constant", "detached", "complex"],
)
def test_a_loss_that_would_train_nothing_is_refused(
    wrong: Callable[[nn.Module, Any], Tensor], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        fit(nn.Linear(4, 1), loss=wrong)


def test_a_loss_that_uses_the_users_own_model_is_refused() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(EpisodeError, match="does not depend on"):
        fit(model, loss=lambda m, b: loss(model, b))
    with pytest.raises(EpisodeError, match="A part of the loss is computed from the model that"):
        fit(model, loss=lambda m, b: loss(m, b) + model.weight.square().sum())


def test_parameters_outside_the_model_are_a_warning() -> None:
    head = nn.Linear(1, 1)
    with pytest.warns(UserWarning, match="uses 2 trainable parameters that are not the model's"):
        fit(nn.Linear(4, 1), loss=lambda m, b: F.mse_loss(head(m(b[0])).squeeze(-1), b[1]))
    head.requires_grad_(False)
    fit(nn.Linear(4, 1), loss=lambda m, b: F.mse_loss(head(m(b[0])).squeeze(-1), b[1]))


class DeadAtFirst(nn.Module):
    """Its gradient is zero, because no ReLU is active, but its graph reaches all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 4)
        nn.init.constant_(self.hidden.bias, -1e3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.hidden(x)).mean(-1)


class OneOfTwo(nn.Module):
    """Each batch uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.mean() > 0 else self.b(x)


def test_gradients_that_are_zero_for_a_reason_are_not_refused() -> None:
    assert fit(DeadAtFirst()).status == "finished"
    assert fit(OneOfTwo()).status == "finished"

    def penalised(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        return loss(model, (x, batch[1])) + slope.square().mean()

    assert fit(nn.Linear(4, 1), loss=penalised).status == "finished"


def test_the_trial_leaves_random_numbers_and_buffers_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    before = torch.get_rng_state()
    task = NeuralTask(model, silos(), loss, batch_size=10)
    assert torch.equal(torch.get_rng_state(), before)
    assert task.draws_random_numbers
    assert task.initial()[1].floats[:4].abs().sum() == 0
    assert all(p.grad is None for p in model.parameters())


def test_random_numbers_that_only_the_gradient_draws_are_noticed() -> None:
    class NoisyGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient + 0.01 * torch.randn_like(gradient)

    noisy = NeuralTask(
        nn.Linear(4, 1), silos(), lambda m, b: NoisyGradient.apply(loss(m, b)), batch_size=10
    )
    assert noisy.draws_random_numbers
    assert not noisy.takes_turns


class Recomputed(nn.Module):
    """A layer that is computed again for the gradient, behind one that draws random numbers."""

    def __init__(self, preserve: bool) -> None:
        super().__init__()
        self.drop, self.line, self.preserve = nn.Dropout(0.5), nn.Linear(4, 1), preserve

    def forward(self, x: Tensor) -> Tensor:
        options = {"use_reentrant": False, "preserve_rng_state": self.preserve}
        return checkpoint(lambda y: self.line(y).tanh(), self.drop(x), **options)


def test_workers_share_torchs_generator_only_if_gradients_leave_it_alone(monkeypatch) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 3)
    dropout = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
    expected = [(nn.Linear(4, 1), 3), (dropout, 3), (Recomputed(False), 3), (Recomputed(True), 1)]
    fork = torch.random.fork_rng
    for model, workers in expected:
        task = NeuralTask(model, silos(), loss, batch_size=10)
        with closing(Simulation(task, ALGORITHMS["episode"])) as engine:
            assert engine.workers == min(workers, task.num_clients)
    assert torch.random.fork_rng is fork


def test_gradient_hooks_that_do_not_run_are_told() -> None:
    model = nn.Linear(4, 1)
    model.weight.register_hook(lambda g: 0 * g)
    with pytest.warns(UserWarning, match="The gradient hooks of weight do not run here"):
        fit(model)
    model = nn.Linear(4, 1)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.warns(UserWarning, match="The gradient hooks of weight and 1 more do not run"):
        fit(model)


def test_hooks_of_modules_do_run() -> None:
    plain, hooked = nn.Linear(4, 1), nn.Linear(4, 1)
    before = vector(plain), vector(hooked)
    hooked.register_forward_hook(lambda module, inputs, output: 0 * output)
    fit(plain)
    fit(hooked)
    assert not torch.allclose(vector(plain), before[0])
    assert torch.allclose(vector(hooked), before[1])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64]
)
def test_data_of_any_type_can_be_trained_on_and_are_told_apart(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    def run(clients: Any) -> Run:
        torch.manual_seed(0)
        return fit(
            nn.Linear(4, 1),
            clients,
            lambda m, b: loss(m, [t.to(torch.complex64).real for t in b]),
            folder=tmp_path,
        )

    assert run(silos(dtype)).status == "finished"
    other = [(-x.to(torch.complex64).real).to(dtype) for x, _ in silos(dtype)]
    with pytest.raises(EpisodeError, match=r"they differ in task\.data"):
        run([(x, y) for x, (_, y) in zip(other, silos(dtype), strict=True)])


def test_sparse_data_can_be_trained_on() -> None:
    clients = [(x.relu().to_sparse(), y) for x, y in silos()]
    run = fit(nn.Linear(4, 1), clients, lambda m, b: loss(m, (b[0].to_dense(), b[1])))
    assert run.status == "finished"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_of_another_precision_is_stored_and_read_back(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    scaffold = episode.Algorithm.named("scaffold", momentum=0.5)
    model = nn.Linear(4, 1).to(dtype)
    start = {name: t.clone() for name, t in model.state_dict().items()}
    first = fit(model, silos(dtype), algorithm=scaffold, folder=tmp_path)
    model.load_state_dict(start)
    again = fit(model, silos(dtype), algorithm=scaffold, folder=tmp_path)
    assert first.x.dtype == dtype
    assert torch.equal(first.x, again.x)


def old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


def pruned(after_forward: bool) -> nn.Module:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, 2.0, -0.1, 3.0]]))
    prune.l1_unstructured(model, "weight", amount=2)
    if after_forward:
        model(torch.ones(1, 4))
    return model


def spectral_after_forward() -> nn.Module:
    model = nn.utils.spectral_norm(nn.Linear(4, 1))
    model(torch.ones(1, 4))
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: old_weight_norm(nn.Linear(4, 1)),
        lambda: parametrizations.weight_norm(nn.Linear(4, 1)),
        lambda: parametrizations.spectral_norm(nn.Linear(4, 1)),
        lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
        spectral_after_forward,
        lambda: pruned(False),
        lambda: pruned(True),
    ],
    ids=["old weight_norm", "weight_norm", "spectral_norm", "orthogonal", "old spectral_norm",
         "pruned", "pruned after a pass"],
)  # fmt: skip
def test_parametrized_models_are_trained_and_stored(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    def mean_loss(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]).mean(-1), batch[1])

    torch.manual_seed(0)
    model = make()
    before = vector(model)
    assert fit(model, loss=mean_loss, folder=tmp_path).status == "finished"
    assert not torch.allclose(vector(model), before)
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(stored[n], t) for n, t in model.state_dict().items())


def test_pruned_weights_stay_pruned_and_the_model_computes_with_the_others() -> None:
    model = pruned(True)
    fit(model)
    x = torch.ones(3, 4)
    weight = model.weight_orig * torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    assert torch.allclose(model(x), F.linear(x, weight, model.bias))


class Recomputes(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 1), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return self.last(checkpoint(self.first, x, use_reentrant=self.reentrant))


def test_reentrant_checkpoints_which_hide_parameters_are_refused() -> None:
    with pytest.raises(EpisodeError, match="use use_reentrant=False"):
        fit(Recomputes(True))
    model = Recomputes(False)
    before = model.first.weight.detach().clone()
    fit(model)
    assert not torch.allclose(model.first.weight, before)


def in_inference_mode(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.inference_mode():
        return make()


def with_attribute(value: Any) -> nn.Module:
    model = nn.Linear(4, 1)
    model.extra = value
    return model


class Stale(nn.Module):
    """Computes its weight once; torch itself could differentiate it only once."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 1)
        self.weight = 2 * self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class SparseWeight(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)
        self.table = nn.Parameter(torch.eye(4).to_sparse())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LazyLinear(1), "weight has no shape yet .*: call the model once on a batch"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), "1.weight has no shape yet"),
        (lambda: in_inference_mode(lambda: nn.Linear(4, 1)), "weight was made under torch.infer"),
        (lambda: nn.Linear(4, 1, device="meta"), "weight is on the meta device"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4, device="meta").requires_grad_(False), OTHER),
            "0.weight is on the meta device",
        ),
        (lambda: with_attribute(threading.Lock()), "The model cannot be copied"),
        (lambda: with_attribute(i for i in range(3)), "The model cannot be copied"),
        (Stale, "The model cannot be copied"),
        (SparseWeight, "table is sparse: make it dense"),
    ],
)
def test_models_that_cannot_be_trained_are_one_sentence(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message) as caught:
        fit(make())
    assert "\n" not in str(caught.value)


class Bag(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def test_sparse_gradients_are_refused_by_name() -> None:
    clients = [(torch.randint(10, (20, 3)), torch.randn(20)) for _ in range(3)]
    with pytest.raises(EpisodeError, match=r"The gradient of words.weight is sparse.*sparse=False"):
        fit(Bag(True), clients)
    assert fit(Bag(False), clients).status == "finished"


def test_a_loss_that_calls_backward_itself_is_told_before_training() -> None:
    def backwards(model: nn.Module, batch: Any) -> Tensor:
        value = loss(model, batch)
        value.backward()
        return value

    with pytest.raises(EpisodeError, match="The gradient failed on client 0's first batch"):
        fit(nn.Linear(4, 1), loss=backwards)


class OddState(nn.Module):
    """Its state has a non-contiguous weight, a frozen sparse matrix and something that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
        self.fixed = nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.fixed, self.conv(x).mean((2, 3)).T).sum(0)


def test_any_state_of_a_model_is_stored_at_the_end(tmp_path: Path) -> None:
    model = OddState()
    clients = [(torch.randn(10, 3, 6, 6), torch.randn(10)) for _ in range(2)]
    assert fit(model, clients, folder=tmp_path).status == "finished"
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["conv.weight"], model.conv.weight)
    assert "fixed" not in stored  # frozen: a checksum stands for it
    again = OddState()
    episode.load_run(tmp_path, again)
    assert torch.equal(again.conv.weight, model.conv.weight)
    assert torch.equal(again.fixed.to_dense(), torch.eye(2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.tensor(1.0), torch.zeros(3)), "Client 0's data cannot be read: len"),
        (("a", 1), "The loss failed on client 0's first batch"),
    ],
)
def test_data_that_cannot_be_read_are_one_sentence(data: Any, message: str) -> None:
    with pytest.raises(EpisodeError, match=message) as caught:
        fit(nn.Linear(4, 1), [data], batch_size=1)
    assert "\n" not in str(caught.value)
