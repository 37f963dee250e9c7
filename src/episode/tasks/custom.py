"""A task in one Python file of the user's: `my_task.py:MyTask`."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from episode.errors import EpisodeError, unknown
from episode.federation.protocols import Task
from episode.tasks.settings import TaskSettings


def is_custom(name: str) -> bool:
    """Whether a task's name is that of a file and something in it."""
    return name.partition(":")[0].endswith(".py")


def custom_task(name: str) -> type[TaskSettings]:
    """The `TaskSettings` in a file, or a function of (seed, device) made into one."""
    file, _, wanted = name.partition(":")
    module = _load(Path(file).expanduser())
    public = {k: v for k, v in vars(module).items() if not k.startswith("_") and callable(v)}
    if not wanted:
        raise EpisodeError(f"Say which task of {file} is meant: {file}:MyTask.")
    if wanted not in public:
        own = [k for k, v in public.items() if getattr(v, "__module__", "") == module.__name__]
        raise unknown("task", name, [f"{file}:{k}" for k in own])
    found = public[wanted]
    if isinstance(found, type):
        if issubclass(found, TaskSettings):
            return _guarded(name, found)
        raise EpisodeError(
            f"{name} is a class, but no TaskSettings: derive it from "
            "episode.tasks.settings.TaskSettings, or give a function of (seed, device)."
        )

    class Made(TaskSettings):
        summary: ClassVar[str] = (found.__doc__ or wanted).strip().splitlines()[0]
        defaults: ClassVar[dict[str, dict[str, Any]]] = getattr(found, "defaults", {})

        def build(self, seed: int, device: str) -> Task:
            return _built(name, lambda: found(seed, device))

    return Made


@functools.cache
def _guarded(name: str, found: type[TaskSettings]) -> type[TaskSettings]:
    """The class, with a `build` that says in a sentence why it failed; one for each, to compare."""
    if found.build is TaskSettings.build:
        raise EpisodeError(f"{name} has no build(self, seed, device), which makes the task.")

    class Guarded(found):  # type: ignore[valid-type, misc]
        def build(self, seed: int, device: str) -> Task:
            return _built(name, lambda: super(Guarded, self).build(seed, device))

    return Guarded


def _built(name: str, build: Callable[[], Task]) -> Task:
    file = Path(name.partition(":")[0]).expanduser()
    try:
        task = build()
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{name} failed: {_place(file, error)}.") from error
    if not isinstance(getattr(task, "num_clients", None), int):
        raise EpisodeError(
            f"{name} returned {type(task).__name__}: it must return a task, such as a NeuralTask."
        )
    return task


def _place(file: Path, error: Exception) -> str:
    """What was wrong, and in which line of the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file.resolve())]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
    return f"{type(error).__name__} in line {line}: {error}"


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise EpisodeError(
            f"There is no file {path} in {Path.cwd()}: give the path of a task, my_task.py:MyTask, "
            "as seen from where you are."
        )
    resolved = path.resolve()
    if str(resolved.parent) not in sys.path:  # for the modules beside it
        sys.path.append(str(resolved.parent))
    # A name of its own for each file, so that two files of one name are two modules.
    unique = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    name = f"episode_custom_{path.stem}_{unique}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise EpisodeError(f"{path} cannot be imported: {_place(path, error)}.") from error
    return module
