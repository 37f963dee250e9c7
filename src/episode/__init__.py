"""EPISODE: federated training that does not blow up.

`fit` trains a model of yours, `diagnose` measures it first; `episode --help` is the command line;
`episode.testing` holds the checks that prove the maths, for our algorithms, tasks and engines and
for yours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from episode.errors import ClientError, EpisodeError
from episode.version import __version__

if TYPE_CHECKING:
    from episode.core import (
        ALGORITHMS,
        Algorithm,
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
    from episode.diagnosis.diagnose import Diagnosis, diagnose
    from episode.federation.sampling import Cyclic, Full, Uniform
    from episode.runs.fit import fit
    from episode.runs.records import Run

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientError",
    "Cyclic",
    "Descent",
    "Diagnosis",
    "EpisodeError",
    "Episodic",
    "Full",
    "Guarded",
    "PerStep",
    "Remembered",
    "Resampled",
    "Run",
    "Schedule",
    "Synchronous",
    "Unclipped",
    "Uncorrected",
    "Uniform",
    "__version__",
    "diagnose",
    "fit",
]

_HOMES = {
    "Cyclic": "episode.federation.sampling",
    "Diagnosis": "episode.diagnosis.diagnose",
    "Full": "episode.federation.sampling",
    "Run": "episode.runs.records",
    "Uniform": "episode.federation.sampling",
    "diagnose": "episode.diagnosis.diagnose",
    "fit": "episode.runs.fit",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: torch takes seconds, and help should not."""
    if name not in __all__:
        raise AttributeError(f"module 'episode' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "episode.core")), name)
