"""A site: one client of the federation, behind Flower's ClientApp.

Three actions: `query.episode` (who are you, and does your model fit), `train.probe` and
`train.local`. What a client keeps between messages lies in `context.state`, tagged with the
exchange that left it there. A SuperNode that was restarted has lost it: the server notices by the
tag, and gives it back.
"""

from __future__ import annotations

import json
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.protocols import Reply, Task
from episode.federation.state import ClientState
from episode.federation.worker import Worker
from episode.flower.layout import Layout
from episode.flower.messages import (
    ANSWER,
    ARRAYS,
    METRICS,
    STATE,
    Ask,
    Rejected,
    buffers_of,
    pack,
    state_arrays,
    state_of,
    unpack_any,
)

TAG = STATE + ".tag"


@dataclass
class Site:
    """A client's task, and its number in the federation."""

    task: Task
    client: int
    layout: Layout | None = None
    """How the model's arrays form one vector, where the server has them by name."""


MakeSite = Callable[[Context, int, int], Site]
"""The site of a context, its client's number and the run's seed."""


def add_actions(app: ClientApp, make_site: MakeSite, threads: int | None = None) -> None:
    """Adds `query.episode`, `train.probe` and `train.local` to an app."""

    def answered(serve: Callable[[Message, Context], RecordDict]) -> Any:
        def action(message: Message, context: Context) -> Message:
            before = torch.get_num_threads()
            torch.set_num_threads(threads or before)
            try:
                content = serve(message, context)
            except Exception as error:  # noqa: BLE001 - the server must hear of it
                if not isinstance(error, (EpisodeError, Rejected)):
                    log(ERROR, traceback.format_exc())
                content = _failed(error, context)
            finally:
                torch.set_num_threads(before)
            return Message(content, reply_to=message)

        return action

    def hello(message: Message, context: Context) -> RecordDict:
        return _introduce(make_site, message, context, "evaluate.default" in _functions(app))

    def phase(message: Message, context: Context) -> RecordDict:
        return _serve(make_site, message, context)

    app.query("episode")(answered(hello))
    app.train("probe")(answered(phase))
    app.train("local")(answered(phase))


def partition_of(context: Context) -> tuple[int, int | None]:
    """The number of this site, and how many there are, if it was told."""
    number = context.node_config.get("partition-id")
    count = context.node_config.get("num-partitions")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise EpisodeError(
            f"This site's partition-id is {number!r}: start its SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3', and a number of its own from 0."
        )
    return number, count if isinstance(count, int) else None


def _introduce(
    make_site: MakeSite, message: Message, context: Context, evaluates: bool
) -> RecordDict:
    client, partitions = partition_of(context)
    config: dict[str, Any] = dict(message.content.config_records["config"])
    if algorithm := config.get("algorithm"):
        Algorithm.from_dict(json.loads(algorithm))  # says which piece is not known here
    site = make_site(context, client, int(config["seed"]))
    x, buffers = site.task.initial()
    answer: dict[str, Any] = {
        "status": "done",
        "client": client,
        "partitions": partitions or 0,
        "examples": site.task.examples(client),
        "size": x.numel(),
        "dtype": str(x.dtype),
        "layout": json.dumps(site.layout.to_dict()) if site.layout else "",
        "evaluates": evaluates,
    }
    arrays = pack({"floats": buffers.floats, "integers": buffers.integers})
    return RecordDict({ANSWER: ConfigRecord(answer), ARRAYS: arrays})


