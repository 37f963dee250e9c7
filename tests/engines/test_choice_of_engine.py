"""Which engine plays a run, and who it meets before its task is built."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from episode import ALGORITHMS, EpisodeError, Schedule
from episode.engines.distributed import Distributed
from episode.engines.registry import engine_class, join, opener_of
from episode.engines.simulation import Simulation
from episode.federation.job import EngineSettings, Job
from episode.federation.processes import Processes
from episode.federation.rounds import Plan

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def job(name: str = "simulation", secure: bool | None = None, **more: Any) -> Job:
    plan = Plan(ALGORITHMS["fedavg"], Schedule(0.1, 0.1), 1, 1)
    return Job(plan, None, {}, EngineSettings(name, secure=secure), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["pathlib:Path", "math:pi"])
def test_what_is_no_engine_is_refused(address: str) -> None:
    assert engine_class("simulation") is Simulation
    with pytest.raises(EpisodeError, match=f"^{address} is not an engine: derive it from episode."):
        engine_class(address)


def test_an_engine_is_told_its_settings_and_what_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, met, said = EngineSettings("simulation"), Processes(), []

    def joined(given: EngineSettings, hello: Any) -> Processes:
        said.append((given, hello))
        return met

    monkeypatch.setattr(Simulation, "join", joined)
    assert join(settings, {"a": 1}) is met
    assert said == [(settings, {"a": 1})]


def test_the_engine_of_a_job_is_opened_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opener_of(job()) == Simulation.open
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    assert opener_of(job()) == Distributed.open
    assert opener_of(job(open_engine=nullcontext)) is nullcontext  # type: ignore[arg-type]


def test_only_flower_can_be_secure() -> None:
    with pytest.raises(EpisodeError, match=r"^engine.secure is true, but engine.name is 'simulati"):
        opener_of(job(secure=True))
    assert opener_of(job("flower", secure=True)) == engine_class("flower").open
    assert opener_of(job(secure=True, open_engine=nullcontext)) is nullcontext  # type: ignore[arg-type]
    assert opener_of(job(secure=False)) == Simulation.open
