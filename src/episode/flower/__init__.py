"""Flower: `EpisodeStrategy` for the ServerApp, `attach` for the ClientApp, and apps of configs.

    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=8)           # in the ServerApp
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)

    attach(app, model_fn=Net, data_fn=load_data, loss=loss, batch_size=32)  # in the ClientApp

docs/flower.md says how to deploy an app, and what crosses the wire.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from episode.flower.simulation import require_flower

if TYPE_CHECKING:
    from episode.flower.client import attach
    from episode.flower.strategy import EpisodeStrategy

__all__ = ["EpisodeStrategy", "attach"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that only its users need `flwr`."""
    if name not in __all__:
        raise AttributeError(f"module 'episode.flower' has no attribute {name!r}")
    require_flower()
    module = "client" if name == "attach" else "strategy"
    return getattr(import_module(f"episode.flower.{module}"), name)
