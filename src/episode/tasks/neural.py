"""Any `nn.Module`, any loss, any clients' data as a task: the module sees one flat vector."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.core.vectors import Vector, cut
from episode.data.batches import Batches
from episode.errors import ClientError, EpisodeError, NotTwiceDifferentiableError
from episode.federation.protocols import Draw, Objective, Task
from episode.federation.state import Buffers
from episode.randomness import derive
from episode.tasks.precision import Precision, check_precision

Loss = Callable[[nn.Module, Any], Tensor]
Evaluate = Callable[[nn.Module], Mapping[str, float]]


class NeuralTask(Task):
    """A model and its clients.

    `loss(model, batch)` gives a scalar, the mean over the batch; `evaluate(model)` gives named
    figures of a model in evaluation mode. Frozen parameters are shared by all replicas.
    `precision="bfloat16"` computes losses under torch's autocast; parameters, gradients, anchors
    and steps keep the model's own precision. `first` is the number of the first client, where these
    are not all of a federation.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[Any],
        loss: Loss,
        *,
        batch_size: int,
        seed: int = 0,
        evaluate: Evaluate | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        precision: Precision = "float32",
        first: int = 0,
    ) -> None:
        _check(model, clients, loss, batch_size)
        check_precision(precision, next(model.parameters()).device.type)
        self.precision = precision
        self.model = model
        self.loss = loss
        self.seed = seed
        self.batches = [
            Batches(data, batch_size, seed, client, collate)
            for client, data in enumerate(clients, first)
        ]
        self.num_clients = len(self.batches)
        self._first = first
        self._evaluate = evaluate
        small = [i for i, b in enumerate(self.batches, first) if b.batch_size < batch_size]
        if small:
            names = f"Clients {small} have" if len(small) > 1 else f"Client {small[0]} has"
            warnings.warn(
                f"{names} fewer examples than a batch of {batch_size}: "
                "each trains on all it has at every step.",
                stacklevel=3,
            )
        replica = _Replica(self)
        self._start = replica.x.clone(), replica.buffers()
        self.draws_random_numbers = _try_out(replica, first)
        self._evaluated = _Replica(self) if evaluate else None

    def examples(self, client: int) -> int:
        return self.batches_of(client).examples

    def batches_of(self, client: int) -> Batches:
        """The batches of a client, by its number in the federation."""
        return self.batches[client - self._first]

    def initial(self) -> tuple[Tensor, Buffers]:
        return self._start[0].clone(), self._start[1]

    def objective(self) -> Objective:
        return _Replica(self)

    def evaluate(self, x: Tensor, buffers: Buffers) -> dict[str, float]:
        if self._evaluate is None or self._evaluated is None:
            return {}
        self._evaluated.x.copy_(x)
        self._evaluated.load_buffers(buffers)
        module = self._evaluated.module.eval()
        with torch.no_grad(), self.autocast(x.device):
            metrics = self._evaluate(module)
        try:
            return {str(name): float(value) for name, value in metrics.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise EpisodeError(
                f"evaluate(model) returned {_short(metrics)}: it must return a dict of names and "
                'numbers, for example {"accuracy": 0.9}.'
            ) from None

    def install(self, x: Tensor, buffers: Buffers) -> nn.Module:
        """Writes x̄ and its buffers into the user's model, and returns it."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            for p, values in zip(parameters, cut(x, [p.detach() for p in parameters]), strict=True):
                p.copy_(values)
        _write_buffers(self.model, buffers)
        return self.model

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        """The model's state at x̄, to store beside a run."""
        return self.install(x, buffers).state_dict()

    def autocast(self, device: torch.device) -> torch.autocast:
        """The context in which the model computes."""
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
        self._autocast = task.autocast(self._device)  # to make one takes longer than to enter it
        self._attach()

    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        loss = self._seeded_loss(draw)
        # Zeros for parameters that this batch did not touch.
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return loss.detach(), list(gradients)

    def hessian_product(self, draw: Draw) -> Callable[[Tensor], Tensor]:
        """v ↦ ∇²F_i(x; ξ)v at the present x, by differentiating twice.

        A loss with kinks (ReLU, hinge, max-pooling) is refused: its second derivative misses them.
        """
        loss = self._seeded_loss(draw)
        if kinds := kinks(loss):
            raise NotTwiceDifferentiableError(
                f"The loss is not twice differentiable: it has kinks ({', '.join(kinds)})."
            )
        try:
            with warnings.catch_warnings():  # a graph of a graph is meant, and freed with it
                warnings.simplefilter("ignore", UserWarning)
                first = torch.autograd.grad(
                    loss, self._parameters, create_graph=True, materialize_grads=True
                )
            gradient = torch.cat([g.reshape(-1) for g in first])
            if not gradient.requires_grad:
                return torch.zeros_like  # linear in x
            _second(gradient, self._parameters, torch.zeros_like(gradient))
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0][:100].rstrip(".")
            raise NotTwiceDifferentiableError(
                f"The loss is not twice differentiable by torch ({reason})."
            ) from None
        return lambda v: _second(gradient, self._parameters, v)

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

    def _seeded_loss(self, draw: Draw) -> Tensor:
        if self._task.draws_random_numbers:
            key = (self._task.seed, "model", draw.client, draw.stream, draw.index)
            torch.manual_seed(derive(*key))
        return self._loss(draw)

    def _loss(self, draw: Draw) -> Tensor:
        batch = self._task.batches_of(draw.client).draw(draw.stream, draw.index)
        with self._autocast:
            return self._task.loss(self.module, to_device(batch, self._device))

    def _attach(self) -> None:
        """Makes the parameters views of x; again where a module has re-pointed them (cuDNN)."""
        for p, view in zip(self._parameters, self.blocks, strict=True):
            if p.data_ptr() != view.data_ptr():
                p.data = view


