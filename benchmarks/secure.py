"""What masks cost: the time and the bytes of a secure exchange against an open one.

Eight sites in this process train a model of a million parameters, with the messages of a real run,
serialised both ways. Open and secure runs alternate, so that both see the same machine. Time is
that of the processor, because all is in one process. Prints the ratios, and how far the two models
differ.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F

from episode.flower import EpisodeStrategy, attach, serving

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
from local_grid import LocalGrid

SITES, ROUNDS, REPEATS, STEPS, BATCH = 8, 4, 4, 4, 32
WIDTH = 1000


class Net(nn.Sequential):
    """A million parameters."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))


def data(context: Context) -> tuple[Tensor, Tensor]:
    """Noise: only time matters here."""
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(256, WIDTH, generator=generator)
    return inputs, torch.randint(10, (256,), generator=generator)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


def play(secure: bool) -> tuple[list[float], float, Tensor]:
    """Return the seconds of each exchange, the bytes that a site sends in one, and the model."""
    app, sent = ClientApp(), [0]

    def count(client: int, reply: Message) -> Message:
        arrays = reply.content.array_records["episode.arrays"].values()
        if reply.metadata.message_type.startswith("train"):
            sent[0] += sum(len(array.data) for array in arrays)
        return reply

    attach(app, Net, data, loss, batch_size=BATCH, threads=1)
    grid = LocalGrid(app, list(range(SITES)), fault=count)
    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=STEPS, secure=secure)
    ends: list[float] = []
    result = strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        ROUNDS,
        evaluate_fn=lambda server_round, arrays: ends.append(time.process_time()),
    )
    x = torch.cat([t.flatten() for t in result.arrays.to_torch_state_dict().values()])
    seconds = [(b - a) / 2 for a, b in pairwise(ends[1:])]  # the first round agrees on a scale
    return seconds, sent[0] / (2 * ROUNDS * SITES), x


def main() -> None:
    """Measure and print."""
    serving._MOST_SITES = SITES  # a real site has a process of its own
    times: dict[bool, list[float]] = {False: [], True: []}
    sizes, models = {}, {}
    for _ in range(REPEATS):
        for secure in (False, True):
            seconds, sizes[secure], models[secure] = play(secure)
            times[secure] += seconds
    medians = {secure: statistics.median(found) for secure, found in times.items()}
    difference = float((models[True] - models[False]).norm() / models[False].norm())
    for secure, name in ((False, "open"), (True, "secure")):
        print(
            f"{name:7} {1e3 * medians[secure]:8.1f} ms  {sizes[secure] / 1e6:6.2f} MB up per site"
        )
    print(f"time    {medians[True] / medians[False]:8.2f} times (at most 1.5)")
    print(f"bytes   {sizes[True] / sizes[False]:8.2f} times (at most 2.1)")
    print(f"models differ by {difference:.1e} of their norm after {ROUNDS} rounds (at most 1e-5)")


if __name__ == "__main__":
    main()
