"""A job: all that is needed to play one run, on whatever engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.federation.owners import Owners
from episode.federation.processes import Processes
from episode.federation.protocols import Engine, Task
from episode.federation.rounds import Plan

MOST_CLIENTS = 100
"""Clients of which records are kept unless `record.per_client` says otherwise."""
MOST_EXAMPLES = 10**12
"""Largest number of examples of a site that is believed by default."""


@dataclass(frozen=True)
class EngineSettings:
    """Where clients run. Except for the device, it changes only speed and the order of sums."""

    name: str = "simulation"
    """One of `episode list engines`. Under torchrun every run is `distributed`."""
    workers: int | None = None
    """Threads of each process; None for one per core."""
    device: str = "cpu"
    """`cuda` gives each process of a cluster the GPU of its local rank."""
    timeout_seconds: float = 600.0
    """A process of a cluster, or a site in one phase, that is silent for so long counts as lost."""
    min_replies: int | None = None
    """Flower: number of sites that must take part in a round; None for the whole cohort."""
    retries: int = 2
    """Flower: how often a round with too few sites is attempted again."""
    max_norm: float | None = None
    """Flower: a site's gradient with a larger norm is rejected, and what only such ones lead to."""
    allow_takeover: bool = False
    """Flower: whether another node may take the place of a site, and be sent its state."""
    max_examples: int = MOST_EXAMPLES
    """Flower: a site that claims more examples is refused."""
    secure: bool | None = None
    """Flower: whether sites send masked values, of which the server reads only sums."""
    state_memory_mb: float = 1024.0
    """If the memories and momenta of a process's clients can take more, they are kept in a file."""

    def __post_init__(self) -> None:
        """Check the values."""
        least_of = {"workers": 1, "min_replies": 1, "retries": 0, "max_examples": 1}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise EpisodeError(f"engine.{name} is {value}: it must be {least} or more.")
        for name in ("timeout_seconds", "max_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise EpisodeError(f"engine.{name} is {value}: it must be a number above 0.")
        if not 0 <= self.state_memory_mb < math.inf:
            raise EpisodeError(
                f"engine.state_memory_mb is {self.state_memory_mb}: it must be 0 or more."
            )


@dataclass(frozen=True)
class RecordSettings:
    """What is recorded, and how often."""

    evaluate_every: int = 1
    """Rounds of I local steps between evaluations; 0 evaluates only at the end."""
    checkpoint_seconds: float = 30.0
    """Seconds of work that a crash may cost; 0 writes a checkpoint after every round."""
    per_client: bool | None = None
    """Whether records of each client are kept; None keeps them of at most 100 clients."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("evaluate_every", "checkpoint_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise EpisodeError(f"record.{name} is {value}: it must be 0 or more.")

    def keeps_clients(self, num_clients: int) -> bool:
        """Whether records of each of so many clients are kept."""
        return num_clients <= MOST_CLIENTS if self.per_client is None else self.per_client


@dataclass(frozen=True)
class Job:
    """A plan, the task to play it on, and how; `config` describes it in the run's folder."""

    plan: Plan
    task: Task
    config: dict[str, Any]
    """JSON values; those that decide the result make the run's identity."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    processes: Processes = field(default_factory=Processes)
    """The processes that play this run together."""
    owners: Owners | None = None
    """Which of them serves which client; None if there is one process."""
    folder: Path | None = None
    """Where the run is written; None if nothing is."""
    open_engine: Callable[[Job], AbstractContextManager[Engine]] | None = None
    """Opens the engine if `engine.name` cannot: Flower hands its apps a connection."""
