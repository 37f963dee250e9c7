"""The processes that play one run together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from episode.results.strict_json import dumps, loads


class Processes:
    """By default this process alone; engines that use several derive from it."""

    rank = 0
    size = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes the run's folder and talks to the user."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process, where `cuda` may mean one of several GPUs."""
        return name

    def enter(self, where: str) -> None:
        """Announce what this process is about to do, for error messages of the others."""

    def from_first(self, data: bytes) -> bytes:
        """Return the first process's data, on every process."""
        return data

    def value_of_first(self, value: Any) -> Any:
        """Return the first process's value, which must be JSON, on every process."""
        return loads(self.from_first(dumps(value).encode()).decode())

    def gather(self, subject: str, text: str) -> list[str]:
        """Return every process's text, in order of rank, to the first; others get an empty list."""
        return [text]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Tell the other processes if this one fails within, and explain an end caused by them."""
        yield

    def leave(self) -> None:
        """Close the connections to the others."""

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says about its processes."""
        return {}
