"""Any module as a task: one flat vector, buffers, frozen and untouched parameters, bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import EpisodeError, Schedule
from episode.engines.simulation import Simulation
from episode.federation.protocols import Draw
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.tasks.neural import NeuralTask


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]).squeeze(-1), batch[1])


def clients(count: int = 3, size: int = 20, width: int = 4) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(size, width, generator=g), torch.randn(size, generator=g))
        for _ in range(count)
    ]


def options(**changes: object) -> dict[str, object]:
    values = {"loss": loss, "eta": 0.1, "gamma": 0.1, "local_steps": 2, "rounds": 2}
    return {**values, "batch_size": 10, **changes}


def test_gradients_are_those_of_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    task = NeuralTask(model, clients(), loss, batch_size=20)
    _, blocks = task.objective().gradient(Draw(1, "local", 0))
    x, y = clients()[1]
    loss(model, (x, y)).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    assert torch.allclose(torch.cat([b.reshape(-1) for b in blocks]), expected, atol=1e-6)


class Sum(nn.Module):
    """Three parameters of which torch gives two one gradient, and the third a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.full((4,), v)) for v in (0.1, 0.2, 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a + self.b) + self.c.sum()


def sum_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def test_parameters_that_are_added_up_are_each_corrected_once() -> None:
    data, eta = [(x.double(), y.double()) for x, y in clients()], 0.05
    run = episode.fit(
        Sum().double(), data, loss=sum_loss, algorithm="episode_unclipped", eta=eta, gamma=1.0,
        local_steps=3, rounds=4, batch_size=20,
    )  # fmt: skip

    def gradient(x: Tensor, client: int) -> Tensor:  # by hand: the residual times what it is of
        inputs, labels = data[client]
        residual = 2 * (inputs @ (x[:4] + x[4:8]) + x[8:].sum() - labels) / len(labels)
        both = inputs.t() @ residual
        return torch.cat([both, both, residual.sum().expand(4)])

    x_bar = torch.cat([p.detach() for p in Sum().double().parameters()])
    for _ in range(4):
        anchors = [gradient(x_bar, client) for client in range(3)]
        G, ends = torch.stack(anchors).mean(0), []
        for client in range(3):
            x = x_bar.clone()
            for _ in range(3):
                x -= eta * (gradient(x, client) - anchors[client] + G)
            ends.append(x)
        x_bar = torch.stack(ends).mean(0)
    assert torch.allclose(torch.cat([p.detach() for p in run.model.parameters()]), x_bar, rtol=1e-9)


def test_the_module_sees_the_work_vector_even_after_somebody_repointed_it() -> None:
    task = NeuralTask(nn.Linear(4, 1), clients(), loss, batch_size=20)
    objective = task.objective()
    for p in objective.module.parameters():
        p.data = p.data.clone()
    objective.x.zero_()
    objective.load_buffers(objective.buffers())
    value, _ = objective.gradient(Draw(0, "local", 0))
    assert value.item() == pytest.approx(clients()[0][1].square().mean().item())


def test_frozen_parameters_are_shared_and_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    task = NeuralTask(model, clients(), loss, batch_size=10)
    assert len(task.initial()[0]) == 6
    assert task.objective().module[0].weight is model[0].weight
    episode.fit(model, clients(), **options())
    assert torch.equal(model[0].weight, before)


def test_parameters_that_a_batch_does_not_touch_have_a_zero_gradient() -> None:
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 1)
            self.idle = nn.Parameter(torch.ones(3))

    _, blocks = (
        NeuralTask(Idle(), clients(), loss, batch_size=10).objective().gradient(Draw(0, "local", 0))
    )
    assert sorted(b.numel() for b in blocks) == [1, 3, 4]
    assert sum(b.abs().sum().item() == 0 for b in blocks) == 1


def test_tied_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)).mean(-1)

    run = episode.fit(Tied(), clients(), **options())
    assert len(run.x) == 16
    assert run.model.a.weight is run.model.b.weight


