"""A trial before training: one loss and its gradient, on a copy of the model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from episode.arguments import shown
from episode.errors import ClientError, EpisodeError
from episode.federation.protocols import Task
from episode.tasks.second_derivatives import operations


class Drawn(Enum):
    """Who draws from torch's generator while a gradient is computed."""

    NOTHING = "nobody"
    BY_LOSS = "the loss alone, such as dropout"
    BY_GRADIENT = "also the gradient, such as layers that are computed again"

    @classmethod
    def of(cls, task: Task) -> Drawn:
        """Return who draws for the gradients of a task."""
        if not task.draws_random_numbers:
            return cls.NOTHING
        return cls.BY_LOSS if task.takes_turns else cls.BY_GRADIENT


_KNOWN: ContextVar[Drawn | None] = ContextVar("known", default=None)


@contextmanager
def tried_before(drawn: Drawn | None) -> Iterator[None]:
    """Let tasks that are built meanwhile rely on a trial in another process, if there was one."""
    token = _KNOWN.set(drawn)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def copy_of(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model that shares its frozen parameters.

    Raises:
        EpisodeError: The model holds something that cannot be copied.
    """
    known: dict[int, Any] = {id(p): p for p in model.parameters() if not p.requires_grad}
    for module in model.modules():
        # weight_norm and pruning compute such tensors anew before each forward pass.
        recomputed = vars(module).values() if module._forward_pre_hooks else ()
        known |= {id(t): t.detach().clone() for t in recomputed if _is_computed(t)}
    try:
        return copy.deepcopy(model, known)
    except Exception as error:
        reason = str(error).split(". ")[0].rstrip(".")
        raise EpisodeError(
            f"The model cannot be copied, and each worker trains a copy ({type(error).__name__}: "
            f"{reason}): remove attributes such as open files, locks, generators and tensors with "
            "a graph."
        ) from error


def _is_computed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def try_loss(loss: Callable[[], Tensor], module: nn.Module, model: nn.Module, client: int) -> Drawn:
    """Compute one loss and its gradient before any work, unless that was done before.

    Args:
        loss: Returns the loss of the client's first batch.
        module: The copy of the model that the loss is given.
        model: The user's own model, which the loss must not use.
        client: The client, for messages.

    Returns:
        Who draws random numbers. Each gradient then seeds torch's generator first; if only losses
        draw, workers take turns at them, and otherwise one worker serves all clients.

    Raises:
        EpisodeError: The loss cannot be used to train the model; says why.
        ClientError: The loss or its gradient failed.
    """
    if (known := _KNOWN.get()) is not None:
        return known
    before = torch.get_rng_state()
    value = _attempt("loss", client, loss)
    _check_value(value)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    graph = operations(value)
    if any(node.name() == "CheckpointFunctionBackward" for node in graph):
        raise EpisodeError(
            "The model calls torch.utils.checkpoint with use_reentrant=True, which hides "
            "parameters from the gradient: use use_reentrant=False."
        )
    after_loss = torch.get_rng_state()
    with _noticing_forks() as forks:
        gradients = _attempt(
            "gradient",
            client,
            lambda: torch.autograd.grad(value, list(trained.values()), allow_unused=True),
        )
    by_gradient = bool(forks) or not torch.equal(after_loss, torch.get_rng_state())
    by_loss = not torch.equal(before, after_loss)
    torch.set_rng_state(before)
    _check_gradients(dict(zip(trained, gradients, strict=True)))
    # Copies of scripted modules share the ends of their graphs with the original.
    if not any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        leaves = [node.variable for node in graph if hasattr(node, "variable")]
        _check_other_parameters(leaves, trained.values(), model)
    if by_gradient:
        return Drawn.BY_GRADIENT
    return Drawn.BY_LOSS if by_loss else Drawn.NOTHING


@contextmanager
def _noticing_forks() -> Iterator[list[bool]]:
    """Notice who sets torch's generator back for a while, as torch.utils.checkpoint does."""
    fork, noticed = torch.random.fork_rng, list[bool]()

    def noticing(*args: Any, **options: Any) -> Any:
        if options.get("enabled", True):
            noticed.append(True)
        return fork(*args, **options)

    torch.random.fork_rng = noticing
    try:
        yield noticed
    finally:
        torch.random.fork_rng = fork


def _attempt(what: str, client: int, compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except EpisodeError:
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "no message")  # torch adds pages to some
        raise ClientError(
            f"The {what} failed on client {client}'s first batch: {type(error).__name__}: {reason}"
        ) from error


def _check_value(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise EpisodeError(
            f"The loss is {shown(loss)}: it must be a scalar tensor, a mean over the batch."
        )
    if loss.is_complex():
        raise EpisodeError("The loss is a complex number: it must be a real one.")
    if not loss.requires_grad:
        raise _independent()


def _independent() -> EpisodeError:
    return EpisodeError(
        "The loss does not depend on the model's trainable parameters: compute it from the "
        "model that loss(model, batch) is given, without torch.no_grad() or .detach()."
    )


def _check_gradients(gradients: Mapping[str, Tensor | None]) -> None:
    """Refuse a loss whose graph does not reach the model; gradients may be zero, though."""
    found = {name: g for name, g in gradients.items() if g is not None}
    if not found:
        raise _independent()
    for name, gradient in found.items():
        if gradient.layout != torch.strided:
            raise EpisodeError(
                f"The gradient of {name} is sparse, which is not supported: use sparse=False in "
                "its layer."
            )


def _check_other_parameters(
    leaves: Iterable[Tensor], trained: Iterable[nn.Parameter], model: nn.Module
) -> None:
    """Refuse a loss that also uses the user's own model; warn if it uses another one."""
    own = {id(p) for p in trained}
    others = {id(p) for p in leaves if isinstance(p, nn.Parameter) and id(p) not in own}
    if any(id(p) in others for p in model.parameters()):
        raise EpisodeError(
            "A part of the loss is computed from the model that was passed beside it, but clients "
            "train copies: use only the model that loss(model, batch) is given."
        )
    if others:
        warnings.warn(
            f"The loss uses {len(others)} trainable parameters that are not the model's: they are "
            "not trained. Put them into the model, or set their requires_grad to False.",
            stacklevel=5,
        )
