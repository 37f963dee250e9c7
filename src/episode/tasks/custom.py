"""A task of one's own: its mistakes are explained in a sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from episode.errors import EpisodeError
from episode.federation.protocols import Task
from episode.registry import explain
from episode.tasks.settings import Share, TaskSettings


def checked_task(name: str, found: Any) -> type[TaskSettings]:
    """Return the settings class of a task that was found outside of this package.

    Its `build` says in a sentence why it failed. Equal arguments give the same class, so that
    settings can be compared.

    Args:
        name: Name of the task, for messages.
        found: A subclass of `TaskSettings`, or a function of (seed, device) that returns a task.

    Raises:
        EpisodeError: It is neither of them, or the class has no `build`.
    """
    is_class = isinstance(found, type)
    if is_class and issubclass(found, TaskSettings):
        if found.build is TaskSettings.build:
            raise EpisodeError(f"{name} has no build(self, seed, device), which makes the task.")
        return _with_checked_build(name, found)
    if callable(found) and not is_class:
        return _from_function(name, found)
    what = "a class, but no TaskSettings" if is_class else f"a {type(found).__name__}, not a task"
    raise EpisodeError(
        f"{name} is {what}: give a class derived from episode.TaskSettings, or a function of "
        "(seed, device)."
    )


@functools.cache
def _with_checked_build(name: str, found: type[TaskSettings]) -> type[TaskSettings]:
    class Checked(found):  # type: ignore[valid-type, misc]
        def build(self, seed: int, device: str) -> Task:
            return _built(name, lambda: super(Checked, self).build(seed, device))

        def build_share(self, share: Share, seed: int, device: str) -> Task:
            return _built(name, lambda: super(Checked, self).build_share(share, seed, device))

    return Checked


@functools.cache
def _from_function(name: str, function: Callable[[int, str], Task]) -> type[TaskSettings]:
    class FromFunction(TaskSettings):
        summary: ClassVar[str] = (function.__doc__ or name).strip().splitlines()[0]
        defaults: ClassVar[dict[str, dict[str, Any]]] = getattr(function, "defaults", {})

        def build(self, seed: int, device: str) -> Task:
            return _built(name, lambda: function(seed, device))

    return FromFunction


def _built(name: str, build: Callable[[], Task]) -> Task:
    try:
        task = build()
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{name} failed: {explain(error)}.") from error
    if not isinstance(getattr(task, "num_clients", None), int):
        raise EpisodeError(
            f"{name} returned {type(task).__name__}: it must return a task, such as a NeuralTask."
        )
    return task
