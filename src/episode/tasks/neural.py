"""Any `nn.Module`, any loss and any clients' data as a task, seen as one flat vector."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.core.vectors import Vector, cut
from episode.data.batches import Batches
from episode.data.clients import ClientBatches, LazyClients
from episode.errors import ClientError, EpisodeError
from episode.federation.protocols import Draw, Objective, Task
from episode.federation.state import Buffers
from episode.randomness import derive
from episode.results.store import LabelCounts
from episode.tasks.precision import Precision, check_precision
from episode.tasks.second_derivatives import hessian_product

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
        num_clients: Number N of all clients, if `clients` are not all of them.

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
        num_clients: int | None = None,
    ) -> None:
        _check(model, clients, loss, batch_size, num_clients)
        check_precision(precision, next(model.parameters()).device.type)
        self.precision = precision
        self.model = model
        self.loss = loss
        self.seed = seed
        self.label_counts = label_counts
        self.client_names = client_names
        self.num_clients = num_clients or len(clients)
        self._clients = clients
        self._evaluate = evaluate
        numbers = sorted(clients) if isinstance(clients, Mapping) else range(len(clients))
        self.batches = ClientBatches(
            lambda client: Batches(clients[client], batch_size, seed, client, collate), numbers
        )
        if isinstance(clients, (list, tuple, Mapping)):
            _warn_of_small_clients(self.batches, batch_size)
        self.draws_random_numbers = False  # until the first loss is tried
        replica = _Replica(self)
        self._start = replica.x.clone(), replica.buffers()
        if numbers:
            self.draws_random_numbers = _try_loss(replica, numbers[0])
        self._evaluated_replica = _Replica(self) if evaluate else None

    @property
    def clients(self) -> Sequence[int]:
        return list(self.batches)

    def examples(self, client: int) -> int:
        known = self._clients.examples if isinstance(self._clients, LazyClients) else None
        return self.batches[client].examples if known is None else int(known[client])

    def initial(self) -> tuple[Tensor, Buffers]:
        return self._start[0].clone(), self._start[1]

    def objective(self) -> Objective:
        return _Replica(self)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        if self._evaluate is None:
            return {}
        metrics = self._evaluated(self._evaluate, x, buffers)
        try:
            return {str(name): float(value) for name, value in metrics.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise EpisodeError(
                f"evaluate(model) returned {_short(metrics)}: it must return a dict of names and "
                'numbers, for example {"accuracy": 0.9}.'
            ) from None

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

    def install(self, x: Tensor, buffers: Buffers) -> nn.Module:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            for p, values in zip(parameters, cut(x, [p.detach() for p in parameters]), strict=True):
                p.copy_(values)
        _write_buffers(self.model, buffers)
        return self.model

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        state = self.install(x, buffers).state_dict()
        if not self.batches:  # a server without data has only places for frozen parameters
            for name, p in self.model.named_parameters():
                if not p.requires_grad:
                    del state[name]
        return state

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context in which the model computes."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16")


class _Replica(Objective):
    """A copy of the module whose trainable parameters are views of one work vector."""

    def __init__(self, task: NeuralTask) -> None:
        self._task = task
        frozen = {id(p): p for p in task.model.parameters() if not p.requires_grad}
        self.module = copy.deepcopy(task.model, frozen).train()
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.x = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.blocks: Vector = cut(self.x, [p.detach() for p in self._parameters])
        self._device = self.x.device
        self._has_buffers = any(True for _ in self.module.buffers())
        self._autocast = task.autocast(self._device)  # slower to make than to enter
        self._attach()

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        loss = self.loss(draw)
        # Zeros for parameters that this batch did not touch.
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return loss.detach(), list(gradients)

    def hessian_product(self, draw: Draw) -> Callable[[Tensor], Tensor]:
        """Return v ↦ ∇²F_i(x; ξ)v at the current x.

        Raises:
            NotTwiceDifferentiableError: The loss has kinks, or torch cannot differentiate it twice.
        """
        return hessian_product(self.loss(draw), self._parameters)

    def load_buffers(self, buffers: Buffers) -> None:
        self._attach()
        if self._has_buffers:
            _write_buffers(self.module, buffers)

    def buffers(self) -> Buffers:
        if not self._has_buffers:
            return Buffers()
        values = [b.detach().reshape(-1) for b in self.module.buffers()]
        floats = [v.to(self.x.dtype) for v in values if v.is_floating_point()]
        integers = [v.to(torch.int64) for v in values if not v.is_floating_point()]
        return Buffers(
            torch.cat(floats) if floats else self.x.new_empty(0),
            torch.cat(integers) if integers else self.x.new_empty(0, dtype=torch.int64),
        )

    def loss(self, draw: Draw) -> Tensor:
        """Return the loss F_i(x; ξ), with its graph."""
        if self._task.draws_random_numbers:
            key = (self._task.seed, "model", draw.client, draw.stream, draw.index)
            torch.manual_seed(derive(*key))
        batch = self._task.batches[draw.client].draw(draw.stream, draw.index)
        with self._autocast:
            return self._task.loss(self.module, to_device(batch, self._device))

    def _attach(self) -> None:
        """Make the parameters views of x, also after a module has moved them (cuDNN does)."""
        for p, view in zip(self._parameters, self.blocks, strict=True):
            if p.data_ptr() != view.data_ptr():
                p.data = view


def _write_buffers(model: nn.Module, buffers: Buffers) -> None:
    left = {True: buffers.floats, False: buffers.integers}
    with torch.no_grad():
        for buffer in model.buffers():
            kind, size = buffer.is_floating_point(), buffer.numel()
            buffer.copy_(left[kind][:size].view(buffer.shape))
            left[kind] = left[kind][size:]


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch on the device; tensors may be nested in dicts, tuples and lists."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    # Named tuples have no common base class, and take their values one by one.
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _warn_of_small_clients(batches: Mapping[int, Batches], batch_size: int) -> None:
    small = [client for client in batches if batches[client].batch_size < batch_size]
    if small:
        names = f"Clients {small} have" if len(small) > 1 else f"Client {small[0]} has"
        warnings.warn(
            f"{names} fewer examples than a batch of {batch_size}: "
            "each trains on all it has at every step.",
            stacklevel=4,
        )


def _check(
    model: nn.Module, clients: Any, loss: Loss, batch_size: int, num_clients: int | None
) -> None:
    if not isinstance(model, nn.Module):
        raise EpisodeError(f"model is a {type(model).__name__}: give an nn.Module.")
    if not callable(loss):
        raise EpisodeError(
            f"loss is a {type(loss).__name__}: give a function that returns a scalar from "
            "(model, batch)."
        )
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise EpisodeError(
            "The model has no trainable parameters: set requires_grad on those to train."
        )
    if len({(p.dtype, p.device) for p in trainable}) > 1:
        raise EpisodeError(
            "The trainable parameters differ in dtype or device, but they must form one vector: "
            "convert the model with model.to(...)."
        )
    if not trainable[0].is_floating_point():
        raise EpisodeError(f"The parameters are {trainable[0].dtype}: real floats are needed.")
    if trainable[0].is_meta:
        raise EpisodeError("The model is on the meta device: give it storage with to_empty first.")
    if batch_size < 1:
        raise EpisodeError(f"batch_size is {batch_size}: it must be 1 or more.")
    if num_clients is not None:
        return
    if isinstance(clients, Mapping) or not isinstance(clients, Sequence):
        raise EpisodeError(
            f"clients is a {type(clients).__name__}: give a list with one dataset per client."
        )
    if len(clients) == 0:
        raise EpisodeError("There are no clients: give at least one dataset.")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value) if len(repr(value)) < 60 else f"a {type(value).__name__}"


def _try_loss(replica: _Replica, client: int) -> bool:
    """Compute one loss before any work; return whether the model draws random numbers.

    (Dropout does. Then each gradient seeds torch's generator, and one worker serves all clients.)
    """
    before = torch.get_rng_state()
    try:
        loss = replica.loss(Draw(client, "local", 0))
    except EpisodeError:
        raise
    except Exception as error:
        raise ClientError(
            f"The loss failed on client {client}'s first batch: {type(error).__name__}: {error}"
        ) from error
    drawn = not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise EpisodeError(
            f"The loss is {_short(loss)}: it must be a scalar tensor, a mean over the batch."
        )
    if not loss.requires_grad:
        raise EpisodeError(
            "The loss does not depend on the model's trainable parameters: compute it from the "
            "model that loss(model, batch) is given, without torch.no_grad() or .detach()."
        )
    return drawn
