"""The ClientApp and the ServerApp of an experiment, for Flower's simulation and for real sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episode.federation.protocols import Task
from episode.flower.simulation import require_flower
from episode.results import store
from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import job_of, train

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

FOLDER = "folder"
"""The one setting of an app that is no part of its experiment: where the server writes the run."""
UNSET: dict[str, Any] = {"engine.min_replies": 0, "engine.max_norm": 0.0}
"""Settings without a default. `flwr run -c` can override only settings that an app names, so the
app gives them a value that means "not set"."""


def client_app(config: Mapping[str, Any] | None = None) -> ClientApp:
    """Return the app of a site.

    Args:
        config: The experiment, as `Experiment.to_dict` gives it; None takes the one in the app's
            run config.
    """
    require_flower()
    from flwr.clientapp import ClientApp

    from episode.flower.client import Site, add_actions

    def make_site(context: Context, client: int, seed: int) -> Site:
        given = _of_run_config(context.run_config).to_dict() if config is None else dict(config)
        return Site(_task(json.dumps(given)), client)

    app = ClientApp()
    add_actions(app, make_site, threads=1)  # as in a simulation, so that sums are the same
    return app


@lru_cache(maxsize=1)
def _task(experiment: str) -> Task:
    """Build the task of an experiment, given as JSON; the clients of one process share it."""
    described = Experiment.from_dict(json.loads(experiment))
    return described.task.build(described.seed, described.engine.device)


def server_app() -> ServerApp:
    """Return the server of an app that `episode flower app` wrote.

    Its experiment is in the run config.
    """
    require_flower()
    from flwr.serverapp import ServerApp
    from flwr.supercore import log

    from episode.flower.server import engine_on_sites, round_logger

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = _of_run_config(context.run_config)
        folder = Path(str(context.run_config.get(FOLDER) or f"runs/{experiment.name}")).absolute()
        log(20, "The run is written to %s", folder)
        job = replace(
            job_of(experiment), open_engine=lambda job: engine_on_sites(job, grid, folder)
        )
        run = train(job, folder, round_logger(job.plan))
        log(20, "The run has %s: %s", run.status, store.dumps(run.summary))

    return app


def run_config(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as the flat settings of a Flower app, which `-c` can override."""
    flat: dict[str, Any] = {FOLDER: "", **UNSET}

    def flatten(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                flatten(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = json.dumps(value) if isinstance(value, list) else value

    flatten(experiment.to_dict(), "")
    return flat


def _of_run_config(values: Mapping[str, Any]) -> Experiment:
    given = {k: v for k, v in values.items() if k != FOLDER and (v or k not in UNSET)}
    texts = {k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()}
    return read_experiment(None, [f"{k}={v}" for k, v in texts.items()])
