"""Client states in a memory-mapped file: the same run, bit for bit, however often it is stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import Algorithm, EpisodeError, Uniform
from episode.federation import checkpoint
from episode.federation.worker import Worker
from episode.runs.records import Run

ROWS = "clients-0-rank-0-of-1.rows"
REMEMBERING = ["scaffold", "scaffold_clipped", "episode_plus_plus", "episode", "celgc"]


class PowerCut(BaseException):
    """Stops a run in the middle, as nothing else may."""


def train(
    folder: Path | None,
    name: str = "scaffold",
    *,
    megabytes: float = 0.0,
    stop_after: int | None = None,
    momentum: float = 0.9,
    checkpoint_seconds: float = 0.0,
) -> Run:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    g = torch.Generator().manual_seed(0)
    silos = [
        (torch.randn(30, 3, generator=g) + i, torch.randint(2, (30,), generator=g))
        for i in range(7)
    ]

    def observe(record: dict[str, Any]) -> None:
        if record["round"] == stop_after:
            raise PowerCut

    return episode.fit(
        model, silos, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        algorithm=Algorithm.named(name, momentum=momentum), eta=0.1, gamma=0.05, local_steps=2,
        rounds=8, batch_size=8, seed=4, folder=folder, cohorts=Uniform(3), observe=observe,
        checkpoint_seconds=checkpoint_seconds, workers=2, state_memory_mb=megabytes,
    )  # fmt: skip


def assert_same(a: Run, b: Run) -> None:
    assert torch.equal(a.x, b.x)
    assert [{**r, "seconds": 0} for r in a.history] == [{**r, "seconds": 0} for r in b.history]


@pytest.mark.slow
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_with_states_in_a_file_is_the_same_run(name: str, tmp_path: Path) -> None:
    whole = train(None, name, megabytes=1024)
    assert_same(train(None, name), whole)
    for stop in (0, 1, 4, 5):
        with pytest.raises(PowerCut):
            train(tmp_path, name, stop_after=stop)
        assert (tmp_path / "checkpoint" / ROWS).exists()
    assert_same(train(tmp_path, name), whole)
    assert_same(train(tmp_path, name), whole)  # read back


@pytest.mark.parametrize("budgets", [(0, 1024, 0), (1024, 0, 1024), (0, 0, 1024)])
def test_the_budget_may_change_from_start_to_start(
    budgets: tuple[float, ...], tmp_path: Path
) -> None:
    for stop, megabytes in zip((1, 4), budgets, strict=False):
        with pytest.raises(PowerCut):
            train(tmp_path, megabytes=megabytes, stop_after=stop)
    resumed = train(tmp_path, megabytes=budgets[-1])
    assert_same(resumed, train(None, megabytes=1024))
    left = [path.name for path in (tmp_path / "checkpoint").glob("clients-*")]
    assert left == ([] if budgets[-1] else [ROWS])


def test_a_cut_in_the_middle_of_a_round_leaves_the_checkpoint_intact(tmp_path: Path) -> None:
    whole = train(None, megabytes=1024)
    local = Worker.local
    for limit in (4, 11, 17):  # so many clients are served before the cut, three in a round
        served: list[int] = []

        def cut(
            self: Worker, client: int, *rest: Any, _served: Any = served, _limit: int = limit,
            **more: Any,
        ) -> Any:  # fmt: skip
            _served.append(client)
            if len(_served) > _limit:
                raise PowerCut
            return local(self, client, *rest, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Worker, "local", cut)
            with pytest.raises(PowerCut):
                # Some rounds are played again: their rows were written after the checkpoint.
                train(tmp_path, checkpoint_seconds=0 if limit == 4 else 1e9)
    assert_same(train(tmp_path), whole)


def test_without_a_folder_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []
    mkstemp = tempfile.mkstemp
    monkeypatch.setattr(tempfile, "mkstemp", lambda *a: made.append(a) or mkstemp(*a))
    with pytest.raises(PowerCut):
        train(None, stop_after=3)
    assert train(None).status == "finished"
    assert len(made) == 2
    assert not list(tmp_path.iterdir())


def test_states_within_the_budget_or_that_do_not_exist_need_no_file(tmp_path: Path) -> None:
    train(tmp_path / "small", megabytes=1)
    train(tmp_path / "none", "episode", momentum=0.0)
    assert not list(tmp_path.rglob("*.rows"))


def test_a_damaged_file_of_states_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        train(tmp_path, stop_after=4)
    rows = tmp_path / "checkpoint" / ROWS
    good = rows.read_bytes()
    checkpoint = (tmp_path / "checkpoint" / "state.safetensors").read_bytes()
    rows.write_bytes(bytes(byte ^ 1 for byte in good))
    with pytest.raises(EpisodeError, match=r"rows, a part of the checkpoint, is damaged"):
        train(tmp_path)
    assert (tmp_path / "checkpoint" / "state.safetensors").read_bytes() == checkpoint
    rows.unlink()
    with pytest.raises(EpisodeError, match=r"needs .*rows, which is not there"):
        train(tmp_path)
    rows.write_bytes(good)
    assert_same(train(tmp_path), train(None))


def test_a_checkpoint_does_not_grow_with_the_states(tmp_path: Path) -> None:
    """The server's file holds the model and 24 bytes for each vector that is in the other file."""
    train(tmp_path, "episode_plus_plus")
    d = sum(p.numel() for p in nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)).parameters())
    state = (tmp_path / "checkpoint" / "state.safetensors").stat().st_size
    assert state < 2 * 4 * d + 14 * 24 + 2000
    assert (tmp_path / "checkpoint" / ROWS).stat().st_size >= 7 * 4 * d