KINKED = ("Relu", "Abs", "Max", "Min", "Amax", "Amin", "Clamp", "Threshold", "Hard", "Margin")
"""How torch names the steps of a graph that have no second derivative everywhere."""
SMOOTH = ("LogSoftmax", "MaxUnpool")


def kinks(loss: Tensor) -> list[str]:
    """The operations in the loss's graph that are not twice differentiable, by torch's names."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name().removesuffix("0").removesuffix("Backward")
        if any(k in name for k in KINKED) and not any(k in name for k in SMOOTH):
            found.add(name)
        waiting += [parent for parent, _ in node.next_functions]
    return sorted(found)


def _second(gradient: Tensor, parameters: list[nn.Parameter], v: Tensor) -> Tensor:
    blocks = torch.autograd.grad(gradient, parameters, v, retain_graph=True, materialize_grads=True)
    return torch.cat([b.reshape(-1) for b in blocks])


def _write_buffers(model: nn.Module, buffers: Buffers) -> None:
    floats, integers = buffers.floats, buffers.integers
    with torch.no_grad():
        for buffer in model.buffers():
            source = floats if buffer.is_floating_point() else integers
            buffer.copy_(source[: buffer.numel()].view(buffer.shape))
            if buffer.is_floating_point():
                floats = floats[buffer.numel() :]
            else:
                integers = integers[buffer.numel() :]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on the device, whatever it is made of."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _check(model: nn.Module, clients: Sequence[Any], loss: Loss, batch_size: int) -> None:
    if not isinstance(model, nn.Module):
        raise EpisodeError(f"model is a {type(model).__name__}: give an nn.Module.")
    if not callable(loss):
        raise EpisodeError(
            f"loss is a {type(loss).__name__}: give a function of (model, batch) to a scalar."
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
    if isinstance(clients, Mapping) or not isinstance(clients, Sequence):
        raise EpisodeError(
            f"clients is a {type(clients).__name__}: give a list with one dataset per client."
        )
    if len(clients) == 0:
        raise EpisodeError("There are no clients: give at least one dataset.")
    if batch_size < 1:
        raise EpisodeError(f"batch_size is {batch_size}: it must be 1 or more.")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value) if len(repr(value)) < 60 else f"a {type(value).__name__}"


def _try_out(replica: _Replica, client: int) -> bool:
    """One gradient, before any work: is the loss a scalar, and does the model draw random numbers?

    (Dropout does. Then each gradient seeds torch's generator, and one worker serves all clients.)
    """
    replica._task.draws_random_numbers = False
    before = torch.get_rng_state()
    try:
        loss = replica._loss(Draw(client, "local", 0))
    except EpisodeError:
        raise
    except Exception as error:
        raise ClientError(
            f"The loss failed on client {client}'s first batch: {type(error).__name__}: {error}"
        ) from error
    drawn = not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise EpisodeError(
            f"The loss is {shape}: it must be a scalar tensor, a mean over the batch."
        )
    if not loss.requires_grad:
        raise EpisodeError(
            "The loss does not depend on the model's trainable parameters: compute it from the "
            "model that loss(model, batch) is given, without torch.no_grad() or .detach()."
        )
    return drawn
