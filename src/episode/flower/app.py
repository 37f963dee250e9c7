"""A config on Flower: in its simulation here, or as an app at real sites."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episode.federation.protocols import Task
from episode.flower.simulation import require_flower, simulate
from episode.results import store
from episode.runs.config import Experiment, read_experiment
from episode.runs.records import Observe, Run
from episode.runs.trainer import Job, execute, job_of

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from episode.flower.sites import Introduction

FOLDER = "folder"
"""The setting of an app that is not the experiment's: where its server writes the run."""
UNSET: dict[str, Any] = {"engine.min_replies": 0, "engine.max_norm": 0.0}
"""Settings that have no value unless one is given: only what an app names can be overridden."""


def execute_on_flower(
    job: Job,
    experiment: Experiment,
    folder: Path | None,
    observe: Observe | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Plays the job in Flower's simulation, one node per client."""
    require_flower()
    if folder is not None and _has_ended(folder):
        return execute(job, folder, observe, stop)
    return simulate(
        client_app(experiment),
        lambda grid: _serve(grid, job, experiment, folder, observe, stop),
        job.task.num_clients,
        experiment.engine.workers,
    )


def client_app(experiment: Experiment | None = None) -> ClientApp:
    """A site of a config's task; without one, of that in the app's run config."""
    require_flower()
    from flwr.clientapp import ClientApp

    from episode.flower.client import Site, add_actions

    values = None if experiment is None else json.dumps(experiment.to_dict())

    def make_site(context: Context, client: int, seed: int) -> Site:
        text = values or json.dumps(_of_run_config(context.run_config).to_dict())
        task = _task(text)
        return Site(task, client)

    app = ClientApp()
    add_actions(app, make_site, threads=1)  # as in a simulation, so that sums are the same
    return app


def server_app() -> ServerApp:
    """The server of an app made by `episode flower app`: its experiment is in the run config."""
    require_flower()
    from flwr.serverapp import ServerApp
    from flwr.supercore import log

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = _of_run_config(context.run_config)
        folder = Path(str(context.run_config.get(FOLDER) or f"runs/{experiment.name}")).absolute()
        log(20, "The run is written to %s", folder)
        total = experiment.plan().rounds_to_play

        def observe(record: Mapping[str, Any]) -> None:
            log(20, "[ROUND %d/%d] loss %.4g", record["round"] + 1, total, record["loss"])

        run = _serve(grid, job_of(experiment), experiment, folder, observe)
        log(20, "The run has %s: %s", run.status, store.dumps(run.summary))

    return app


def run_config(experiment: Experiment) -> dict[str, Any]:
    """An experiment as the flat settings of a Flower app, which `-c` can override."""
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


def _serve(
    grid: Grid,
    job: Job,
    experiment: Experiment,
    folder: Path | None,
    observe: Observe | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """The run, as the server of its sites; a checkpoint after every round."""
    from episode.flower.rounds import SiteRounds
    from episode.flower.server import FlowerEngine
    from episode.flower.sites import Patience, Sites

    engine = experiment.engine
    patience = Patience(
        engine.min_replies,
        engine.timeout_seconds,
        engine.retries,
        engine.timeout_seconds,
        engine.max_norm,
    )
    x, _ = job.task.initial()

    def check(site: Introduction) -> str | None:
        if (site.size, site.dtype) != (x.numel(), str(x.dtype)):
            return f"trains {site.size} numbers of {site.dtype}, not {x.numel()} of {x.dtype}"
        return None

    sites = Sites(grid, patience, experiment.seed, check)
    sites.meet(job.task.num_clients)
    algorithm = job.plan.algorithm
    job = dataclasses.replace(
        job,
        make_engine=lambda: FlowerEngine(sites, algorithm),
        make_rounds=SiteRounds,
        checkpoint_seconds=0.0,
    )
    return execute(job, folder, observe, stop)


@functools.lru_cache(maxsize=1)
def _task(experiment: str) -> Task:
    """The task of a config; kept, since a process of a simulation serves many messages."""
    built = Experiment.from_dict(json.loads(experiment))
    return built.task.build(built.seed, built.engine.device)


def _has_ended(folder: Path) -> bool:
    path = folder / store.SUMMARY
    return path.exists() and store.read_json(path)["status"] != "failed"
