"""The one place where the engine of a run is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from episode.catalogue import ENGINES
from episode.engines.rendezvous import under_torchrun
from episode.errors import EpisodeError
from episode.federation.job import EngineSettings, Job
from episode.federation.processes import Processes
from episode.federation.protocols import Engine


def engine_class(name: str) -> type[Engine]:
    """Return the class of an engine: built in, installed, or in a file.

    Raises:
        EpisodeError: There is no such engine, or what is found is not an engine.
    """
    found = ENGINES.find(name)
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise EpisodeError(f"{name} is not an engine: derive it from episode.Engine.")
    return found


def settings_here(settings: EngineSettings) -> EngineSettings:
    """Return the settings as they apply here: under torchrun every run is distributed."""
    return replace(settings, name="distributed") if under_torchrun() else settings


def join(settings: EngineSettings, hello: Mapping[str, Any]) -> Processes:
    """Meet the other processes of the run, if there are any, before its task is built."""
    settings = settings_here(settings)
    return engine_class(settings.name).join(settings, hello)


def opener_of(job: Job) -> Callable[[Job], AbstractContextManager[Engine]]:
    """Return what opens the engine for this job.

    Raises:
        EpisodeError: The job is to be secure, which this engine cannot be.
    """
    name = settings_here(job.engine).name
    if job.engine.secure and not job.open_engine and name != "flower":
        raise EpisodeError(
            f"engine.secure is true, but engine.name is {name!r}: only 'flower' has sites that "
            "mask what they send; use it, or leave engine.secure out."
        )
    return job.open_engine or engine_class(name).open
