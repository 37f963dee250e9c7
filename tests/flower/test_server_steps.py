"""Our server steps and Flower's own strategies agree on the same replies, up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi
from local_grid import LocalGrid

from episode import ServerAdagrad, ServerAdam, ServerSGD, ServerYogi
from episode.core import ServerStep
from federation import app

ROUNDS, CLIENTS, SIZE = 8, 3, 20


def replies(x: np.ndarray, round: int, asked: list[Message]) -> list[Message]:
    """What three sites send in a round: vectors near x, with unequal numbers of examples."""
    random = np.random.default_rng(round)
    found = []
    for number, message in enumerate(asked):
        arrays = ArrayRecord(
            {"x": Array(x + random.normal(size=SIZE) * 0.1 ** (number + round % 3))}
        )
        metrics = MetricRecord({"num-examples": number + 1})
        found.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))
    return found


def adam_without_bias_correction(strategy: FedAdam, round: int) -> None:
    """Undo Flower's factor on the rate: Adam's, one round late; the published rule has none."""
    late = round + 1.0
    strategy.eta = 0.1 * (1 - strategy.beta_1**late) / np.sqrt(1 - strategy.beta_2**late)


CASES: list[tuple[ServerStep, Any, Callable[[Any, int], None]]] = [
    (ServerSGD(0.5), FedAvgM(server_learning_rate=0.5), lambda s, r: None),
    (ServerSGD(1.0, 0.9), FedAvgM(server_momentum=0.9), lambda s, r: None),
    (ServerAdam(start=0.0), FedAdam(eta=0.1), adam_without_bias_correction),
    (ServerYogi(start=0.0), FedYogi(), lambda s, r: None),
    (ServerAdagrad(start=0.0), FedAdagrad(eta=0.1), lambda s, r: None),
]


@pytest.mark.parametrize(("ours", "theirs", "prepare"), CASES, ids=lambda case: type(case).__name__)
def test_the_same_replies_give_the_model_of_flowers_strategy(
    ours: ServerStep, theirs: Any, prepare: Callable[[Any, int], None]
) -> None:
    network = LocalGrid(app(), list(range(CLIENTS)))
    start = np.random.default_rng(99).normal(size=SIZE)
    record, x, held = ArrayRecord({"x": Array(start)}), torch.from_numpy(start), {}
    for number in range(1, ROUNDS + 1):
        asked = list(theirs.configure_train(number, record, ConfigRecord(), network))
        sent = replies(x.numpy(), number, asked)
        prepare(theirs, number)
        record, _ = theirs.aggregate_train(number, sent)
        vectors = [m.content["arrays"]["x"].numpy() for m in sent]
        mean = np.average(vectors, axis=0, weights=[k + 1 for k in range(CLIENTS)])
        x = ours.step(x, torch.from_numpy(mean), held)
        assert np.abs(record["x"].numpy() - x.numpy()).max() < 1e-12, number
    assert float((x - torch.from_numpy(start)).abs().max()) > 0.01
