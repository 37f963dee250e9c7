"""The same local SGD workload on pfl 0.6.0, so that both engines are timed in one process.

pfl is set up as its documentation does for a single-process simulation, with every cost that the
comparison is not about taken out: user datasets are built once from tensors in memory (pfl then
caches their minibatches), nothing is evaluated, nothing is printed, there are no callbacks and no
postprocessors. The number of threads is the caller's matter.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


class _CountingModel(nn.Module):
    """What pfl asks of a model (`loss` and `metrics`), counting the minibatches trained on."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self._loss = loss
        self.calls = [0]  # in a list: nn.Module makes setting an attribute slow

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.calls[0] += 1
        return self._loss(self.module, (inputs, targets))

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Nothing: pfl always evaluates in round 0, which would be timed without being training."""
        return {}


def run_rounds(
    make_model: Callable[[], nn.Module],
    loss: Loss,
    clients: Sequence[tuple[Tensor, Tensor]],
    *,
    batch_size: int,
    local_steps: int,
    rounds: int,
    eta: float,
    algorithm: str = "fedavg",
) -> Callable[[], int]:
    """Prepares everything; the returned callable plays the rounds and returns the local steps done.

    The steps are counted, not assumed. Each client makes one pass over its first
    `local_steps * batch_size` examples, in order, because that is how pfl gives an exact number of
    steps for both algorithms (its SCAFFOLD refuses `local_num_steps`). The module that
    `make_model` returned is trained in place; calling again plays `rounds` more rounds from there.

    `algorithm` is "fedavg" or "scaffold" (option II, the one without an extra gradient). Use the
    latter for its speed only: pfl 0.6.0 gives the control variates the opposite sign of the paper.
    """
    if algorithm not in ("fedavg", "scaffold"):
        raise ValueError(f"algorithm must be 'fedavg' or 'scaffold', not {algorithm!r}")
    examples = local_steps * batch_size
    if any(len(x) < examples or len(y) < examples for x, y in clients):
        raise ValueError(f"every client needs local_steps * batch_size = {examples} examples")

    multiprocessing.get_start_method()  # settles it: importing pfl would change it process-wide
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # pfl would take a GPU by itself
    try:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import MinimizeReuseUserSampler
        from pfl.data.user_state import InMemoryUserStateStorage
        from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel
    except ImportError as error:
        raise ImportError("pfl is missing: pip install 'episode-fl[bench]'") from error

    users = {
        str(i): PyTorchTensorDataset((x[:examples], y[:examples]), user_id=str(i))
        for i, (x, y) in enumerate(clients)
    }
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(users)))
    backend = SimulatedBackend(training_data=data, val_data=data)  # val_data: asked, never used
    counting = _CountingModel(make_model(), loss)
    server_optimizer = torch.optim.SGD(counting.parameters(), lr=1.0)  # lr 1: plain averaging
    model = PyTorchModel(counting, torch.optim.SGD, server_optimizer)
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=eta, local_batch_size=batch_size
    )
    # The same batch size as in training: pfl caches the minibatches of one size only.
    evaluate = NNEvalHyperParams(local_batch_size=batch_size)
    # Evaluation only at round 0, which pfl does not let one skip, and on no validation users.
    common = (rounds, rounds + 1, len(users), 0)

    def play() -> int:
        before = counting.calls[0]
        # Algorithm objects remember the rounds they played and would do nothing the second time.
        if algorithm == "fedavg":
            algo, params = FederatedAveraging(), NNAlgorithmParams(*common)
        else:
            algo = SCAFFOLD()
            params = SCAFFOLDParams(*common, len(users), False, InMemoryUserStateStorage())
        loop = asyncio.new_event_loop()  # pfl wants a current one, which asyncio.run takes away
        asyncio.set_event_loop(loop)
        try:
            algo.run(params, backend, model, train, evaluate, send_metrics_to_platform=False)
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        return counting.calls[0] - before

    return play
