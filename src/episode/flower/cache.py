"""What a site's process keeps between messages, because building it may mean reading data.

A SuperNode starts a new process for every message, but processes of a simulation serve many, and
unpickle the app each time: only the process itself can remember. Entries are a pure function of
their key, so losing one costs time only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """The entries that were used last.

    Args:
        size: How many entries are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the entry of this key, made now if it is not there."""
        if key not in self._entries:
            self._entries[key] = make()
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        entry: T = self._entries[key]
        return entry


WORKERS = Cache(4)
TASKS = Cache(1)
"""The caches of this process: workers of a few clients, and the task that they share."""
