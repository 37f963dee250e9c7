"""The ClientApp and the ServerApp of an experiment, for Flower's simulation and for real sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episode.errors import EpisodeError
from episode.federation.protocols import Task
from episode.flower.simulation import require_flower
from episode.results import store
from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import job_of, train
from episode.tasks.settings import Share

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

FOLDER = "folder"
"""The one setting of an app that is no part of its experiment: where the server writes the run."""
UNSET: dict[str, Any] = {
    "engine.min_replies": 0, "engine.max_norm": 0.0, "engine.secure": "", "record.per_client": ""
}  # fmt: skip
"""Settings without a default. `flwr run -c` can override only settings that an app names, so the
app gives them a value that means "not set"."""


def client_app(config: Mapping[str, Any] | None = None, states: Path | None = None) -> ClientApp:
    """Return the app of a site.

    Args:
        config: The experiment, as `Experiment.to_dict` gives it; None takes the one in the app's
            run config.
        states: Folder of the sites' states in secure runs, if their node configs name none.
    """
    require_flower()
    from flwr.clientapp import ClientApp

    from episode.flower.client import Site, add_actions, add_facts

    def make_site(context: Context, client: int, seed: int, told: Mapping[str, Any]) -> Site:
        if config is not None:  # in a simulation, where everybody's data are here
            return Site(_task(json.dumps(config), None), client)
        experiment = json.dumps(_of_run_config(context.run_config).to_dict())
        share = json.dumps([client, told, own_settings(context)])
        return Site(_task(experiment, share), client)

    def facts(context: Context, client: int, seed: int) -> dict[str, Any]:
        task = _of_run_config(context.run_config).task
        own = own_settings(context)
        name = context.node_config.get("name")
        return {**task.facts(client, own, seed), **({"name": str(name)} if name else {})}

    app = ClientApp()
    # One thread, as in a simulation, so that sums are the same.
    add_actions(app, make_site, threads=1, states=states)
    if config is None:
        add_facts(app, facts)
    return app


def own_settings(context: Context) -> dict[str, str]:
    """Return the settings that a site gives for itself, in its SuperNode's node config."""
    names = _of_run_config(context.run_config).task.site_settings
    return {n: str(context.node_config[n]) for n in names if n in context.node_config}


@lru_cache(maxsize=2)
def _task(experiment: str, share: str | None) -> Task:
    """Build the task of an experiment or a site's share of it, both given as JSON."""
    described = Experiment.from_dict(json.loads(experiment))
    seed, device = described.seed, described.engine.device
    if share is None:
        return described.task.build(seed, device)
    client, told, own = json.loads(share)
    return described.task.build_share(Share((client,), told, own), seed, device)


def server_app() -> ServerApp:
    """Return the server of an app that `episode flower app` wrote.

    Its experiment is in the run config.
    """
    require_flower()
    from flwr.serverapp import ServerApp
    from flwr.supercore import log

    from episode.flower.facts import agreement_of
    from episode.flower.opening import engine_on_sites, round_logger

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = _of_run_config(context.run_config)
        check_app(experiment)
        folder = Path(str(context.run_config.get(FOLDER) or f"runs/{experiment.name}")).absolute()
        log(20, "The run is written to %s", folder)
        agreed = agreement_of(experiment, grid, folder)
        task = experiment.task

        def told(client: int) -> str:
            return json.dumps(task.told(agreed, client)) if agreed else ""

        job = replace(
            job_of(experiment, share=Share((), agreed)),
            open_engine=lambda job: engine_on_sites(job, grid, folder, told),
        )
        run = train(job, folder, round_logger(job.plan))
        log(20, "The run has %s: %s", run.status, store.dumps(run.summary))

    return app


def check_app(experiment: Experiment) -> None:
    """Refuse an experiment that sites could not run with their own data.

    Raises:
        EpisodeError: The server was given data, which it does not need, or sites could not agree.
    """
    settings = experiment.task.model_dump()
    if "data" in experiment.task.site_settings and settings.get("data") is not None:
        raise EpisodeError(
            f"task.data is {settings['data']!r}, but the server needs no data: leave it out; each "
            "site names its own folder, with episode flower site --data."
        )
    experiment.task.check_at_sites()


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
    given = {k: v for k, v in values.items() if k != FOLDER and v != UNSET.get(k)}
    texts = {k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()}
    return read_experiment(None, [f"{k}={v}" for k, v in texts.items()])
