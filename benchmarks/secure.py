"""What masks cost: the time and the bytes of a secure exchange against an open one.

Eight sites in this process train a model of a million parameters, with the messages of a real run,
serialised both ways. Sites answer one after the other. Open and secure runs alternate, so that both
see the same machine. Prints the ratios of elapsed time, of processor time (a site makes its masks
on all its cores) and of bytes, medians with quartiles, and how far the two models differ.
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

SITES, ROUNDS, REPEATS, STEPS, BATCH = 8, 4, 12, 4, 32
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


def play(secure: bool) -> tuple[list[tuple[float, float]], float, Tensor]:
    """Return each exchange's time, elapsed and of processors; the bytes a site sends; the model."""
    app, sent = ClientApp(), [0]

    def count(client: int, reply: Message) -> Message:
        arrays = reply.content.array_records["episode.arrays"].values()
        if reply.metadata.message_type.startswith("train"):
            sent[0] += sum(len(array.data) for array in arrays)
        return reply

    attach(app, Net, data, loss, batch_size=BATCH, threads=1)
    grid = LocalGrid(app, list(range(SITES)), fault=count)
    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=STEPS, secure=secure)
    ends: list[tuple[float, float]] = []
    result = strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        ROUNDS,
        evaluate_fn=lambda server_round, arrays: ends.append(
            (time.perf_counter(), time.process_time())
        ),
    )
    x = torch.cat([t.flatten() for t in result.arrays.to_torch_state_dict().values()])
    later = pairwise(ends[1:])  # the first round agrees on a scale
    seconds = [((b[0] - a[0]) / 2, (b[1] - a[1]) / 2) for a, b in later]
    return seconds, sent[0] / (2 * ROUNDS * SITES), x


def main() -> None:
    """Measure and print."""
    serving._MOST_SITES = SITES  # a real site has a process of its own
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    sizes, models = {}, {}
    for _ in range(REPEATS):
        for secure in (False, True):
            seconds, sizes[secure], models[secure] = play(secure)
            times[secure] += seconds
    difference = float((models[True] - models[False]).norm() / models[False].norm())
    for secure, name in ((False, "open"), (True, "secure")):
        elapsed, processor = (
            1e3 * statistics.median(kind) for kind in zip(*times[secure], strict=True)
        )
        print(
            f"{name:9} {elapsed:8.1f} ms elapsed, {processor:.1f} ms of processors, "
            f"{sizes[secure] / 1e6:.2f} MB up per site"
        )
    for kind, name in enumerate(("elapsed", "processor")):
        pairs = zip(times[True], times[False], strict=True)
        low, middle, high = statistics.quantiles(
            masked[kind] / clear[kind] for masked, clear in pairs
        )
        bound = "; at most 1.5" if name == "elapsed" else ""
        print(f"{name:9} {middle:8.2f} times ({low:.2f} to {high:.2f}{bound})")
    print(f"bytes     {sizes[True] / sizes[False]:8.2f} times (at most 2.1)")
    print(f"models differ by {difference:.1e} of their norm after {ROUNDS} rounds (at most 1e-5)")


if __name__ == "__main__":
    main()
