"""What sites tell about their data before round 0, and what they agree on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from episode.errors import ClusterError, EpisodeError
from episode.flower.exchange import Failure, Outcome, nodes_of, pull, push
from episode.flower.messages import label_of
from episode.results import store
from episode.runs.config import Experiment

AGREEMENT = "agreement.json"
"""What sites have agreed on, in the run's folder: a resumed run need not ask for it again."""
MOST_CHARACTERS = 1_000_000
"""Longest text of facts or metrics that is read."""
_AT_START = "At the start, before round 0:"


def agreement_of(experiment: Experiment, grid: Grid, folder: Path) -> dict[str, Any]:
    """Return what the sites agree on: from the run's folder, or by asking all of them.

    Args:
        experiment: What is run.
        grid: Flower's connection to the nodes.
        folder: The run's folder.

    Returns:
        The agreement; empty for a task whose sites have nothing to agree on.

    Raises:
        EpisodeError: A site cannot take part, or differs from the others; names it.
        ClusterError: A site is missing.
    """
    if not experiment.task.site_settings:
        return {}
    path = folder / AGREEMENT
    if path.exists():
        stored = store.read_json(path)
        if not isinstance(stored, dict):
            raise EpisodeError(f"{path} is damaged: remove the run's folder to start afresh.")
        return dict(stored)
    facts = collect_facts(grid, experiment.seed, experiment.engine.timeout_seconds)
    try:
        agreed = experiment.task.agree(facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EpisodeError(
            f"{_AT_START} sites sent facts that make no sense ({error!r})."
        ) from None
    store.write_text(path, store.dumps(agreed, indent=2) + "\n")
    return agreed


def collect_facts(grid: Grid, seed: int, seconds: float) -> dict[int, dict[str, Any]]:
    """Wait for all sites, and return what each tells about its data."""
    found: dict[int, dict[str, Any]] = {}
    asked: set[int] = set()
    due: dict[str, int] = {}
    owner: dict[int, int] = {}
    count, until = 0, time.monotonic() + seconds
    content = RecordDict({"config": ConfigRecord({"seed": seed})})
    while time.monotonic() < until and not (count and len(found) >= count):
        new = nodes_of(grid).keys() - asked
        due |= push(grid, dict.fromkeys(new, content), "query.facts", seconds, "facts")
        asked |= new
        for node, outcome in sorted(pull(grid, due).items()):
            client, partitions, facts = _read_facts(node, outcome)
            if client in owner:
                raise EpisodeError(
                    f"{_AT_START} node {node} has the partition-id of node {owner[client]}, "
                    f"{client}: give each site its own."
                )
            if count and partitions != count:
                raise EpisodeError(
                    f"{_AT_START} site {client} was told of {partitions} sites, and others of "
                    f"{count}: give all the same num-partitions."
                )
            owner[client], found[client], count = node, facts, partitions
        time.sleep(0.05)
    if not count or len(found) < count:
        missing = [f"site {c}" for c in range(count) if c not in found]
        who = f" (missing: {', '.join(missing)})" if missing else ""
        raise ClusterError(
            f"{_AT_START} all sites must tell what they have, but {len(found)} of {count or '?'} "
            f"came within {seconds:g} s{who}: are their SuperNodes running?"
        )
    return dict(sorted(found.items()))


def _read_facts(node: int, outcome: Outcome) -> tuple[int, int, dict[str, Any]]:
    """Return a site's number, the number of sites, and its facts."""
    if isinstance(outcome, Failure):
        who = f"site {outcome.client} (node {node})" if outcome.client >= 0 else f"node {node}"
        raise EpisodeError(f"{_AT_START} {who} cannot take part: it {outcome.reason}")
    label = label_of(outcome)
    client, partitions, text = (label.get(n) for n in ("client", "partitions", "facts"))
    if type(client) is not int or type(partitions) is not int or not isinstance(text, str):
        raise EpisodeError(f"{_AT_START} node {node} told its facts in an unknown way.")
    if not 0 <= client < partitions:
        raise EpisodeError(
            f"{_AT_START} node {node} has partition-id {client}, but there are {partitions} sites: "
            "number them from 0, and give each num-partitions."
        )
    facts = parsed(text)
    if not isinstance(facts, dict):
        raise EpisodeError(f"{_AT_START} site {client} told facts that cannot be read.")
    return client, partitions, facts


def parsed(text: Any) -> Any:
    """Return the JSON value of a text that a site has sent; None if it cannot be read."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
