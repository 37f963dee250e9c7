"""How processes find each other: what is read from the environment, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from episode import EpisodeError
from episode.engines import rendezvous as module
from episode.engines.rendezvous import first_line, meeting_point, objection_to, under_torchrun
from episode.errors import ClusterError

PLACE = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", PLACE)
def test_a_variable_that_is_missing_or_empty_means_no_torchrun(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert under_torchrun()
    monkeypatch.setenv(name, "")
    assert not under_torchrun()
    with pytest.raises(EpisodeError, match=rf"has nobody to meet \({name} not set\): start it"):
        meeting_point(1.0)
    for other in PLACE:
        monkeypatch.delenv(other)
    with pytest.raises(EpisodeError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"):
        meeting_point(1.0)


def test_the_store_is_asked_for_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()

    def rendezvous(url: str, timeout: timedelta) -> Iterator[Any]:
        assert (url, timeout) == ("env://", timedelta(seconds=7))
        yield store, 2, 3

    monkeypatch.setattr(module, "rendezvous", rendezvous)
    assert meeting_point(7.0) == (store, 2, 3)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError])
@pytest.mark.parametrize(
    ("rank", "told"),
    [
        (
            "0",
            r"^Rank 0 waited at host:29500, but not all of 3 ranks came \(timed out\): were they",
        ),
        ("2", r"^Rank 2 on .+ cannot reach the rendezvous at host:29500 \(timed out\): is rank 0"),
    ],
)
def test_a_rank_that_meets_nobody_says_where_it_has_waited(
    rank: str, told: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rendezvous(url: str, timeout: timedelta) -> Iterator[Any]:
        raise kind("[c10d] timed out. This is typically a firewall")

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(module, "rendezvous", rendezvous)
    with pytest.raises(ClusterError, match=told):
        meeting_point(1.0)


def test_the_first_that_cannot_start_or_differs_is_named() -> None:
    same = {"a": 1, "b": {"c": None}}
    assert objection_to([same, dict(same), dict(same)]) is None
    broken = {"error": "no such task."}
    assert objection_to([same, {"a": 2}, broken]) == "Rank 2 cannot start: no such task."
    assert objection_to([same, same, {"a": 1, "b": {"c": "x"}}, {"a": 5}]) == (
        "Ranks 0 and 2 are about to run different things: b.c is null on rank 0 and "
        '"x" on rank 2. Give all of them the same configuration and the same versions.'
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("[pair.cc:1] [x] reset by peer.\nC++ stack:\n#0", "reset by peer"),
        ("  \nrefused. This is typically caused by", "refused"),
        ("", "OSError"),
        (" \n ", "OSError"),
        ("a" * 200, "a" * 160),
        ("one. two. ", "one. two"),
    ],
)
def test_an_error_of_a_backend_is_cut_to_what_matters(words: str, line: str) -> None:
    assert first_line(OSError(words)) == line
