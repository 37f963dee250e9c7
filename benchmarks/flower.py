"""Time per exchange: our strategy against Flower's own FedAvg, in one run of its simulation.

Both send a model down and one up, to `SITES` sites, and take the same local steps. They alternate,
so that both see the same machine. Prints medians and their ratio.
"""

from __future__ import annotations

import itertools
import statistics
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn import functional as F

from episode.flower import EpisodeStrategy, attach
from episode.flower.simulation import quiet_environment, simulated_grid

SITES, ROUNDS, REPEATS, STEPS, ETA = 4, 10, 3, 4, 0.01


class Net(nn.Sequential):
    """A quarter of a million parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(256, 896), nn.Tanh(), nn.Linear(896, 10))


def data(context: Context) -> tuple[Tensor, Tensor]:
    """Noise: only time matters here."""
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(512, 256, generator=generator)
    return inputs, torch.randint(10, (512,), generator=generator)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


def make_app() -> ClientApp:
    """A site for both."""
    app = ClientApp()
    attach(app, Net, data, loss, batch_size=32, threads=1)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), ETA)
        inputs, labels = data(context)
        for step in range(STEPS):
            batch = slice(32 * step, 32 * step + 32)
            optimizer.zero_grad()
            value = loss(model, (inputs[batch], labels[batch]))
            value.backward()
            optimizer.step()
        metrics = MetricRecord({"loss": value.item(), "num-examples": 512})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def per_exchange(strategy: FedAvg | EpisodeStrategy, grid: Grid, exchanges: int) -> float:
    """Seconds; without what comes before the first round."""
    arrays = ArrayRecord(Net().state_dict())
    ends: list[float] = []
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=ROUNDS,
        evaluate_fn=lambda server_round, arrays: ends.append(time.perf_counter()),
    )
    return statistics.median(b - a for a, b in itertools.pairwise(ends[1:])) / exchanges


def serve(grid: Grid) -> dict[str, list[float]]:
    """Alternating runs."""
    found: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        plain = FedAvg(fraction_evaluate=0.0)
        found.setdefault("Flower's FedAvg", []).append(per_exchange(plain, grid, 1))
        for name, exchanges in (("fedavg", 1), ("scaffold", 1), ("episode", 2)):
            ours = EpisodeStrategy(name, eta=ETA, gamma=1.0, local_steps=STEPS)
            found.setdefault(name, []).append(per_exchange(ours, grid, exchanges))
    return found


def main() -> None:
    """One simulation, a line for each strategy."""
    with quiet_environment(), simulated_grid(make_app(), SITES) as grid:
        found = serve(grid)
    base = statistics.median(found["Flower's FedAvg"])
    for name, seconds in found.items():
        middle = statistics.median(seconds)
        each = ", ".join(f"{1000 * s:.0f}" for s in seconds)
        print(f"{name:<16} {1000 * middle:6.0f} ms per exchange ({each})  {middle / base:.2f}")


if __name__ == "__main__":
    main()
