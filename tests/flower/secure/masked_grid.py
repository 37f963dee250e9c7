"""A federation of four sites whose answers are masked, and what its server sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from local_grid import Fault, LocalGrid
from torch import Tensor

import episode
from episode.core.algorithm import Algorithm
from episode.federation.sampling import Cohorts
from episode.federation.worker import Worker
from episode.flower.secure.messages import SECURE, SUM
from federation import ROUNDS, SETTINGS, Ended, Net, app, data, loss, on_flower

SITES = 4
CLOSE = 1e-9
"""Fixed-point rounding: 2^-34 of the largest value, in each of a few rounds."""


def sites(count: int = SITES, **config: Any) -> LocalGrid:
    """Return a grid whose sites have these settings in their node configs."""
    network = LocalGrid(app(), list(range(count)))
    for context in network.contexts.values():
        context.node_config.update(config)
    return network


def securely(algorithm: str | Algorithm = "episode", **options: Any) -> Ended:
    options.setdefault("grid", sites())
    return on_flower(algorithm, secure=True, **options)


def openly(algorithm: str | Algorithm, cohorts: Cohorts | None = None) -> dict[str, Tensor]:
    model = Net()
    clients = [data(c) for c in range(SITES)]
    given = {"algorithm": algorithm, "rounds": ROUNDS, "workers": 1, "cohorts": cohorts}
    episode.fit(model, clients, loss=loss, batch_size=8, **given, **SETTINGS)
    return {name: t.clone() for name, t in model.state_dict().items()}


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], bound: float = CLOSE) -> None:
    assert list(a) == list(b)
    for name in a:
        assert float((a[name].double() - b[name].double()).abs().max()) <= bound, name


def step_of(message: Message) -> tuple[str, int]:
    """Return the step and the round of a masked message or of the reply to it."""
    records = message.content.config_records
    if SECURE in records:
        step: str = json.loads(str(records[SECURE][SUM]))["step"]
        return step, int(records["episode.ask"]["round"])  # type: ignore[arg-type]
    return "", -1


def at(
    network: LocalGrid, client: int, step: str, round: int, act: Callable[[Message], Message | None]
) -> Fault:
    """Return a fault that acts on each reply of one client to one step of one round."""

    def fault(who: int, reply: Message) -> Message | None:
        asked = step_of(network.sent[-1])
        return act(reply) if who == client and asked == (step, round) else reply

    return fault


@contextmanager
def fresh_batches(rounds: set[int]) -> Iterator[None]:
    """Let the simulation draw the batches of a first repeat in some rounds."""
    patch = pytest.MonkeyPatch()
    for name in ("probe", "local"):
        plain = getattr(Worker, name)

        def drawn(self: Worker, *args: Any, plain: Any = plain, **more: Any) -> Any:
            return plain(self, *args, **more, repeat=int(more["round"] in rounds))

        patch.setattr(Worker, name, drawn)
    try:
        yield
    finally:
        patch.undo()


def with_folders(network: LocalGrid, folder: Path) -> LocalGrid:
    for context in network.contexts.values():
        context.node_config["state"] = str(folder)
    return network


def momentum(name: str) -> Algorithm:
    found = Algorithm.named(name)
    return replace(found, descent=replace(found.descent, momentum=0.9))


def words_of(reply: Message) -> Tensor:
    return torch.from_numpy(reply.content.array_records["episode.arrays"]["words"].numpy())
