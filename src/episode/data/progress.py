"""Progress of long work on data, for any display that wants to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")
Display = Callable[[Iterable[Any], str, int | None], Iterable[Any]]
"""Passes on the items and shows progress, given (items, description, how many if known)."""


_display: ContextVar[Display] = ContextVar("display", default=lambda items, *_: items)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
    """Pass on the items, and report them to the display that `show_progress` has set, if any."""
    return _display.get()(items, description, total)


@contextmanager
def show_progress(display: Display) -> Iterator[None]:
    """Report everything that is tracked inside the `with` block to `display`."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)
