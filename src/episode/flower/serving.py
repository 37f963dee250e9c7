"""How a site serves a message: its worker, its number, and errors that become replies."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import ERROR
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore import log
from torch import Tensor

from episode.errors import EpisodeError
from episode.federation.protocols import Reply, Task
from episode.federation.state import ClientState
from episode.federation.worker import Worker
from episode.flower.layout import Layout
from episode.flower.messages import Ask, Rejected, buffers_of, labelled
from episode.tasks.trial import Drawn, tried_before

TRIED = "episode.tried"
"""Where a site's context says what the trial of its loss found, so that a run tries it once."""


@dataclass
class Site:
    """A client's task, and its number in the federation."""

    task: Task
    client: int
    layout: Callable[[], Layout] | None = None
    """Returns how the model's arrays form one vector, if the server has them by name. It reads all
    frozen parameters, so only an introduction asks for it."""
    workers: dict[str, Worker] = field(default_factory=dict)
    """By algorithm."""


MakeSite = Callable[[Context, int, int, Mapping[str, Any]], Site]
"""Makes a site from its context, its client's number, the run's seed, and what it was told of the
sites' agreement."""

_MOST_SITES = 4
_SITES: dict[tuple[int, int, int, str], Site] = {}
"""Sites of this process by run, client, seed and agreement; the last used come last.

Building one means loading a model and data. A SuperNode starts a process for every message, but a
process of a simulation serves many, and unpickles the app each time: only the process itself can
remember. A site is a function of its key, so losing one costs only time.
"""


def answered(
    serve: Callable[[Message, Context], RecordDict], threads: int | None = None
) -> Callable[[Message, Context], Message]:
    """Return an action whose errors are replies, and which limits torch's threads meanwhile."""

    def action(message: Message, context: Context) -> Message:
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            content = serve(message, context)
        except Exception as error:  # noqa: BLE001 - reported to the server
            content = _failed(error, context)
        finally:
            torch.set_num_threads(before)
        return Message(content, reply_to=message)

    return action


def client_of(context: Context) -> int:
    """Return the number of this site."""
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise EpisodeError(
            f"This site's partition-id is {number!r}: start its SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3', where each site has its own number."
        )
    return number


def partitions_of(context: Context) -> int:
    """Return how many sites there are, as this site was told; 0 if it was not."""
    partitions = context.node_config.get("num-partitions")
    return partitions if isinstance(partitions, int) else 0


def refuse_open(context: Context) -> None:
    """Raise an error if this site's operator wants it to answer in masked sums only."""
    if context.node_config.get("secure"):
        raise EpisodeError(
            "This site was started with --secure and answers only in sums over a cohort: set "
            "engine.secure = true, or EpisodeStrategy(secure=True)."
        )


def read_told(text: str) -> dict[str, Any]:
    """Return what a site was told of the sites' agreement."""
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def worker_of(ask: Ask, client: int, make_site: MakeSite, context: Context) -> tuple[Worker, int]:
    """Return the worker of this client, from the cache if it is there, and how many examples."""
    site = site_of(client, ask.seed, ask.told, make_site, context)
    if ask.algorithm not in site.workers:
        site.workers[ask.algorithm] = Worker(site.task.objective(), ask.built())
    return site.workers[ask.algorithm], site.task.examples(client)


def site_of(client: int, seed: int, told: str, make_site: MakeSite, context: Context) -> Site:
    """Return the site of this client, from the cache if it is there.

    The first process of a run that builds it tries its loss, and notes in the site's context who
    draws random numbers; later ones rely on that.
    """
    key = (context.run_id, client, seed, told)
    site = _SITES.pop(key, None)
    if site is None:
        known = context.state.config_records.get(TRIED, ConfigRecord()).get("drawn")
        with tried_before(Drawn[known] if isinstance(known, str) else None):
            site = make_site(context, client, seed, read_told(told))
        context.state[TRIED] = ConfigRecord({"drawn": Drawn.of(site.task).name})
    _SITES[key] = site
    if len(_SITES) > _MOST_SITES:
        del _SITES[next(iter(_SITES))]
    return site


def play(
    worker: Worker,
    client: int,
    state: ClientState,
    ask: Ask,
    given: Mapping[str, Tensor],
    repeat: int = 0,
) -> Reply:
    """Let a worker do what was asked.

    Args:
        worker: The worker.
        client: The client.
        state: Its state, which is changed.
        ask: What was asked.
        given: x̄_r, the buffers and G_r.
        repeat: How often the round has been repeated with fresh batches.
    """
    if "x" not in given or given["x"].shape != worker.objective.x.shape:
        shape = list(given["x"].shape) if "x" in given else "nothing"
        raise EpisodeError(
            f"The server's model is a vector of {shape} and this site's "
            f"{list(worker.objective.x.shape)}: build the same model on both."
        )
    at: dict[str, Any] = {"round": ask.round, "x": given["x"], "buffers": buffers_of(given)}
    at["repeat"] = repeat
    if ask.phase == "probe":
        return worker.probe(client, state, **at, memorise=ask.memorise, batches=ask.batches)
    return worker.local(
        client,
        state,
        **at,
        G=given.get("G"),
        G_norm=ask.G_norm,
        eta=ask.eta,
        gamma=ask.gamma,
        local_steps=ask.local_steps,
        measure_every=ask.measure_every,
    )


def _failed(error: Exception, context: Context) -> RecordDict:
    """Return a reply that reports an error; the site's log has unexpected ones in full."""
    text = str(error)
    if not isinstance(error, (EpisodeError, Rejected)):
        log(ERROR, traceback.format_exc())
        text = f"{type(error).__name__}: {error}"
    number = context.node_config.get("partition-id")
    client = number if type(number) is int else -1
    return labelled({"status": "failed", "error": text, "client": client})