def _serve(make_site: MakeSite, message: Message, context: Context) -> RecordDict:
    ask = Ask.of(message.content)
    client, _ = partition_of(context)
    worker = _workers.get(make_site, context, client, ask)
    given = _starting_point(ask, message, context, worker.objective.x)
    answer: dict[str, Any] = {"client": client, "round": ask.round, "tag": ask.tag}
    if given is None:
        return RecordDict({ANSWER: ConfigRecord({**answer, "status": "needs state"})})
    state = state_of(given)
    reply = _play(worker, client, state, ask, given)
    arrays = dict(reply.vectors)
    if ask.phase == "local":  # the server keeps a copy, to give back to a site that has lost it
        arrays.pop("change", None)
        arrays |= state.tensors()
    if reply.buffers is not None:
        arrays |= {"floats": reply.buffers.floats, "integers": reply.buffers.integers}
    _keep(context, ask, state, given)
    metrics: dict[str, Any] = {n: float(v) for n, v in reply.metrics.items() if v is not None}
    return RecordDict(
        {
            ANSWER: ConfigRecord({**answer, "status": "done"}),
            ARRAYS: pack(arrays),
            METRICS: MetricRecord(metrics),
        }
    )


def _play(
    worker: Worker, client: int, state: ClientState, ask: Ask, given: dict[str, Tensor]
) -> Reply:
    if "x" not in given or given["x"].shape != worker.objective.x.shape:
        shape = list(given["x"].shape) if "x" in given else "nothing"
        raise EpisodeError(
            f"The server's model is a vector of {shape} and this site's "
            f"{list(worker.objective.x.shape)}: build the same model on both."
        )
    at: dict[str, Any] = {"round": ask.round, "x": given["x"], "buffers": buffers_of(given)}
    if ask.phase == "probe":
        return worker.probe(client, state, **at, memorise=ask.memorise)
    return worker.local(
        client,
        state,
        **at,
        G=given.get("G"),
        G_norm=ask.G_norm,
        eta=ask.eta,
        gamma=ask.gamma,
        local_steps=ask.local_steps,
    )


def _starting_point(
    ask: Ask, message: Message, context: Context, x: Tensor
) -> dict[str, Tensor] | None:
    """The state to start from and what was sent; None where the state is not here."""
    sent = unpack_any(message.content.array_records[ARRAYS], x.dtype)
    held: dict[str, Tensor] = {}
    if STATE in message.content.array_records:
        held = unpack_any(message.content.array_records[STATE], x.dtype)
    elif ask.expects:
        known = context.state.config_records.get(TAG, ConfigRecord())
        if known.get("tag") != ask.expects:
            return None
        held = unpack_any(context.state.array_records[STATE], x.dtype)
    return {name: t.to(x.device) for name, t in {**held, **sent}.items()}


def _keep(context: Context, ask: Ask, state: ClientState, given: dict[str, Tensor]) -> None:
    """Leaves for the next message what it will need: after a probe, x̄_r and its buffers too."""
    record = state_arrays(state)
    if state.anchor is not None:
        point = {name: given.get(name) for name in ("x", "floats", "integers")}
        record = state_arrays(state, **point)
    context.state[STATE] = record
    context.state[TAG] = ConfigRecord({"tag": ask.tag})


def _failed(error: Exception, context: Context) -> RecordDict:
    known = isinstance(error, (EpisodeError, Rejected))
    text = str(error) if known else f"{type(error).__name__}: {error}"
    number = context.node_config.get("partition-id")
    client = number if type(number) is int else -1
    answer: dict[str, Any] = {"status": "failed", "error": text, "client": client}
    return RecordDict({ANSWER: ConfigRecord(answer)})


def _functions(app: ClientApp) -> dict[str, Any]:
    functions: dict[str, Any] = app._registered_funcs
    return functions


class _Workers:
    """The last few workers of this process: building one may mean reading its data.

    (A SuperNode starts a process for each message, but a simulation's serve many.) Workers are
    a pure function of their key, so that losing them costs time only.
    """

    MOST = 4

    def __init__(self) -> None:
        self._held: OrderedDict[Any, Worker] = OrderedDict()

    def get(self, make_site: MakeSite, context: Context, client: int, ask: Ask) -> Worker:
        key = (context.run_id, client, ask.seed, ask.algorithm)
        if key not in self._held:
            site = make_site(context, client, ask.seed)
            self._held[key] = Worker(site.task.objective(), ask.built())
        self._held.move_to_end(key)
        while len(self._held) > self.MOST:
            self._held.popitem(last=False)
        return self._held[key]


_workers = _Workers()
