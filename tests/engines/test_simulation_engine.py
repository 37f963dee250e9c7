"""The engine of one process: how many cores it uses, and what it says about a client's mistake."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from episode import ALGORITHMS, EpisodeError, Schedule
from episode.engines.simulation import Simulation, usable_cores
from episode.errors import ClientError
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ClientState, ServerState
from episode.tasks.neural import NeuralTask


def test_a_process_counts_the_cores_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_a_users_mistake_on_a_client_keeps_its_own_words() -> None:
    class Unlabelled(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Tensor:
            raise EpisodeError("The labels are missing: add a column y.")

    silos = [(torch.zeros(4, 2),), Unlabelled()]
    task = NeuralTask(nn.Linear(2, 1), silos, lambda m, b: m(b[0]).sum(), batch_size=2)
    engine = Simulation(task, ALGORITHMS["fedavg"], workers=1)
    rounds = Rounds(Plan(ALGORITHMS["fedavg"], Schedule(1.0, 1.0), 1, 1), task, engine)
    with pytest.raises(
        ClientError,
        match="Client 1 failed in the local phase of round 0: The labels are missing: add",
    ):
        rounds.play(ServerState(*task.initial()))
    engine.close()


def test_there_are_no_more_workers_than_cores_or_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 2)
    silo = (torch.zeros(4, 2),)
    for silos, most in ((3, 2), (1, 1)):
        task = NeuralTask(nn.Linear(2, 1), [silo] * silos, lambda m, b: m(b[0]).sum(), batch_size=2)
        engine = Simulation(task, ALGORITHMS["fedavg"], workers=50)
        assert engine.workers == most
        engine.close()


@pytest.mark.parametrize(
    ("draws", "turns", "workers"), [(False, False, 2), (True, False, 1), (True, True, 2)]
)
def test_clients_that_draw_from_torchs_generator_have_one_worker_unless_they_take_turns(
    draws: bool, turns: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 2)
    silos = [(torch.zeros(4, 2),)] * 3
    task = NeuralTask(nn.Linear(2, 1), silos, lambda m, b: m(b[0]).sum(), batch_size=2)
    monkeypatch.setattr(task, "draws_random_numbers", draws)
    monkeypatch.setattr(task, "takes_turns", turns)
    engine = Simulation(task, ALGORITHMS["fedavg"])
    assert engine.workers == workers
    engine.close()


def test_the_states_of_clients_that_it_serves_are_loaded() -> None:
    silos = [(torch.zeros(4, 2),)] * 3
    task = NeuralTask(nn.Linear(2, 1), silos, lambda m, b: m(b[0]).sum(), batch_size=2)
    engine = Simulation(task, ALGORITHMS["scaffold"], workers=1)
    engine.load_client_states({c: ClientState(memory=torch.ones(3)) for c in (0, 2, 7)})
    assert list(engine.client_states()) == [0, 2]
    engine.close()
