"""The evaluation of a model where the data are: each site measures its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import RecordDict
from flwr.supercore import log
from torch import Tensor

from episode.federation.protocols import Evaluation, Task
from episode.federation.state import Buffers
from episode.flower.exchange import Failure, Outcome
from episode.flower.facts import parsed
from episode.flower.messages import ARRAYS, ASK, Ask, Rejected, label_of, pack
from episode.flower.sites import Sites


def evaluate_at_sites(
    sites: Sites, tag: str, task: Task, x: Tensor, buffers: Buffers, clients: Sequence[int]
) -> Evaluation:
    """Ask the sites that are connected what they measure, and combine it.

    Args:
        sites: The sites.
        tag: Name of this exchange.
        task: The task, whose data are at the sites.
        x: The model x̄.
        buffers: Its buffers.
        clients: The clients whose own metrics are wanted.
    """
    ask = Ask("evaluate", tag, sites.seed, "", round=sites.round)
    point = pack({"x": x, **vars(buffers)})
    contents = {
        client: RecordDict({ASK: replace(ask, told=sites.told(client)).record(""), ARRAYS: point})
        for client in sorted(sites.connected())
    }
    outcomes = sites.ask(contents, "evaluate.part", ask.round, sites.limits.deadline)
    parts, by_client = [], {}
    for client, outcome in outcomes.items():
        try:
            part, own = read_evaluation(outcome, ask, client, task)
        except Rejected as rejected:
            log(WARNING, "Round %d: site %d was not evaluated: it %s", ask.round, client, rejected)
            continue
        parts.append(part)
        if client in clients and own:
            by_client[client] = own
    return Evaluation(task.combine(parts), by_client)


def read_evaluation(
    outcome: Outcome, ask: Ask, client: int, task: Task
) -> tuple[Mapping[str, Any], dict[str, float]]:
    """Return what a site has measured: its part of the task's metrics, and metrics of its own.

    Raises:
        Rejected: It did not answer, or what it sent is not an evaluation of its own data.
    """
    if isinstance(outcome, Failure):
        raise Rejected(outcome.reason)
    label = label_of(outcome)
    expected = {"status": "done", "client": client, "round": ask.round, "tag": ask.tag}
    if any(label.get(name) != value for name, value in expected.items()):
        raise Rejected("replied about something else")
    found = parsed(label.get("evaluation"))
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not all(isinstance(f, dict) for f in found)
    ):
        raise Rejected("sent an evaluation that cannot be read")
    part, own = found
    try:
        task.check_part(part, client)
        metrics = {str(name)[:80]: float(value) for name, value in list(own.items())[:100]}
    except (ValueError, TypeError, OverflowError) as error:
        raise Rejected(f"sent an evaluation that is not its own ({error})") from None
    return part, {name: value for name, value in metrics.items() if math.isfinite(value)}
