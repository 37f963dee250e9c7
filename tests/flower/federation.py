"""A small federation for tests: three sites, and a model in float64 with every awkward feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from local_grid import Fault, LocalGrid
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode.core.algorithm import Algorithm
from episode.federation.sampling import Cohorts
from episode.flower import EpisodeStrategy, attach
from episode.tasks.neural import NeuralTask

SITES = 3
ROUNDS = 4
SETTINGS: dict[str, Any] = {"eta": 0.1, "gamma": 0.05, "local_steps": 3, "seed": 5}


class Net(nn.Module):
    """A model with batch norm, dropout, a buffer that is not stored, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.embed = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(6, 3)
        self.register_buffer("scale", torch.tensor([1.5]), persistent=False)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.embed.weight.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.norm(self.embed(x))))) * self.scale


def data(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(20 + 5 * client, 4, generator=generator, dtype=torch.float64) + client
    return inputs, torch.randint(3, (len(inputs),), generator=generator)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def data_of(context: Context) -> tuple[Tensor, Tensor]:
    return data(int(context.node_config["partition-id"]))


def task() -> NeuralTask:
    """Return the task of the whole federation, for one process."""
    clients = [data(c) for c in range(SITES)]
    return NeuralTask(Net(), clients, loss, batch_size=8, seed=SETTINGS["seed"])


def app(**changes: Any) -> ClientApp:
    made = ClientApp()
    given = {"model_fn": Net, "data_fn": data_of, "loss": loss, "batch_size": 8, **changes}
    attach(made, **given, threads=1)
    return made


def grid(sites: int = SITES, **more: Any) -> LocalGrid:
    return LocalGrid(app(), list(reversed(range(sites))), **more)


def arrays() -> ArrayRecord:
    return ArrayRecord(Net().state_dict())


@dataclass
class Ended:
    model: dict[str, Tensor]
    strategy: EpisodeStrategy
    grid: LocalGrid

    @property
    def history(self) -> list[dict[str, Any]]:
        assert self.strategy.run is not None
        return list(self.strategy.run.history)


def on_flower(
    algorithm: str | Algorithm = "episode", fault: Fault | None = None, **options: Any
) -> Ended:
    network = options.pop("grid", None) or grid()
    if fault is not None:
        network.fault = fault
    rounds = options.pop("rounds", ROUNDS)
    given = {"deadline": 5.0, "start_seconds": 3.0, **SETTINGS, **options}
    strategy = EpisodeStrategy(algorithm, **given)
    result = strategy.start(grid=network, initial_arrays=arrays(), num_rounds=rounds)
    return Ended(result.arrays.to_torch_state_dict(), strategy, network)


def in_simulation(
    algorithm: str | Algorithm = "episode", cohorts: Cohorts | None = None, rounds: int = ROUNDS
) -> dict[str, Tensor]:
    model = Net()
    episode.fit(
        model,
        [data(c) for c in range(SITES)],
        loss=loss,
        algorithm=algorithm,
        rounds=rounds,
        batch_size=8,
        workers=1,
        cohorts=cohorts,
        **SETTINGS,
    )
    return {name: t.clone() for name, t in model.state_dict().items()}


@dataclass(frozen=True)
class Without(Cohorts):
    """All clients, except those that are missing in some rounds."""

    missing: tuple[tuple[int, int], ...]

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return [c for c in range(num_clients) if (round, c) not in self.missing]


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Check that two models are the same, bit for bit."""
    assert list(a) == list(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name
