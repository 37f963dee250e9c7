"""Callbacks: observers of a run that are told when it begins and ends, such as trackers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.runs.records import Record


class Callback:
    """Base class of observers that need to know when a run begins and ends.

    Override what you need, and give it to `fit` as `observe`. On a cluster, only the first process
    calls it.

    Example:
        >>> class Counter(Callback):
        ...     rounds = 0
        ...     def __call__(self, record):
        ...         self.rounds += 1
        >>> counter = Counter()
        >>> counter({"round": 0, "loss": 1.0})
        >>> counter.rounds
        1
    """

    def begin(self, config: Mapping[str, Any], folder: Path | None) -> None:
        """Is called before the first round.

        Args:
            config: The run's description, as in its config.json.
            folder: Where the run is written, if it is.
        """

    def __call__(self, record: Record) -> object:
        """Is called with the record of each round; if it returns "stop", the run ends there."""
        return None

    def end(self, finished: bool) -> None:
        """Is called after the last round, with whether the run ended without an error."""


class TensorBoard(Callback):
    """Writes the rounds as TensorBoard events, for `tensorboard --logdir runs`.

    Args:
        folder: Where to write; by default into the run's folder.

    Raises:
        EpisodeError: TensorBoard is not installed, or there is no folder to write to.

    Example:
        >>> tracker = TensorBoard("runs/mine")  # fit(..., observe=tracker)
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def begin(self, config: Mapping[str, Any], folder: Path | None) -> None:
        from episode.runs.tensorboard import tensorboard_events

        if self._folder is None and folder is None:
            raise EpisodeError("TensorBoard has no folder to write to: give it one, or fit one.")
        place = Path(self._folder) if self._folder is not None else folder
        assert place is not None
        self._write = self._stack.enter_context(tensorboard_events(place))

    def __call__(self, record: Record) -> object:
        return self._write(record)

    def end(self, finished: bool) -> None:
        self._stack.close()


class MLflow(Callback):
    """Logs settings and rounds to MLflow, as one of its runs.

    Args:
        experiment: Name of MLflow's experiment.
        run_name: Name of MLflow's run; by default that of the folder.
        tracking_uri: Where MLflow keeps its runs; by default as MLflow is set up.

    Raises:
        EpisodeError: MLflow is not installed.

    Example:
        >>> tracker = MLflow("digits", tracking_uri="sqlite:///mlflow.db")
    """

    def __init__(
        self,
        experiment: str = "episode",
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self._experiment, self._name, self._uri = experiment, run_name, tracking_uri
        self._client: Any = None
        self._run = ""

    def begin(self, config: Mapping[str, Any], folder: Path | None) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise _missing("MLflow", "mlflow") from None
        self._client = client = MlflowClient(self._uri)
        found = client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else client.create_experiment(self._experiment)
        name = self._name or (folder.name if folder else None)
        self._run = client.create_run(number, run_name=name).info.run_id
        for key, value in flat(config).items():
            client.log_param(self._run, key, str(value)[:500])

    def __call__(self, record: Record) -> object:
        for name, value in numbers(record).items():
            self._client.log_metric(self._run, name, value, step=record["round"])
        return None

    def end(self, finished: bool) -> None:
        if self._run:
            self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


class WandB(Callback):
    """Logs settings and rounds to Weights & Biases.

    Args:
        project: Name of the project.
        **options: Further arguments of `wandb.init`, such as `mode="offline"`, `dir` or `name`.

    Raises:
        EpisodeError: wandb is not installed.

    Example:
        >>> tracker = WandB("digits", mode="offline")
    """

    def __init__(self, project: str = "episode", **options: Any) -> None:
        self._options = {"project": project, **options}
        self._run: Any = None

    def begin(self, config: Mapping[str, Any], folder: Path | None) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("Weights & Biases", "wandb") from None
        name = {"name": folder.name} if folder else {}
        self._run = wandb.init(config=dict(config), **{**name, **self._options})

    def __call__(self, record: Record) -> object:
        self._run.log(numbers(record), step=record["round"])
        return None

    def end(self, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)


def numbers(record: Record) -> dict[str, float]:
    """Return the finite numbers of a record: those of the round, and the metrics.

    Example:
        >>> numbers({"round": 2, "loss": 0.5, "cohort": [0], "metrics": {"accuracy": 0.9}})
        {'loss': 0.5, 'metrics/accuracy': 0.9}
    """
    values = {k: v for k, v in record.items() if k != "round"}
    values |= {f"metrics/{k}": v for k, v in values.pop("metrics", {}).items()}
    kinds = (int, float)
    return {
        k: float(v) for k, v in values.items() if isinstance(v, kinds) and math.isfinite(float(v))
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys.

    Example:
        >>> flat({"seed": 0, "budget": {"rounds": 3}})
        {'seed': 0, 'budget.rounds': 3}
    """
    return dict(_items(values, prefix))


def _items(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _missing(name: str, extra: str) -> EpisodeError:
    return EpisodeError(f"{name} is not installed: pip install 'episode-fl[{extra}]'.")
