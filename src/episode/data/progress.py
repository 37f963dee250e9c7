"""How far long work on data has come, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")
Show = Callable[[Iterable[Any], str, int | None], Iterable[Any]]
"""Passes on what it is given, and shows how far it has come: (items, what, how many if known)."""


def _silently(items: Iterable[Any], what: str, total: int | None) -> Iterable[Any]:
    return items


_show: ContextVar[Show] = ContextVar("show", default=_silently)


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
    """The items, passed on as they are; where progress is `shown`, their number is."""
    return _show.get()(items, what, total)


@contextmanager
def shown(show: Show) -> Iterator[None]:
    """Within it, `show` sees all that is tracked."""
    before = _show.set(show)
    try:
        yield
    finally:
        _show.reset(before)
