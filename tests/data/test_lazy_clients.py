"""Clients whose data are opened when they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import episode
from episode import ClientError, LazyClients, Uniform
from episode.results.store import read_run
from episode.runs.records import Run

CLIENTS, ROUNDS = 12, 8


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    g = torch.Generator().manual_seed(0)
    for client in range(CLIENTS):
        data = torch.randn(10, 3, generator=g) + client, torch.randint(2, (10,), generator=g)
        torch.save(data, folder / f"{client}.pt")
    return folder


def train(files: Path, folder: Path | None, breaks: tuple[int, int] | None = None) -> Run:
    """Client `breaks[1]`'s file vanishes after round `breaks[0]`."""

    def observe(record: dict[str, int]) -> None:
        if breaks and record["round"] == breaks[0]:
            (files / f"{breaks[1]}.pt").rename(files / "elsewhere")

    torch.manual_seed(0)
    clients = LazyClients(CLIENTS, lambda c: torch.load(files / f"{c}.pt", weights_only=True))
    return episode.fit(
        nn.Linear(3, 2), clients, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]), eta=0.1,
        gamma=0.05, local_steps=2, rounds=ROUNDS, batch_size=4, algorithm="scaffold_clipped",
        cohorts=Uniform(4), folder=folder, checkpoint_seconds=0, observe=observe,
        state_memory_mb=0,
    )  # fmt: skip


def test_a_file_that_vanishes_is_named_and_a_mended_run_is_the_same(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("episode.data.clients.MOST_OPEN", 1)  # as with very many clients
    whole = train(files, None)
    broken_round = 5
    client = whole.history[broken_round]["cohort"][2]
    folder = tmp_path / "run"
    place = f"Client {client} failed in the local phase of round {broken_round}"
    with pytest.raises(
        ClientError, match=rf"{place}: .*{client}\.pt.*mend them and start"
    ) as error:
        train(files, folder, breaks=(broken_round - 1, client))
    assert "\n" not in str(error.value)
    assert read_run(folder).status == "failed"
    assert len(read_run(folder).rounds) == broken_round
    (files / "elsewhere").rename(files / f"{client}.pt")
    resumed = train(files, folder)
    assert torch.equal(resumed.x, whole.x)
    assert [{**r, "seconds": 0} for r in resumed.history] == [
        {**r, "seconds": 0} for r in whole.history
    ]


def test_a_file_that_is_missing_at_the_start_is_named(files: Path) -> None:
    (files / "0.pt").unlink()
    with pytest.raises(ClientError, match=r"Client 0's data cannot be opened \(FileNotFoundError"):
        train(files, None)
