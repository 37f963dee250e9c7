"""The engine of one process: how many cores it uses, and what it says about a client's mistake."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from episode import ALGORITHMS, EpisodeError, Schedule
from episode.engines.simulation import Simulation, _most_workers, usable_cores
from episode.errors import ClientError
from episode.federation.client_states import MappedStates
from episode.federation.job import EngineSettings, Job
from episode.federation.protocols import Reply
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ClientState, ServerState
from episode.federation.worker import Worker
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


def linear(silos: int, **options: Any) -> NeuralTask:
    """Return a linear model with one silo per client, each with other data."""
    data = [(torch.full((4, 2), c + 1.0),) for c in range(silos)]
    return NeuralTask(nn.Linear(2, 1), data, lambda m, b: m(b[0]).sum(), batch_size=2, **options)


def cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: number)


def test_a_number_of_workers_below_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 3)
    with pytest.raises(EpisodeError, match=r"^workers is 0: it must be 1 or more\.$"):
        Simulation(linear(5), ALGORITHMS["fedavg"], workers=0)
    for asked, given in ((1, 1), (2, 2), (None, 3)):
        with closing(Simulation(linear(5), ALGORITHMS["fedavg"], asked)) as engine:
            assert engine.workers == engine._idle.qsize() == given


@pytest.mark.parametrize(
    ("device", "found", "most"), [("cpu", 1, 1), ("cpu", 4, 4), ("meta", 4, 1)]
)
def test_workers_share_cores_but_not_another_device(
    device: str, found: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(monkeypatch, found)
    worker: Any = SimpleNamespace(objective=SimpleNamespace(x=torch.empty(3, device=device)))
    assert _most_workers(linear(5), worker) == most


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that may use four threads uses one while the engine is open, and then four."""
    cores(monkeypatch, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    task, seen = linear(3), set()

    def noting(self: Worker, *args: Any, **sent: Any) -> Reply:
        seen.add((threading.current_thread().name.rpartition("_")[0], torch.get_num_threads()))
        return local(self, *args, **sent)

    local = Worker.local
    monkeypatch.setattr(Worker, "local", noting)
    with closing(Simulation(task, ALGORITHMS["fedavg"], 2)) as engine:
        assert torch.get_num_threads() == 1
        torch.set_num_threads(3)  # as a user's own code may do
        Rounds(Plan(ALGORITHMS["fedavg"], Schedule(1.0, 1.0), 1, 1), task, engine).play(
            ServerState(*task.initial())
        )
    assert seen == {("episode-worker", 1)}
    assert torch.get_num_threads() == 4
    torch.set_num_threads(before)


def sent(task: NeuralTask) -> dict[str, Any]:
    x, buffers = task.initial()
    return {"round": 4, "x": x, "buffers": buffers}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_replies_are_added_up_in_order_by_any_number_of_workers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of client c is 2(c + 1) in both weights and 2 in the bias."""
    cores(monkeypatch, 8)
    task, clients = linear(12), [7, 2, 11, 0, 1, 3, 4, 5, 6, 8, 9, 10]
    with closing(Simulation(task, ALGORITHMS["episode"], workers)) as engine:
        reply = engine.average("probe", clients, weights=[3.0] + [1.0] * 11, **sent(task))
        mean = (3 * 8 + 3 + 12 + 1 + 2 + sum((4, 5, 6, 7, 9, 10, 11))) / 14
        assert reply.vectors["gradient"].tolist() == pytest.approx([2 * mean, 2 * mean, 2.0])
        assert len(reply.metrics["loss"]) == 12
        assert all(type(loss) is float for loss in reply.metrics["loss"])
        assert sorted(engine.client_states()) == list(range(12))
        held = engine.client_states()[7].anchor
        assert held is not None
        assert held.tolist() == [16.0, 16.0, 2.0]
        nobody = engine.add_up("probe", [], [], sent(task))
        assert nobody.vectors == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clients_own_error_is_told_with_its_kind_and_ends_the_others(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than two replies a worker wait for their turn, so few others are served."""
    cores(monkeypatch, 2)
    task, served = linear(60), []

    def failing(self: Worker, client: int, *args: Any, **sent: Any) -> Reply:
        served.append(client)
        if client == 1:
            raise ValueError("no labels")
        return probe(self, client, *args, **sent)

    probe = Worker.probe
    monkeypatch.setattr(Worker, "probe", failing)
    with closing(Simulation(task, ALGORITHMS["episode"], workers)) as engine:
        told = r"^Client 1 failed in the probe phase of round 4: ValueError: no labels$"
        with pytest.raises(ClientError, match=told):
            engine.average("probe", range(60), weights=[1.0] * 60, **sent(task))
        assert len(served) < 20
        monkeypatch.setattr(Worker, "probe", probe)
        reply = engine.average("probe", range(60), weights=[1.0] * 60, **sent(task))
        assert len(reply.metrics["loss"]) == 60


def test_a_job_says_how_many_workers_there_are_and_where_states_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(monkeypatch, 4)
    task = linear(3)
    plan = Plan(ALGORITHMS["scaffold"], Schedule(1.0, 1.0), 1, 1)
    settings = EngineSettings(workers=2, state_memory_mb=0.0)
    with closing(Simulation.make(Job(plan, task, {}, settings, folder=tmp_path))) as engine:
        assert engine.workers == 2
        assert engine._first.algorithm is plan.algorithm
        assert isinstance(engine.client_states(), MappedStates)
        engine.load_client_states({2: ClientState(memory=torch.ones(3))})
        assert list(engine.client_states()) == [2]
