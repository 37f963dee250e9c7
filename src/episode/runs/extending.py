"""Give a run more rounds: its folder becomes that of a longer run, which then goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from episode.errors import EpisodeError, differences
from episode.federation import checkpoint
from episode.files import lock
from episode.results import store
from episode.runs.config import identity_of
from episode.runs.folder import hint
from episode.runs.start import read_weights
from episode.tasks.weights import frozen_checksum, trained_state

log = logging.getLogger("episode")


def extend(folder: Path, config: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Let the run in a folder go on to the rounds of a config that is otherwise the same.

    The rounds that were played stay as they are, so the result is that of the longer run. Nothing
    is done for a folder without a run, or of a run that has these rounds already.

    Args:
        folder: The run's folder.
        config: The description of the longer run.
        model: The model that was given, as the run began or ended with it.

    Returns:
        The description, with the weights that the run began with.

    Raises:
        EpisodeError: The run differs in something else, has as many rounds, diverged, or depends
            on its number of rounds.
    """
    if not (folder / store.CONFIG).exists():
        return config
    found, new = store.read_config(folder), store.loads(store.dumps(config))
    if _ended_with(folder, model):
        new["task"]["initial_state"] = found["task"].get("initial_state")
    identity = identity_of(new)
    if found.get("id") == identity:
        return dict(new)
    old_rounds, new_rounds = _check(folder, found, new)
    with _locked(folder):
        path = folder / store.CHECKPOINT
        if path.exists():
            _rename(path, str(found["id"]), identity)
        (folder / store.SUMMARY).unlink(missing_ok=True)
        store.write_text(
            folder / store.CONFIG, store.dumps({**new, "id": identity}, indent=2) + "\n"
        )
    log.warning(
        "%s had %d rounds and goes on to %d: the rounds that were played are kept.",
        folder, old_rounds, new_rounds,
    )  # fmt: skip
    return dict(new)


def _ended_with(folder: Path, model: nn.Module) -> bool:
    """Whether a run ended with this model: it has trained it."""
    if not (folder / store.MODEL).exists():
        return False
    trained, frozen = read_weights(folder)
    weights = trained_state(model) if frozen else model.state_dict()
    return (
        trained.keys() == weights.keys()
        and all(torch.equal(trained[name], weights[name].cpu()) for name in trained)
        and frozen in ("", frozen_checksum(model))
    )


def _check(folder: Path, found: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[int, int]:
    """Return the old and the new number of rounds, or say why the run cannot be extended."""
    keys = differences(found, new).keys() - {*store.NOT_DECIDING, "id"}
    if others := sorted(keys - {"budget.rounds"}):
        raise EpisodeError(
            f"The run in {folder} cannot be extended, since more than its rounds has changed "
            f"({', '.join(others)}): choose another folder{hint(others)}."
        )
    old_rounds, new_rounds = found["budget"]["rounds"], new["budget"]["rounds"]
    if new_rounds < old_rounds:
        raise EpisodeError(
            f"The run in {folder} has {old_rounds} rounds already, more than {new_rounds}: give "
            "rounds a larger number, the total."
        )
    if store.read_summary(folder).get("status") == "diverged":
        raise EpisodeError(f"The run in {folder} diverged: there is nothing to go on from.")
    schedule = new["schedule"]
    of_the_run = [schedule.get("warmup", 0), *schedule.get("milestones", ())]
    if schedule.get("kind") == "cosine" or any(0 < place < 1 for place in of_the_run):
        raise EpisodeError(
            "The schedule depends on the number of rounds, so the rounds that were played are not "
            "those of the longer run: start a new run in another folder, with start_from."
        )
    return old_rounds, new_rounds


def _rename(path: Path, old: str, new: str) -> None:
    """Write the checkpoint again as one of the longer run."""
    try:
        server, clients = checkpoint.load(path, old, "cpu")
    except EpisodeError:
        server, clients = checkpoint.load(path, new, "cpu")  # this was interrupted here before
    records = checkpoint.records_of(path)
    checkpoint.save(path, server, dict(clients), new, records=records)


def _locked(folder: Path) -> Any:
    held = lock(folder / store.LOCK)
    if held is None:
        raise EpisodeError(
            f"Another process is writing to {folder}: wait for it, or choose another folder."
        )
    return held
