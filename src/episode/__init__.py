"""EPISODE: federated training that does not blow up.

`fit` trains a model of yours; `episode --help` is the command line; `episode.testing` holds the
checks that prove the maths, for our algorithms, tasks and engines and for yours.
"""

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
from episode.errors import ClientError, EpisodeError
from episode.experiments.fit import fit
from episode.experiments.run import Run
from episode.federation.sampling import Cyclic, Full, Uniform
from episode.version import __version__

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientError",
    "Cyclic",
    "Descent",
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
    "fit",
]
