"""Any `nn.Module`, any loss and any clients' data as a task, seen as one flat vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.arguments import names, seed_number
from episode.core.vectors import cut
from episode.data.batches import Batches
from episode.data.clients import ClientBatches, LazyClients
from episode.data.forms import as_datasets
from episode.federation.protocols import Draw, Objective, Task
from episode.federation.state import Buffers
from episode.results.store import LabelCounts
from episode.tasks.checks import (
    check_accumulate,
    check_clients,
    check_functions,
    check_model,
    warn_of_small_clients,
)
from episode.tasks.client_evaluation import (
    ClientEvaluation,
    Datasets,
    EvaluateClient,
    as_metrics,
    mean_loss,
)
from episode.tasks.model_buffers import write_buffers
from episode.tasks.precision import Precision, check_precision
from episode.tasks.replica import Replica, to_device
from episode.tasks.trial import Drawn, try_loss
from episode.tasks.weights import frozen_checksum, trained_state

Loss = Callable[[nn.Module, Any], Tensor]
"""Returns the mean loss of a batch, given the model and the batch."""
Evaluate = Callable[[nn.Module], Mapping[str, float]]
"""Returns metrics of a model in evaluation mode, by name."""


class SharedEvaluation(ABC):
    """An evaluation that processes or sites share: each measures what is on its own data.

    It is also an `Evaluate`, for a process that has all the data.
    """

    @abstractmethod
    def part(self, model: nn.Module) -> dict[str, Any]:
        """Return what was measured on the data that are here, as JSON values."""

    @abstractmethod
    def combine(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return metrics from the parts of all processes; the order of parts does not matter."""

    @abstractmethod
    def check(self, part: Mapping[str, Any], client: int) -> None:
        """Raise a ValueError if a site cannot have measured this on the data of its client."""

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics on the data that are here."""
        return self.combine([self.part(model)])


class NeuralTask(Task):
    """A model, its loss and its clients' data, as a task for any algorithm and engine.

    Args:
        model: Its trainable parameters are trained. Frozen ones are shared by all replicas.
        clients: One dataset per client: a tuple of tensors, or any map-style dataset. A list is
            checked at once; of another sequence, such as `LazyClients`, each client is opened when
            it is needed. With `num_clients`, a mapping from the numbers of those clients whose
            data are here.
        loss: Returns a scalar from the model and a batch: the mean over the batch.
        batch_size: Examples in a batch; a client with fewer trains on all of them at every step.
        seed: Random seed of the batches, and of layers such as dropout.
        evaluate: Returns metrics by name from the model in evaluation mode.
        collate: Makes a batch from a list of examples of a map-style dataset.
        precision: `bfloat16` computes losses under torch's autocast; parameters, gradients and
            steps keep the model's own precision.
        label_counts: How many examples of each label the clients have, to store with a run.
        client_names: Names of all clients, for tables and reports.
        held_out: One dataset per client that it does not train on, as `clients`; None or an empty
            one for a client that has none.
        evaluate_client: Returns metrics by name from the model in evaluation mode and one client's
            held-out dataset; by default the mean of `loss`, as `holdout_loss`.
        num_clients: Number N of all clients, if `clients` are not all of them.
        accumulate: Number of parts in which the gradient of a batch is computed, one after
            another: less memory, and the same gradient to rounding if the loss is a mean over
            examples. It must divide the batch size.

    Raises:
        EpisodeError: The model, the data or the loss cannot be used; says what is needed.
        ClientError: The loss fails on the first client's first batch.

    Example:
        >>> x = torch.linspace(-1, 1, 8)[:, None]
        >>> task = NeuralTask(
        ...     torch.nn.Linear(1, 1),
        ...     clients=[(x, 2 * x), (x, 3 * x)],
        ...     loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        ...     batch_size=4,
        ... )
        >>> task.num_clients, task.examples(0), len(task.initial()[0])
        (2, 8, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[Any] | Mapping[int, Any],
        loss: Loss,
        *,
        batch_size: int,
        seed: int = 0,
        evaluate: Evaluate | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        precision: Precision = "float32",
        label_counts: LabelCounts | None = None,
        client_names: Sequence[str] = (),
        held_out: Datasets | None = None,
        evaluate_client: EvaluateClient | None = None,
        num_clients: int | None = None,
        accumulate: int = 1,
    ) -> None:
        check_model(model)
        check_functions(loss, evaluate, collate)
        clients = as_datasets(clients)
        check_clients(clients, batch_size, num_clients)
        self.accumulate = check_accumulate(accumulate, batch_size)
        check_precision(precision, next(model.parameters()).device.type)
        self.precision = precision
        self.model = model
        self.loss = loss
        self.seed = seed_number(seed)
        self.label_counts = label_counts
        self.client_names = names("client_names", client_names)
        self.num_clients = num_clients or len(clients)
        self._clients = clients
        self._evaluate = evaluate
        by_loss = mean_loss(self._loss_on_device, batch_size, collate)
        self._client_evaluation = ClientEvaluation.of(self, held_out, evaluate_client, by_loss)
        numbers = sorted(clients) if isinstance(clients, Mapping) else range(len(clients))
        self.batches = ClientBatches(
            lambda client: Batches(clients[client], batch_size, seed, client, collate), numbers
        )
        if isinstance(clients, (list, tuple, Mapping)):
            warn_of_small_clients(self.batches, batch_size)
        self.draws_random_numbers = self.takes_turns = False  # until the first loss is tried
        replica = Replica(self)
        self._start = replica.x.clone(), replica.buffers()
        if numbers:
            draw = Draw(numbers[0], "local", 0)
            drawn = try_loss(
                lambda: next(replica.losses(draw))[1], replica.module, model, draw.client
            )
            self.draws_random_numbers = drawn is not Drawn.NOTHING
            self.takes_turns = drawn is Drawn.BY_LOSS
        evaluates = evaluate is not None or self.evaluates_clients
        self._evaluated_replica = Replica(self) if evaluates else None

    @property
    def clients(self) -> Sequence[int]:
        return list(self.batches)

    @property
    def evaluates_clients(self) -> bool:
        return self._client_evaluation is not None

    def examples(self, client: int) -> int:
        if isinstance(self._clients, LazyClients) and self._clients.examples is not None:
            return int(self._clients.examples[client])
        if client not in self.batches and self.label_counts is not None:  # its data are elsewhere
            return sum(self.label_counts.counts[client])
        return self.batches[client].examples

    def initial(self) -> tuple[Tensor, Buffers]:
        return self._start[0].clone(), self._start[1]

    def objective(self) -> Objective:
        return Replica(self)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        if self._evaluate is None:
            return {}
        return as_metrics(self._evaluated(self._evaluate, x, buffers), "evaluate(model)")

    def evaluate_client(self, client: int, x: Tensor, buffers: Buffers) -> dict[str, float]:
        if self._client_evaluation is None:
            return {}
        evaluate = partial(self._client_evaluation, client)
        found: dict[str, float] = self._evaluated(evaluate, x, buffers)
        return found

    def evaluate_part(self, x: Tensor, buffers: Buffers) -> dict[str, Any] | None:
        if not isinstance(self._evaluate, SharedEvaluation):
            return None
        found: dict[str, Any] = self._evaluated(self._evaluate.part, x, buffers)
        return found

    def combine(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        assert isinstance(self._evaluate, SharedEvaluation)
        return self._evaluate.combine(parts)

    def check_part(self, part: Mapping[str, Any], client: int) -> None:
        if isinstance(self._evaluate, SharedEvaluation):
            self._evaluate.check(part, client)

    def _evaluated(self, function: Callable[[nn.Module], Any], x: Tensor, buffers: Buffers) -> Any:
        """Return what the function returns for the model at x̄, in evaluation mode."""
        replica = self._evaluated_replica
        assert replica is not None
        replica.x.copy_(x)
        replica.load_buffers(buffers)
        with torch.no_grad(), self.autocast(x.device):
            return function(replica.module.eval())

    def _loss_on_device(self, model: nn.Module, batch: Any) -> Tensor:
        return self.loss(model, to_device(batch, next(model.parameters()).device))

    def install(self, x: Tensor, buffers: Buffers) -> nn.Module:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            for p, values in zip(parameters, cut(x, [p.detach() for p in parameters]), strict=True):
                p.copy_(values)
        write_buffers(self.model, buffers)
        return self.model

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        return trained_state(self.install(x, buffers))

    @cached_property
    def frozen_checksum(self) -> str:
        # A server without data has only places for frozen parameters.
        return frozen_checksum(self.model) if self.batches else ""

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context in which the model computes."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