def test_the_budget_does_not_make_another_run() -> None:
    from episode.runs.config import Experiment

    one = Experiment.from_dict({"engine": {"state_memory_mb": 0}})
    assert one.id == Experiment.from_dict({}).id
    assert one.engine == dataclasses.replace(Experiment.from_dict({}).engine, state_memory_mb=0)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(EpisodeError, match=r"engine\.state_memory_mb is .*: it must be 0 or"):
            Experiment.from_dict({"engine": {"state_memory_mb": wrong}})
    with pytest.raises(EpisodeError, match="state_memory_mb is 'much': it must be a number"):
        train(None, megabytes="much")  # type: ignore[arg-type]


def test_resident_memory_does_not_grow_with_the_clients_that_have_a_state() -> None:
    from episode.federation.client_states import MappedStates
    from episode.federation.state import ClientState

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    like = torch.zeros(8000)
    states = MappedStates(range(3000), 3000, like, None)
    states.keep(0, ClientState(memory=like))
    before = resident()
    for client in range(3000):  # 96 MB
        states.keep(client, ClientState(memory=torch.full((8000,), float(client))))
    for client in range(0, 3000, 7):
        memory = states.take(client, "local").memory
        assert isinstance(memory, Tensor)
        assert float(memory[-1]) == client
    assert resident() - before < 20e6
    states.close()


def test_states_are_not_written_through_a_link_or_into_another_folder(tmp_path: Path) -> None:
    folder, diary = tmp_path / "run", tmp_path / "diary"
    diary.write_text("dear diary")
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / ROWS).symlink_to(diary)
    with pytest.raises(EpisodeError, match=rf"{ROWS} cannot be opened"):
        train(folder)
    assert diary.read_text() == "dear diary"


def test_a_checkpoint_names_no_states_outside_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        train(tmp_path / "run", stop_after=2)
    state = tmp_path / "run" / "checkpoint" / "state.safetensors"
    with safe_open(state, framework="pt") as opened:
        header = json.loads(opened.metadata()["episode"])
    (state.parent / ROWS).rename(tmp_path / ROWS)
    content = (tmp_path / ROWS).read_bytes()
    header["rows"]["file"] = f"../../{ROWS}"
    del header["checksum"]
    header["checksum"] = checkpoint._checksum(header, load_file(state))
    save_file(load_file(state), state, {"episode": json.dumps(header)})
    with pytest.raises(EpisodeError, match="is damaged: remove"):
        train(tmp_path / "run")
    assert (tmp_path / ROWS).read_bytes() == content


def test_moments_of_adamw_do_not_go_to_a_file() -> None:
    """Which is said before anything is trained."""
    with pytest.raises(
        EpisodeError, match=r"engine\.state_memory_mb = 0, and are not stored in fil"
    ):
        train(None, "diloco", momentum=0.0)
    train(None, "diloco", momentum=0.0, megabytes=10.0)
