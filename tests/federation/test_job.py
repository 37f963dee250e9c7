"""The settings of a job, the processes that play it, and what tasks and engines have by default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from episode import Cyclic, EpisodeError, Full, Uniform
from episode.federation.job import EngineSettings, RecordSettings
from episode.federation.processes import Processes
from episode.federation.protocols import Engine, Reply, Request, Task
from episode.federation.state import Buffers
from episode.testing.problems import QuadraticProblem


@pytest.mark.parametrize(
    ("name", "least"), [("workers", 1), ("min_replies", 1), ("retries", 0), ("max_examples", 1)]
)
def test_whole_numbers_of_the_engine_have_a_least_value(name: str, least: int) -> None:
    EngineSettings(**{name: least})
    with pytest.raises(EpisodeError, match=f"engine.{name} is {least - 1}: it must be {least} or"):
        EngineSettings(**{name: least - 1})


@pytest.mark.parametrize("name", ["timeout_seconds", "max_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_times_and_norms_are_finite_and_above_zero(name: str, value: float) -> None:
    EngineSettings(**{name: 0.5})
    with pytest.raises(EpisodeError, match=f"engine.{name} is {value}: it must be a number above"):
        EngineSettings(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (EngineSettings, "state_memory_mb"),
        (RecordSettings, "evaluate_every"),
        (RecordSettings, "checkpoint_seconds"),
    ],
)
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_memory_and_intervals_are_finite_and_may_be_zero(
    kind: Any, name: str, value: float
) -> None:
    kind(**{name: 0})
    with pytest.raises(EpisodeError, match=rf"(engine|record).{name} is {value}: it must be 0 or"):
        kind(**{name: value})


def test_records_of_clients_are_kept_of_few_unless_told_otherwise() -> None:
    assert [RecordSettings().keeps_clients(n) for n in (100, 101)] == [True, False]
    for wanted in (True, False):
        kept = [RecordSettings(per_client=wanted).keeps_clients(n) for n in (100, 101)]
        assert kept == [wanted, wanted]


def test_a_process_alone_is_the_first_and_hears_itself() -> None:
    alone = Processes()
    assert alone.writes
    assert alone.device("cuda") == "cuda"
    assert alone.from_first(b"mine") == b"mine"
    assert alone.value_of_first({"a": [1, None]}) == {"a": [1, None]}
    assert alone.gather("metrics", "mine") == ["mine"]
    assert alone.summary() == {}


def test_clients_have_names_or_numbers() -> None:
    task = QuadraticProblem.heterogeneous().task()
    assert task.client_name(2) == "client 2"
    task.client_names = ("0", "north", "2", "south")
    names = [task.client_name(client) for client in range(4)]
    assert names == ["client 0", "north", "client 2", "south"]
    assert list(task.clients) == [0, 1, 2, 3]


def test_cohorts_are_described_by_their_kind_and_fields() -> None:
    assert Full().to_dict() == {"kind": "full"}
    assert Uniform(2).to_dict() == {"kind": "uniform", "cohort_size": 2}
    expected = {"kind": "cyclic", "groups": 3, "period": 2, "cohort_size": None}
    assert Cyclic(3, 2).to_dict() == expected


class Bare(Engine):
    """An engine that has nothing but what it must have."""

    def __init__(self, *given: Any) -> None:
        super().__init__()
        self.given = given
        self.closed = False

    def average(self, *_: Any, **__: Any) -> Reply:
        raise NotImplementedError

    def client_states(self) -> Mapping[int, Any]:
        return {}

    def load_client_states(self, states: Mapping[int, Any]) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_an_engine_is_made_of_task_and_algorithm_and_closed_at_the_end() -> None:
    job = SimpleNamespace(task="task", plan=SimpleNamespace(algorithm="algorithm"))
    with Bare.open(cast("Any", job)) as engine:
        assert isinstance(engine, Bare)
        assert engine.given == ("task", "algorithm")
        assert not engine.closed
    assert engine.closed
    assert type(Bare.join(EngineSettings(), {})) is Processes


def test_what_an_engine_does_by_default() -> None:
    engine = Bare()
    assert list(engine.attempts(0, (3, 1))) == [[3, 1]]
    assert engine.notes() == {}
    assert engine.requests() == Request.NONE
    engine.own_requests = lambda: Request.STOP
    assert engine.requests() == Request.STOP
    vectors = {"x": torch.zeros(3), "change": torch.zeros(2, dtype=torch.float64)}
    assert engine.sent_bytes(Reply(vectors)) == 12 + 16
    buffers = Buffers(torch.zeros(5), torch.zeros(1, dtype=torch.int64))
    assert engine.sent_bytes(Reply(vectors, buffers)) == 12 + 16 + 20 + 8


def test_a_task_that_is_measured_in_parts_must_combine_them() -> None:
    task = QuadraticProblem.heterogeneous().task()
    with pytest.raises(NotImplementedError, match="QuadraticTask has evaluate_part, but no comb"):
        Task.combine(task, [])
