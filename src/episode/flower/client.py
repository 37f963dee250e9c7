"""A site: one client of the federation, behind Flower's ClientApp.

It has four actions: `query.episode` (introduce yourself), `train.probe`, `train.local` and
`evaluate.part`. What a client keeps between messages is in `context.state`, tagged with the
exchange that left it there. A restarted SuperNode has lost it: the server notices by the tag, and
sends it again.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from logging import ERROR
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.protocols import Reply, Task
from episode.federation.state import ClientState
from episode.federation.worker import Worker
from episode.flower.layout import Layout
from episode.flower.messages import ARRAYS, STATE, Ask, Rejected, buffers_of, labelled, pack, unpack
from episode.tasks.neural import Loss, NeuralTask

TAG = STATE + ".tag"
_MOST_WORKERS = 4
_WORKERS: dict[tuple[int, int, int, str, str], Worker] = {}
"""Workers of this process by run, client, seed, algorithm and agreement; the last used come last.

Building one may mean reading data. A SuperNode starts a process for every message, but a process of
a simulation serves many, and unpickles the app each time: only the process itself can remember. A
worker is a function of its key, so losing one costs only time.
"""


@dataclass
class Site:
    """A client's task, and its number in the federation."""

    task: Task
    client: int
    layout: Layout | None = None
    """How the model's arrays form one vector, if the server has them by name."""


MakeSite = Callable[[Context, int, int, Mapping[str, Any]], Site]
"""Makes a site from its context, its client's number, the run's seed, and what it was told of the
sites' agreement."""


def add_actions(app: ClientApp, make_site: MakeSite, threads: int | None = None) -> None:
    """Add `query.episode`, `train.probe`, `train.local` and `evaluate.part` to an app."""
    app.query("episode")(_answered(partial(_introduce, app, make_site), threads))
    for phase in ("probe", "local"):
        app.train(phase)(_answered(partial(_serve, make_site), threads))
    app.evaluate("part")(_answered(partial(_evaluate, make_site), threads))