@pytest.mark.parametrize("name", ["episode", "fedavg", "parallel_sgd"])
def test_batchnorm_statistics_are_averaged_and_the_probe_leaves_them_alone(name: str) -> None:
    """One step a round on the whole client: the new statistics are the clients' mean."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    task = NeuralTask(model, clients(size=10), loss, batch_size=10)
    algorithm = episode.ALGORITHMS[name]
    engine = Simulation(task, algorithm, 1)
    server = ServerState(*task.initial())
    Rounds(Plan(algorithm, Schedule(0.1, 0.1), 1, 1), task, engine).play(server)
    engine.close()
    means = torch.stack([x.mean(0) for x, _ in clients(size=10)]).mean(0)
    assert torch.allclose(server.buffers.floats[:4], 0.1 * means, atol=1e-6)
    assert server.buffers.integers.tolist() == [1]


def test_local_steps_start_from_the_buffers_of_the_round() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    run = episode.fit(model, clients(), **options(rounds=3, local_steps=2))
    assert run.model[0].num_batches_tracked.item() == 6


def test_dict_batches_and_custom_losses_work() -> None:
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> dict[str, object]:
            return {"x": torch.full((4,), float(i)), "name": f"row {i}", "y": float(i)}

    def dict_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        assert batch["name"][0].startswith("row")
        return (model(batch["x"]).squeeze(-1) - batch["y"]).abs().mean()

    run = episode.fit(nn.Linear(4, 1), [Rows(), Rows()], **options(loss=dict_loss))
    assert run.status == "finished"


def test_fit_trains_the_model_in_place_and_learns() -> None:
    g = torch.Generator().manual_seed(0)
    weights = torch.randn(4, generator=g)
    silos = []
    for shift in (-2.0, 0.0, 2.0):
        x = torch.randn(64, 4, generator=g) + shift
        silos.append((x, x @ weights))
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    seen: list[int] = []
    run = episode.fit(
        model, silos, **options(rounds=80, local_steps=4, eta=0.05, gamma=0.05, batch_size=64),
        evaluate=lambda m: {"distance": (m.weight[0] - weights).norm()},
        evaluate_every=40, observe=lambda record: seen.append(record["round"]),
    )  # fmt: skip
    assert run.status == "finished"
    assert run.model is model
    assert (model.weight[0] - weights).norm() < 0.05
    assert seen == list(range(80))
    assert [r["round"] for r in run.history if "metrics" in r] == [39, 79]
    assert run.summary["metrics"]["distance"] < 0.05
    frame = run.history.frame()
    assert len(frame) == 80
    assert {"round", "loss", "global_norm", "distance"} <= set(frame.columns)


def test_a_diverged_run_is_a_result_with_the_last_finite_model() -> None:
    run = episode.fit(
        nn.Linear(4, 1), clients(), **options(algorithm="fedavg", eta=1e12, rounds=50)
    )
    assert run.status == "diverged"
    assert len(run.history) < 50
    assert "in round" in run.summary["reason"]
    assert torch.isfinite(run.x).all()


def test_a_small_client_is_a_warning_not_an_error() -> None:
    with pytest.warns(UserWarning, match="Client 1 has fewer examples than a batch of 10"):
        run = episode.fit(nn.Linear(4, 1), [clients()[0], clients(size=3)[0]], **options())
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda m, b: m(b[0])}, r"tensor of shape \[10, 1\]: it must be a scalar"),
        ({"loss": lambda m, b: 1.0}, "The loss is 1.0"),
        ({"loss": lambda m, b: m(b[0]).detach().sum()}, "does not depend on the model"),
        ({"loss": None}, "loss is None: give a function"),
        ({"eta": 0.0}, "eta is 0.0"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"algorithm": "epizode"}, "did you mean 'episode'"),
        ({"cohorts": episode.Uniform(4)}, "there are 3 clients"),
        ({"evaluate_every": -1}, "evaluate_every is -1"),
        ({"cohorts": 0}, "cohorts is 0: give Full"),
        ({"eta": "0.1"}, "eta is '0.1': it must be a number"),
        ({"rounds": 3.0}, "rounds is 3.0: it must be a whole number"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"workers": "2"}, "workers is '2'"),
        ({"algorithm": 3}, "algorithm is 3: give a name"),
        ({"algorithm": "EPISODE"}, "did you mean 'episode'"),
        ({"evaluate": lambda m: 0.5}, r"evaluate\(model\) returned 0.5"),
        ({"evaluate": lambda m: {"a": m.weight}}, "a dict of names and numbers"),
        ({"loss": nn.MSELoss()}, "The loss failed on client 0's first batch"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        episode.fit(nn.Linear(4, 1), clients(), **options(**changes))


def test_models_and_clients_that_cannot_be_trained_are_refused() -> None:
    frozen = nn.Linear(4, 1).requires_grad_(False)
    mixed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1).double())
    empty = (torch.zeros(0, 4), torch.zeros(0))
    for model, silos, message in (
        (frozen, clients(), "no trainable parameters"),
        (mixed, clients(), "differ in dtype or device"),
        (nn.Linear(4, 1), [], "There are no clients"),
        (nn.Linear(4, 1), [clients()[0], empty], "Client 1 has no examples"),
        (lambda x: x, clients(), "give an nn.Module"),
        (nn.Linear(4, 1), None, "clients is a NoneType: give a list"),
        (nn.Linear(4, 1), {"a": clients()[0]}, "clients is a dict: give a list"),
        (nn.Linear(4, 1), [iter(())], "Client 0 is a tuple_iterator: give a dataset"),
        (nn.Linear(4, 1, device="meta"), clients(), "meta device"),
        (nn.Linear(4, 1, dtype=torch.complex64), clients(), "real floats are needed"),
    ):
        with pytest.raises(EpisodeError, match=message):
            episode.fit(model, silos, **options())
