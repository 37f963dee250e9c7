"""Flower's own simulation as an engine: the server is here, ClientApps are in Ray's processes."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from episode.engines.simulation import usable_cores
from episode.errors import ClusterError, EpisodeError
from episode.federation.job import EngineSettings, Job
from episode.federation.processes import Processes
from episode.federation.protocols import Engine

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment in which Flower and Ray send no usage data. The last variable silences a warning of
Ray about its next version."""


class FlowerSimulation(Engine):
    """Opens a `FlowerEngine` on Flower's simulation, with one node per client."""

    @classmethod
    def join(cls, settings: EngineSettings, hello: Mapping[str, Any]) -> Processes:
        require_flower()
        if "made_by" in hello.get("config", {}):
            raise EpisodeError(
                "fit has the data here: for sites that keep theirs, use episode.flower."
            )
        return Processes()

    @classmethod
    @contextmanager
    def open(cls, job: Job) -> Iterator[Engine]:
        with quiet_environment():  # flwr reads it when it is imported
            from episode.flower.app import client_app
            from episode.flower.opening import engine_on_sites

            # Simulated sites have no disk of their own: their states are beside the run's.
            states = job.folder / "sites" if job.folder and job.engine.secure else None
            app = client_app(job.config, states)
            with (
                simulated_grid(app, job.task.num_clients, job.engine.workers) as grid,
                engine_on_sites(job, grid) as engine,
            ):
                yield engine


def require_flower() -> None:
    """Raise an error that names the extra if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise EpisodeError("Flower is not installed: pip install 'episode-fl[flower]'.")


@contextmanager
def quiet_environment(**more: str) -> Iterator[None]:
    """Set the variables of QUIET and others, also for processes that are started meanwhile."""
    variables = {**QUIET, **more}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def simulated_grid(app: ClientApp, num_sites: int, workers: int | None = None) -> Iterator[Grid]:
    """Start a simulation on a thread of its own, and end it afterwards.

    Args:
        app: The app of its sites.
        num_sites: Number of sites.
        workers: Number of processes that run sites; None for one per core.

    Yields:
        The grid, through which a server reaches the sites.
    """
    simulation = _Simulation(app, num_sites, workers)
    # The folder of Ray's session holds sockets, so its path must be short. Flower writes there,
    # too, and not into the user's home.
    short = "/tmp" if sys.platform != "win32" else None
    with (
        TemporaryDirectory(prefix="ray", dir=short, ignore_cleanup_errors=True) as folder,
        quiet_environment(FLWR_HOME=os.environ.get("FLWR_HOME") or folder),
        _only_warnings(),
    ):
        thread = threading.Thread(target=simulation.run, args=(folder,), name="flower-simulation")
        thread.start()
        try:
            yield simulation.grid.result()
        except KeyboardInterrupt:
            if simulation.failure:  # the simulation ended first, and the server could not go on
                raise simulation.failure from None
            raise
        finally:
            simulation.done.set()
            thread.join()


class _Simulation:
    """Flower's simulation. It runs a ServerApp; this one only hands out its grid and waits."""

    def __init__(self, app: ClientApp, num_sites: int, workers: int | None) -> None:
        self.done = threading.Event()
        """Set once the server no longer needs the grid."""
        self.failure: ClusterError | None = None
        self.grid: Future[Grid] = Future()
        self._ended = threading.Event()
        """Set once the simulation has ended, so that nobody waits for replies."""
        self._app = app
        self._num_sites = num_sites
        self._cores = workers or min(usable_cores(), num_sites)

    def run(self, folder: str) -> None:
        backend: dict[str, dict[str, Any]] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": self._cores, "_temp_dir": folder, "log_to_driver": False},
        }
        try:
            run_simulation = _import_run_simulation()
            run_simulation(self._server(), self._app, self._num_sites, backend_config=backend)
        except ClusterError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - raised in the server's thread
            self.failure = ClusterError(f"Flower's simulation failed: {error}")
        finally:
            self._ended.set()
            if not self.grid.done():
                early = ClusterError("Flower's simulation ended before the run began.")
                self.grid.set_exception(self.failure or early)

    def _server(self) -> Any:
        from flwr.app import Context
        from flwr.serverapp import ServerApp

        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            pull = grid.pull_messages

            def pull_while_it_runs(message_ids: Iterable[str]) -> Iterable[Message]:
                if self._ended.is_set():
                    raise KeyboardInterrupt
                return pull(message_ids)

            grid.pull_messages = pull_while_it_runs  # type: ignore[method-assign]
            self.grid.set_result(grid)
            while not self.done.wait(timeout=0.5) and not self._ended.is_set():
                pass

        return server


def _import_run_simulation() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            "Flower's simulation needs Ray, which is not installed: "
            "pip install 'episode-fl[flower]'."
        )
    try:
        from flwr.simulation import run_simulation
    except ImportError:
        raise ClusterError(
            "This version of flwr has no run_simulation, which --engine flower uses: install "
            "flwr 1.41, or write an app for a SuperLink with episode flower app."
        ) from None
    return run_simulation


@contextmanager
def _only_warnings() -> Iterator[None]:
    """Show Flower's warnings without its progress messages.

    `run_simulation` is deprecated in favour of `flwr run`; docs/flower.md says why it is used.
    """

    def matters(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING and "DEPRECATED" not in str(record.msg)

    logger = logging.getLogger("flwr")
    logger.addFilter(matters)
    try:
        yield
    finally:
        logger.removeFilter(matters)
