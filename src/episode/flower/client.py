"""A site: one client of the federation, behind Flower's ClientApp.

It has four actions: `query.episode` (introduce yourself), `train.probe`, `train.local` and
`evaluate.part`; `secure/site.py` has those whose answers are masked. What a client keeps between
messages is in `context.state`, tagged with the exchange that left it there. A restarted SuperNode
has lost it: the server notices by the tag, and sends it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.core.algorithm import Algorithm
from episode.errors import EpisodeError
from episode.federation.state import ClientState
from episode.flower.layout import Layout
from episode.flower.messages import ARRAYS, STATE, Ask, buffers_of, labelled, pack, unpack
from episode.flower.secure.rules import Rules
from episode.flower.secure.site import add_masked_actions
from episode.flower.serving import (
    MakeSite,
    Site as Site,
    answered,
    client_of,
    partitions_of,
    play,
    refuse_open,
    site_of,
    worker_of,
)
from episode.tasks.neural import Loss, NeuralTask

TAG = STATE + ".tag"


def add_actions(
    app: ClientApp,
    make_site: MakeSite,
    threads: int | None = None,
    states: Path | None = None,
) -> None:
    """Add `query.episode`, `train.probe`, `train.local` and `evaluate.part` to an app.

    Args:
        app: The app.
        make_site: Makes the site.
        threads: Number of threads that torch may use; by default, as many as it is set to.
        states: Folder of the sites' states in secure runs, if their node configs name none.
    """
    app.query("episode")(answered(partial(_introduce, app, make_site), threads))
    for phase in ("probe", "local"):
        app.train(phase)(answered(partial(_serve, make_site), threads))
    app.evaluate("part")(answered(partial(_evaluate, make_site), threads))
    add_masked_actions(app, make_site, threads, states)


def add_facts(app: ClientApp, facts: Callable[[Context, int, int], dict[str, Any]]) -> None:
    """Add `query.facts` to an app: what the site tells about its data before round 0."""

    def tell(message: Message, context: Context) -> RecordDict:
        client = client_of(context)
        seed = int(message.content.config_records["config"]["seed"])  # type: ignore[arg-type]
        label = {"status": "done", "client": client, "partitions": partitions_of(context)}
        return labelled({**label, "facts": json.dumps(facts(context, client, seed))})

    app.query("facts")(answered(tell))


def _introduce(
    app: ClientApp, make_site: MakeSite, message: Message, context: Context
) -> RecordDict:
    client = client_of(context)
    config: dict[str, Any] = dict(message.content.config_records["config"])
    if "algorithm" in config:  # a piece of it that this site lacks is reported before round 0
        Algorithm.from_dict(json.loads(config["algorithm"]))
    is_secure = bool(config.get("secure"))
    if is_secure:
        Rules.of(context).check_own(client)
    else:
        refuse_open(context)
    told = str(config.get("told", ""))
    site = site_of(client, int(config["seed"]), told, make_site, context)
    x, buffers = site.task.initial()
    label = {
        "status": "done",
        "client": client,
        "partitions": partitions_of(context),
        "examples": 1 if is_secure else site.task.examples(client),
        "size": x.numel(),
        "dtype": str(x.dtype),
        "layout": json.dumps(asdict(site.layout())) if site.layout else "",
        "evaluates": "evaluate.default" in app._registered_funcs
        and (not is_secure or bool(context.node_config.get("share-metrics"))),
    }
    return labelled(label, vars(buffers))


def _serve(make_site: MakeSite, message: Message, context: Context) -> RecordDict:
    refuse_open(context)
    ask = Ask.of(message.content)
    client = client_of(context)
    worker, _ = worker_of(ask, client, make_site, context)
    given = _starting_point(ask, message, context, worker.objective.x)
    label = {"client": client, "round": ask.round, "tag": ask.tag}
    if given is None:
        return labelled({**label, "status": "needs state"})
    state = ClientState.of(given)
    reply = play(worker, client, state, ask, given)
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
    refuse_open(context)
    ask, client = Ask.of(message.content), client_of(context)
    task = site_of(client, ask.seed, ask.told, make_site, context).task
    x, _ = task.initial()
    given = unpack(message.content.array_records[ARRAYS], x.dtype)
    point = given["x"].to(x.device), buffers_of(given)
    found = [task.evaluate_part(*point), dict(task.evaluate_client(client, *point))]
    label = {"client": client, "round": ask.round, "tag": ask.tag, "status": "done"}
    return labelled({**label, "evaluation": json.dumps(found)})


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


def attach(
    app: ClientApp,
    model_fn: Callable[[], nn.Module],
    data_fn: Callable[[Context], Any],
    loss: Loss,
    *,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    threads: int | None = None,
    accumulate: int = 1,
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
        accumulate: Number of equal parts in which the gradient of a batch is computed.

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
            num_clients=max(client + 1, partitions_of(context)),
            accumulate=accumulate,
        )
        return Site(task, client, lambda: Layout.of(model))

    add_actions(app, make_site, threads)
