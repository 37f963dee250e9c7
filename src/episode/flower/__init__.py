"""Flower: an `EpisodeStrategy` for the ServerApp, `attach` for the ClientApp, and our own apps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from episode.flower.strategy import EpisodeStrategy, attach

__all__ = ["EpisodeStrategy", "attach"]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that `flwr` is needed only by those who use it."""
    if name not in __all__:
        raise AttributeError(f"module 'episode.flower' has no attribute {name!r}")
    from episode.flower import strategy

    return getattr(strategy, name)
