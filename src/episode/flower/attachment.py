"""One call that makes a Flower ClientApp a site of `EpisodeStrategy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import default_collate

from episode.errors import EpisodeError
from episode.flower.client import Site, add_actions
from episode.flower.layout import Layout
from episode.tasks.neural import Loss, NeuralTask


def attach(
    app: ClientApp,
    model_fn: Callable[[], nn.Module],
    data_fn: Callable[[Context], Any],
    loss: Loss,
    *,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    threads: int | None = None,
) -> None:
    """Add to a ClientApp the actions that `EpisodeStrategy` asks of a site.

    Args:
        app: The app of the site.
        model_fn: Returns the model.
        data_fn: `data_fn(context)` returns this site's training data: a map-style dataset or a
            tuple of tensors.
        loss: `loss(model, batch)` returns the mean loss of the batch, a scalar.
        batch_size: Examples in a batch; by default the run config's `batch-size`.
        collate: Turns a list of examples into a batch.
        threads: Number of threads that torch may use; by default, as many as it is set to.

    Example:
        >>> import torch
        >>> from flwr.clientapp import ClientApp
        >>> from episode.flower import attach
        >>> def load_data(context):
        ...     return torch.randn(20, 3), torch.randn(20, 1)
        >>> def loss(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> app = ClientApp()
        >>> attach(app, lambda: torch.nn.Linear(3, 1), load_data, loss, batch_size=10)
    """

    def make_site(context: Context, client: int, seed: int) -> Site:
        size = context.run_config.get("batch-size") if batch_size is None else batch_size
        if type(size) is not int:
            raise EpisodeError(
                f"The batch size is {size!r}: give attach(..., batch_size=32), or set batch-size "
                "in [tool.flwr.app.config]."
            )
        model = model_fn()
        task = NeuralTask(
            model,
            [data_fn(context)],
            loss,
            batch_size=size,
            seed=seed,
            collate=collate,
            first=client,
        )
        return Site(task, client, Layout.of(model))

    add_actions(app, make_site, threads)