def _answered(
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


def add_facts(app: ClientApp, facts: Callable[[Context, int, int], dict[str, Any]]) -> None:
    """Add `query.facts` to an app: what the site tells about its data before round 0."""

    def tell(message: Message, context: Context) -> RecordDict:
        client = _client_of(context)
        seed = int(message.content.config_records["config"]["seed"])  # type: ignore[arg-type]
        label = {"status": "done", "client": client, "partitions": _partitions_of(context)}
        return labelled({**label, "facts": json.dumps(facts(context, client, seed))})

    app.query("facts")(_answered(tell))


def _client_of(context: Context) -> int:
    """Return the number of this site."""
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise EpisodeError(
            f"This site's partition-id is {number!r}: start its SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3', where each site has its own number."
        )
    return number


def _partitions_of(context: Context) -> int:
    """Return how many sites there are, as this site was told; 0 if it was not."""
    partitions = context.node_config.get("num-partitions")
    return partitions if isinstance(partitions, int) else 0


def _introduce(
    app: ClientApp, make_site: MakeSite, message: Message, context: Context
) -> RecordDict:
    client = _client_of(context)
    config: dict[str, Any] = dict(message.content.config_records["config"])
    if "algorithm" in config:  # a piece of it that this site lacks is reported before round 0
        Algorithm.from_dict(json.loads(config["algorithm"]))
    site = make_site(context, client, int(config["seed"]), _read_told(str(config.get("told", ""))))
    x, buffers = site.task.initial()
    label = {
        "status": "done",
        "client": client,
        "partitions": _partitions_of(context),
        "examples": site.task.examples(client),
        "size": x.numel(),
        "dtype": str(x.dtype),
        "layout": json.dumps(asdict(site.layout)) if site.layout else "",
        "evaluates": "evaluate.default" in app._registered_funcs,
    }
    return labelled(label, vars(buffers))


def _serve(make_site: MakeSite, message: Message, context: Context) -> RecordDict:
    ask = Ask.of(message.content)
    client = _client_of(context)
    worker = _worker(ask, client, make_site, context)
    given = _starting_point(ask, message, context, worker.objective.x)
    label = {"client": client, "round": ask.round, "tag": ask.tag}
    if given is None:
        return labelled({**label, "status": "needs state"})
    state = ClientState(given.get("anchor"), given.get("memory"), given.get("velocity"))
    reply = _play(worker, client, state, ask, given)
    arrays = dict(reply.vectors)
    if ask.phase == "local":  # the server keeps a copy for a site that loses its state
        arrays.pop("change", None)
        arrays |= state.tensors()
    if reply.buffers is not None:
        arrays |= vars(reply.buffers)
    # The next message needs the state and, after a probe, x̄_r and its buffers.
    names = ("x", "floats", "integers") if state.anchor is not None else ()
    context.state[STATE] = pack({**vars(state), **{name: given.get(name) for name in names}})
    context.state[TAG] = ConfigRecord({"tag": ask.tag})
    metrics = {name: float(v) for name, v in reply.metrics.items() if v is not None}
    return labelled({**label, "status": "done"}, arrays, metrics)


def _evaluate(make_site: MakeSite, message: Message, context: Context) -> RecordDict:
    """Measure x̄ on the examples of this site, for metrics of all and of this site alone."""
    ask, client = Ask.of(message.content), _client_of(context)
    task = make_site(context, client, ask.seed, _read_told(ask.told)).task
    x, _ = task.initial()
    given = unpack(message.content.array_records[ARRAYS], x.dtype)
    point = given["x"].to(x.device), buffers_of(given)
    found = [task.evaluate_part(*point), dict(task.evaluate_client(client, *point))]
    label = {"client": client, "round": ask.round, "tag": ask.tag, "status": "done"}
    return labelled({**label, "evaluation": json.dumps(found)})


def _read_told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _worker(ask: Ask, client: int, make_site: MakeSite, context: Context) -> Worker:
    key = (context.run_id, client, ask.seed, ask.algorithm, ask.told)
    worker = _WORKERS.pop(key, None)
    if worker is None:
        site = make_site(context, client, ask.seed, _read_told(ask.told))
        worker = Worker(site.task.objective(), ask.built())
    _WORKERS[key] = worker
    if len(_WORKERS) > _MOST_WORKERS:
        del _WORKERS[next(iter(_WORKERS))]
    return worker


def _starting_point(
    ask: Ask, message: Message, context: Context, x: Tensor
) -> dict[str, Tensor] | None:
    """Return the state to start from and what was sent; None if the state is not here."""
    records = message.content.array_records
    sent, held = unpack(records[ARRAYS], x.dtype), {}
    if STATE in records:
        held = unpack(records[STATE], x.dtype)
    elif ask.expects:
        known = context.state.config_records.get(TAG, ConfigRecord())
        if known.get("tag") != ask.expects:
            return None
        held = unpack(context.state.array_records[STATE], x.dtype)
    return {name: t.to(x.device) for name, t in {**held, **sent}.items()}


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


def attach(
    app: ClientApp,
    model_fn: Callable[[], nn.Module],
    data_fn: Callable[[Context], Any],
    loss: Loss,
    *,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    threads: int | None = None,
) -> None:
    """Add to a ClientApp the actions that `EpisodeStrategy` asks of a site.

    Args:
        app: The app of the site.
        model_fn: Returns the model.
        data_fn: `data_fn(context)` returns this site's training data: a map-style dataset or a
            tuple of tensors.
        loss: `loss(model, batch)` returns the mean loss of the batch, a scalar.
        batch_size: Examples in a batch; by default the run config's `batch-size`.
        collate: Turns a list of examples into a batch.
        threads: Number of threads that torch may use; by default, as many as it is set to.

    Example:
        >>> import torch
        >>> from flwr.clientapp import ClientApp
        >>> from episode.flower import attach
        >>> def load_data(context):
        ...     return torch.randn(20, 3), torch.randn(20, 1)
        >>> def loss(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> app = ClientApp()
        >>> attach(app, lambda: torch.nn.Linear(3, 1), load_data, loss, batch_size=10)
    """

    def make_site(context: Context, client: int, seed: int, told: Mapping[str, Any]) -> Site:
        size = context.run_config.get("batch-size") if batch_size is None else batch_size
        if type(size) is not int:
            raise EpisodeError(
                f"The batch size is {size!r}: give attach(..., batch_size=32), or set batch-size "
                "in [tool.flwr.app.config]."
            )
        model = model_fn()
        task = NeuralTask(
            model,
            {client: data_fn(context)},
            loss,
            batch_size=size,
            seed=seed,
            collate=collate,
            num_clients=max(client + 1, _partitions_of(context)),
        )
        return Site(task, client, Layout.of(model))

    add_actions(app, make_site, threads)
