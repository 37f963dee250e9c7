"""Client states of one process: which are kept, loaded and left, in memory and in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from episode import ALGORITHMS, AdamW, Algorithm, EpisodeError, Schedule
from episode.core import Unclipped, Uncorrected
from episode.federation import checkpoint
from episode.federation.client_states import ClientStates, MappedStates, StoredStates, states_for
from episode.federation.job import EngineSettings, Job
from episode.federation.processes import Processes
from episode.federation.rounds import Plan
from episode.federation.state import ClientState, ServerState
from episode.testing.problems import QuadraticProblem

SIZE = 3


def vector(value: float) -> Tensor:
    return torch.full((SIZE,), float(value))


def mapped(folder: Path | None, clients: range = range(4), rank: int = 0) -> MappedStates:
    return MappedStates(clients, 4, vector(0), folder, (rank, 2))


def values(state: ClientState) -> list[float | None]:
    """The first number of each vector that a state holds."""
    held = (state.anchor, state.memory, state.velocity)
    return [None if tensor is None else tensor[0].item() for tensor in held]


@pytest.mark.parametrize("kind", [ClientStates, lambda clients: mapped(None, clients)])
def test_a_state_is_found_again_and_what_is_empty_is_not_kept(kind: type[ClientStates]) -> None:
    states = kind(range(4))
    states.keep(2, ClientState(anchor=vector(1), memory=vector(2), velocity=vector(3)))
    states.keep(0, ClientState(memory=vector(4)))
    states.keep(1, ClientState(anchor=vector(5)))
    states.keep(1, ClientState())
    assert (list(states), len(states)) == ([0, 2], 2)
    assert values(states[2]) == values(states.take(2, "local")) == [1, 2, 3]
    assert values(states[0]) == [None, 4, None]
    assert values(states.take(3, "local")) == [None, None, None]
    states.close()


def test_a_file_is_closed_once_it_was_opened() -> None:
    mapped(None).close()
    states = mapped(None)
    states.keep(1, ClientState(memory=vector(7)))
    assert states.file.close.alive
    states.close()
    assert not states.file.close.alive


def test_states_of_clients_that_another_process_serves_are_left() -> None:
    given = {client: ClientState(memory=vector(client)) for client in range(4)}
    for states in (ClientStates(range(1, 3)), mapped(None, range(1, 3))):
        states.load(given)
        assert list(states) == [1, 2]
        assert values(states[2]) == [None, 2, None]
        states.close()


def stored(states: MappedStates, folder: Path) -> StoredStates:
    """The states as they are read from a checkpoint in this folder."""
    path = folder / "state.safetensors"
    checkpoint.save(path, ServerState(vector(0)), states, "mine")
    return checkpoint.load(path, "mine", "cpu")[1]


def test_a_process_goes_on_with_its_own_file_and_copies_that_of_another(tmp_path: Path) -> None:
    states = mapped(tmp_path)
    states.keep(1, ClientState(memory=vector(7), velocity=vector(8)))
    for rank in (0, 1):
        again = mapped(tmp_path, rank=rank)
        again.load(stored(states, tmp_path))
        assert values(again[1]) == [None, 7, 8]
        assert (again.file.path == states.file.path) is (rank == 0)
        again.close()
    states.close()


def test_a_file_that_holds_clients_of_others_is_copied_and_not_emptied(tmp_path: Path) -> None:
    """As after a start on another number of ranks; the checkpoint must stay readable."""
    states = mapped(tmp_path)
    for client in range(4):
        states.keep(client, ClientState(velocity=vector(client)))
    before = stored(states, tmp_path)
    again = mapped(tmp_path, range(1, 3))
    again.load(before)
    assert again.file.path != states.file.path
    assert [values(again[client]) for client in again] == [[None, None, 1], [None, None, 2]]
    assert [values(before[client])[2] for client in before] == [0, 1, 2, 3]
    assert len(before) == 4
    again.close()
    states.close()


def test_the_part_of_a_rank_names_the_file_and_holds_its_table(tmp_path: Path) -> None:
    states = mapped(tmp_path)
    states.keep(1, ClientState(memory=vector(7)))
    name = checkpoint.save_part(tmp_path, states, "mine", (0, 2), 3, 2)
    states.close()
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, ServerState(vector(0), round=3), {}, "mine", [name])
    assert values(checkpoint.load(path, "mine", "cpu")[1][1]) == [None, 7, None]
    table = load_file(tmp_path / name)
    assert table.keys() == {"rows.keys", "rows.slots", "rows.checksums"}
    assert {numbers.dtype for numbers in table.values()} == {torch.int64}
    assert table["rows.keys"].tolist() == [2 * 1]


def test_a_checkpoint_in_another_folder_holds_the_vectors_themselves(tmp_path: Path) -> None:
    states = mapped(tmp_path / "here")
    states.keep(1, ClientState(memory=vector(7)))
    found = stored(states, tmp_path)
    states.close()
    assert found.files == []
    assert values(found[1]) == [None, 7, None]


def test_vectors_from_a_file_go_to_the_device_of_the_run(tmp_path: Path) -> None:
    states = mapped(tmp_path)
    states.keep(1, ClientState(memory=vector(7)))
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, ServerState(vector(0)), states, "mine")
    server, found = checkpoint.load(path, "mine", "meta")
    far = MappedStates(range(4), 4, torch.empty(SIZE, device="meta"), None)
    far.load(stored(states, tmp_path))
    for tensor in (server.x, found[1].memory, far[1].memory):
        assert tensor is not None
        assert tensor.device.type == "meta"
    states.close()
    far.close()


def test_states_are_in_a_file_beside_the_checkpoint_only_above_the_budget(tmp_path: Path) -> None:
    """Three clients' memories and momenta of five numbers of eight bytes are 240 bytes."""
    problem, algorithm = QuadraticProblem.heterogeneous(), Algorithm.named("scaffold", momentum=0.5)
    plan = Plan(algorithm, Schedule(0.1, 0.1), 1, 1)
    job = Job(plan, problem.task(), {}, folder=tmp_path)
    for megabytes, kind in ((240e-6, ClientStates), (239.9999e-6, MappedStates)):
        job = replace(job, engine=EngineSettings(state_memory_mb=megabytes))
        states = states_for(job, range(3))
        assert type(states) is kind
        states.load({client: ClientState(memory=torch.ones(5).double()) for client in (2, 3)})
        assert list(states) == [2]  # the third of those that are served
    assert isinstance(states, MappedStates)
    assert states.file.path == tmp_path / "checkpoint" / "clients-0-rank-0-of-1.rows"
    assert (states.file.layout.keys, states.file.layout.size) == (2 * 4, 5)
    states.close()
    states = states_for(replace(job, folder=None), range(3))
    assert isinstance(states, MappedStates)
    assert states.file.path is None
    states.close()
    processes = Processes()
    processes.rank, processes.size = 1, 2
    states = states_for(replace(job, processes=processes), range(3))
    assert isinstance(states, MappedStates)
    assert states.file.path == tmp_path / "checkpoint" / "clients-0-rank-1-of-2.rows"
    states.close()


def test_algorithms_without_states_need_no_file_and_moments_are_not_stored_in_one() -> None:
    task = QuadraticProblem.heterogeneous().task()

    def of(algorithm: Algorithm) -> ClientStates:
        plan = Plan(algorithm, Schedule(0.1, 0.1), 1, 1)
        return states_for(Job(plan, task, {}, EngineSettings(state_memory_mb=0.0)), range(4))

    for name in ("episode", "fedavg", "parallel_sgd"):
        assert type(of(ALGORITHMS[name])) is ClientStates
    assert type(of(Algorithm.named("parallel_sgd", momentum=0.5))) is ClientStates
    assert type(of(Algorithm(Uncorrected(), Unclipped(), AdamW(moments="reset")))) is ClientStates
    with pytest.raises(EpisodeError, match=r"The moments of AdamW take 0 MB, above .* = 0, and"):
        of(ALGORITHMS["diloco"])
