"""A rank builds the data of its own clients, and a checkpoint knows how clients were shared out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launch import ranks
from safetensors.torch import load_file

from episode import EpisodeError
from episode.engines.distributed import _check_agreement
from episode.federation import checkpoint
from episode.federation.owners import Owners
from episode.federation.processes import Processes
from episode.federation.state import ClientState, ServerState
from episode.runs.config import Experiment
from episode.runs.trainer import job_of

SILOS = Path(__file__).parents[2] / "examples" / "silos"
TASKS = [
    {"name": "digits", "num_clients": 5},
    {"name": "digits", "num_clients": 5, "holdout": 0.3},
    {"name": "silos", "data": str(SILOS), "hidden": 4},
    {"name": "silos", "data": str(SILOS), "hidden": 4, "holdout": 0.3},
]


class Rank(Processes):
    """One of several processes that never meet."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def from_first(self, data: bytes) -> bytes:
        return b"of other sizes"


@pytest.mark.parametrize("task", TASKS)
def test_a_rank_holds_the_data_of_its_own_clients(task: dict[str, Any]) -> None:
    experiment = Experiment.from_dict({"task": task})
    whole = job_of(experiment).task
    sizes = [whole.examples(client) for client in range(whole.num_clients)]
    owners = Owners(sizes, 2)
    for rank in range(2):
        job = job_of(experiment, Rank(rank, 2))
        assert job.owners == owners
        assert list(job.task.clients) == owners.clients(rank)
        assert job.task.num_clients == whole.num_clients


def test_a_task_that_counts_other_clients_than_it_has_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment.from_dict({"task": TASKS[0]})
    monkeypatch.setattr(type(experiment.task), "sizes", lambda *_: [3, 4, 5])
    with pytest.raises(EpisodeError, match="digits has sizes of 3 clients, but 5 clients"):
        job_of(experiment, Rank(0, 2))


def test_a_task_without_examples_is_dealt_out_in_turn() -> None:
    job = job_of(Experiment.from_dict({"task": {"name": "quadratics"}}), Rank(1, 3))
    assert job.owners is not None
    assert job.owners.clients(1) == list(range(1, job.task.num_clients, 3))


def test_ranks_that_count_other_examples_are_told_apart() -> None:
    with pytest.raises(EpisodeError, match="Rank 1 and rank 0 count the clients' examples diff"):
        _check_agreement(Owners([1, 2, 3], 2), Rank(1, 2))  # type: ignore[arg-type]


def test_parts_of_other_ranks_are_read_only_if_clients_have_moved(tmp_path: Path) -> None:
    """As after an older version, which shared clients out in another way and did not say so."""
    shares = [{0: ClientState(memory=torch.ones(2))}, {1: ClientState(memory=torch.zeros(2))}]
    parts = [
        checkpoint.save_part(tmp_path, share, "a", (rank, 2), round=0, previous=0)
        for rank, share in enumerate(shares)
    ]
    path = tmp_path / "state.safetensors"
    for written, now, found in ((7, 7, [1]), (7, 8, [0, 1]), (None, 7, [0, 1])):
        checkpoint.save(path, ServerState(torch.ones(2)), {}, "a", parts, written)
        _, states = checkpoint.load(path, "a", "cpu", place=(1, 2), owners=now)
        assert list(states) == found
    _, states = checkpoint.load(path, "a", "cpu", place=(0, 1))
    assert list(states) == [0, 1]


@pytest.mark.slow
def test_ranks_that_hold_their_own_silos_weight_them_as_the_simulation_does(
    tmp_path: Path,
) -> None:
    """A rank does not have the others' data, so it must know their numbers of examples."""
    settings = ["task.hidden=4", "budget.rounds=3", "algorithm=scaffold_clipped"]
    settings += ["algorithm.weighting=examples", "cohorts.kind=uniform", "cohorts.cohort_size=2"]
    command = ["-m", "episode", "run", "--data", str(SILOS)]
    command += [a for s in settings for a in ("--set", s)]
    home = {"EPISODE_HOME": str(tmp_path / "home")}
    for size, name in ((1, "alone"), (2, "shared")):
        for ended in ranks(size, [*command, "--folder", str(tmp_path / name)], **home):
            assert ended.code == 0, ended.output
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "shared"))
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-5
