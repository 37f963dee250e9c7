"""EPISODE: federated training that does not blow up.

`fit` trains your model, and `diagnose` measures it first. The command line is `episode --help`.
`episode.testing` holds checks that prove the maths, for this package's algorithms, tasks and
engines and for your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from episode.errors import ClientError, EpisodeError
from episode.version import __version__

if TYPE_CHECKING:
    from episode.core import (
        ALGORITHMS,
        Algorithm,
        Clipping,
        Correction,
        Descent,
        Episodic,
        Guarded,
        PerStep,
        Remembered,
        Resampled,
        Schedule,
        Synchronous,
        Unclipped,
        Uncorrected,
    )
    from episode.data.partition import (
        by_dirichlet,
        by_id,
        by_label_count,
        by_similarity,
        by_user_similarity,
    )
    from episode.diagnosis.diagnose import Diagnosis, diagnose
    from episode.federation.protocols import Engine, Task
    from episode.federation.sampling import Cyclic, Full, Uniform
    from episode.runs.fit import fit
    from episode.runs.monitor import Monitor
    from episode.runs.records import Run
    from episode.tasks.neural import NeuralTask
    from episode.tasks.settings import TaskSettings

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientError",
    "Clipping",
    "Correction",
    "Cyclic",
    "Descent",
    "Diagnosis",
    "Engine",
    "EpisodeError",
    "Episodic",
    "Full",
    "Guarded",
    "Monitor",
    "NeuralTask",
    "PerStep",
    "Remembered",
    "Resampled",
    "Run",
    "Schedule",
    "Synchronous",
    "Task",
    "TaskSettings",
    "Unclipped",
    "Uncorrected",
    "Uniform",
    "__version__",
    "by_dirichlet",
    "by_id",
    "by_label_count",
    "by_similarity",
    "by_user_similarity",
    "diagnose",
    "fit",
]

_MODULES = {
    "Cyclic": "episode.federation.sampling",
    "Diagnosis": "episode.diagnosis.diagnose",
    "Engine": "episode.federation.protocols",
    "Full": "episode.federation.sampling",
    "Monitor": "episode.runs.monitor",
    "NeuralTask": "episode.tasks.neural",
    "Run": "episode.runs.records",
    "Task": "episode.federation.protocols",
    "TaskSettings": "episode.tasks.settings",
    "Uniform": "episode.federation.sampling",
    "by_dirichlet": "episode.data.partition",
    "by_id": "episode.data.partition",
    "by_label_count": "episode.data.partition",
    "by_similarity": "episode.data.partition",
    "by_user_similarity": "episode.data.partition",
    "diagnose": "episode.diagnosis.diagnose",
    "fit": "episode.runs.fit",
}
"""Where a public name is defined, unless it is in `episode.core`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'episode' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "episode.core")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
