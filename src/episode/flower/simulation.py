"""Flower's own simulation, in this process: a ServerApp here, ClientApps in Ray's workers."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from episode.engines.simulation import usable_cores
from episode.errors import ClusterError, EpisodeError

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

T = TypeVar("T")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""No word to anybody outside; the last silences a warning of Ray's about its next version."""


def require_flower() -> None:
    """Refuses to go on without the extra; must come before flwr is imported, which reads these."""
    os.environ.update(QUIET)
    if importlib.util.find_spec("flwr") is None:
        raise EpisodeError("Flower is not installed: pip install 'episode-fl[flower]'.")


def simulate(
    app: ClientApp, serve: Callable[[Grid], T], num_sites: int, workers: int | None = None
) -> T:
    """What `serve` returns (or raises) as the ServerApp of a simulation with so many sites."""
    if importlib.util.find_spec("ray") is None:
        raise EpisodeError(
            "Flower's simulation needs Ray, which is not installed: "
            "pip install 'episode-fl[flower]'."
        )
    from flwr.app import Context
    from flwr.serverapp import ServerApp

    try:
        from flwr.simulation import run_simulation
    except ImportError:
        raise EpisodeError(
            "This version of flwr has no run_simulation, which --engine flower uses: install "
            "flwr 1.41, or write an app for a SuperLink with episode flower app."
        ) from None

    result: list[T] = []
    failure: list[BaseException] = []
    ended = threading.Event()
    """The simulation is over, whatever the server thinks: it must not wait for replies."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        pull = grid.pull_messages

        def pull_while_it_runs(message_ids: Iterable[str]) -> Iterable[Message]:
            if ended.is_set():
                raise KeyboardInterrupt
            return pull(message_ids)

        grid.pull_messages = pull_while_it_runs  # type: ignore[method-assign]
        try:
            result.append(serve(grid))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    cores = workers or min(usable_cores(), num_sites)
    with _ray_folder() as folder, _fewer_words():
        backend: dict[str, dict[str, Any]] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "_temp_dir": folder, "log_to_driver": False},
        }
        try:
            run_simulation(server, app, num_sites, backend_config=backend)
        except Exception as error:
            raise ClusterError(f"Flower's simulation failed: {error}") from error
        finally:
            ended.set()
    if failure:
        raise failure[0]
    if not result:
        raise ClusterError("Flower's simulation ended before the run did: see its log above.")
    return result[0]


@contextmanager
def _ray_folder() -> Iterator[str]:
    """A folder for Ray's session, with a short name (it holds sockets), gone afterwards.

    Flower, too, writes there and not into the user's home.
    """
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp" if sys.platform != "win32" else None)
    before = os.environ.get("FLWR_HOME")
    os.environ["FLWR_HOME"] = before or folder
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["FLWR_HOME"]
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _fewer_words() -> Iterator[None]:
    """Flower's warnings, without its chat.

    (`run_simulation` is said to be deprecated for `flwr run`; docs/flower.md says why we stay.)
    """

    def matters(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING and "DEPRECATED" not in str(record.msg)

    logger = logging.getLogger("flwr")
    logger.addFilter(matters)
    try:
        yield
    finally:
        logger.removeFilter(matters)
