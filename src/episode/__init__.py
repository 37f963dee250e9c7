"""EPISODE: federated training that does not blow up.

`fit` trains your model, and `diagnose` measures it first. The command line is `episode --help`.
`episode.testing` holds checks that prove the maths, for this package's algorithms, tasks and
engines and for your own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "episode.core": (
        "ALGORITHMS AdamW Algorithm Clipping Correction Descent Episodic FullTrust Guarded "
        "MeasuredTrust PerStep Remembered Resampled Schedule ServerAdagrad ServerAdam ServerAdamW "
        "ServerMean ServerSGD ServerStep ServerYogi Synchronous Trust Unclipped Uncorrected"
    ),
    "episode.data.clients": "LazyClients",
    "episode.data.partition": "by_dirichlet by_id by_label_count by_similarity by_user_similarity",
    "episode.diagnosis.diagnose": "Diagnosis diagnose",
    "episode.errors": "ClientError EpisodeError",
    "episode.federation.protocols": "Engine Task",
    "episode.federation.sampling": "Cyclic Full Uniform",
    "episode.runs.callbacks": "Callback MLflow TensorBoard WandB",
    "episode.runs.fit": "fit",
    "episode.runs.loading": "load_run",
    "episode.runs.monitor": "Monitor",
    "episode.runs.records": "Run",
    "episode.studies.from_python": "Tuned sweep tune",
    "episode.tasks.neural": "NeuralTask",
    "episode.tasks.settings": "TaskSettings",
    "episode.version": "__version__",
}
"""Public names by module; `__init__.pyi` says the same to type checkers and editors."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing torch takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module 'episode' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names, so that editors and notebooks can complete them."""
    return __all__
