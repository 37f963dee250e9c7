"""Evaluation of a model for one client at a time, on the data that it has held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from episode.arguments import shown
from episode.data.holdout import examples_of, in_order
from episode.errors import ClientError, EpisodeError
from episode.federation.protocols import Task

Datasets = Sequence[Any] | Mapping[int, Any]
"""A dataset for each client, or for those that are here; None or an empty one for a client that
holds out nothing."""
EvaluateClient = Callable[[nn.Module, Any], Mapping[str, float]]
"""Returns metrics of a model in evaluation mode on one client's held-out data, by name."""


@dataclass(frozen=True)
class ClientEvaluation:
    """Metrics of a model for each client."""

    held_out: Datasets
    evaluate: EvaluateClient
    task: Task

    @classmethod
    def of(
        cls,
        task: Task,
        held_out: Datasets | None,
        evaluate: EvaluateClient | None,
        by_default: EvaluateClient,
    ) -> ClientEvaluation | None:
        """Return the evaluation of a task's clients; None if they hold out nothing.

        Raises:
            EpisodeError: There is a function but no data, or not one dataset for each client.
        """
        if held_out is None:
            if evaluate is not None:
                raise EpisodeError(
                    "evaluate_client needs data that clients do not train on: give holdout=0.2, "
                    "or one dataset per client."
                )
            return None
        if not isinstance(held_out, Mapping) and len(held_out) != task.num_clients:
            raise EpisodeError(
                f"holdout has {len(held_out)} datasets for {task.num_clients} clients: give one "
                "for each, or None for a client that holds out nothing."
            )
        return cls(held_out, evaluate or by_default, task)

    def __call__(self, client: int, model: nn.Module) -> dict[str, float]:
        """Return the metrics on one client's held-out data; empty if it has none."""
        own = self.held_out
        data = own.get(client) if isinstance(own, Mapping) else own[client]
        if data is None or examples_of(data) == 0:
            return {}
        try:
            metrics = self.evaluate(model, data)
        except EpisodeError:
            raise
        except Exception as error:
            name, what = self.task.client_name(client), f"{type(error).__name__}: {error}"
            raise ClientError(f"evaluate_client failed for {name}: {what}") from error
        return as_metrics(metrics, "evaluate_client(model, data)")


def mean_loss(
    loss: Callable[[nn.Module, Any], Tensor],
    batch_size: int,
    collate: Callable[[list[Any]], Any],
) -> EvaluateClient:
    """Return an evaluation by the loss alone, as `holdout_loss`: its mean over all examples."""

    def evaluate(model: nn.Module, data: Any) -> dict[str, float]:
        total, examples = 0.0, 0
        for count, batch in in_order(data, batch_size, collate):
            total += count * float(loss(model, batch))
            examples += count
        return {"holdout_loss": total / examples}

    return evaluate


def as_metrics(found: Any, call: str) -> dict[str, float]:
    """Return metrics as plain numbers by name; refuse anything else that `call` returned."""
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise EpisodeError(
            f"{call} returned {shown(found)}: it must return a dict of names and "
            'numbers, for example {"accuracy": 0.9}.'
        ) from None
