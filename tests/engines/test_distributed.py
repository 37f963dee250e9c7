"""The distributed engine, in real processes on loopback: same numbers, one collective a phase."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launch import PROGRAMS, ranks
from safetensors.torch import load_file

from episode import EpisodeError
from episode.engines.cluster import Cluster
from episode.engines.distributed import Distributed, _bits, _checksum, _piece, _values
from episode.engines.registry import join, settings_here
from episode.engines.rendezvous import under_torchrun
from episode.federation.job import EngineSettings
from episode.results.per_client import read_lines

RUN = ["-m", "episode", "run", "--set", "task=quadratics", "--set", "budget.rounds=6"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 6))])
def test_every_algorithm_gives_the_numbers_of_the_simulation(size: int) -> None:
    for rank, ended in enumerate(ranks(size, [str(PROGRAMS / "same_numbers.py")], timeout=240)):
        assert ended.code == 0, ended.output
        assert f"rank {rank} agrees" in ended.output


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_ledger_survives_any_float_type(dtype: torch.dtype) -> None:
    values = [None, 0.1, -3.5e300, float("inf"), float("nan"), -0.0, 5e-324, 2.0**53 + 2]
    bits = _bits(values)
    pieces = bits.view(_piece(dtype)).to(dtype)
    back = _values((pieces + torch.zeros_like(pieces)).to(_piece(dtype)).view(torch.int64))
    assert json.dumps(back) == json.dumps(values)


def test_a_ledger_is_cut_into_the_widest_pieces_that_a_float_type_holds() -> None:
    types = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    assert [_piece(t) for t in types] == [torch.int16, torch.int16, torch.int8, torch.int8]


def test_models_that_differ_in_one_bit_have_other_checksums() -> None:
    x = torch.randn(1000)
    y = x.clone()
    y.view(torch.int32)[17] ^= 1
    assert _checksum(x) == _checksum(x.clone()) != _checksum(y)


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1024, pytest.param(0, marks=pytest.mark.long)])
def test_a_run_can_change_its_number_of_ranks(megabytes: int, tmp_path: Path) -> None:
    """With 0 MB for client states, each rank keeps those of its clients in a file."""
    settings = ["--set", "algorithm=scaffold_clipped", "--set", "algorithm.momentum=0.5"]
    settings += ["--set", f"engine.state_memory_mb={megabytes}"]
    settings += ["--set", "task.num_clients=5", "--set", "task.name=digits"]
    settings += ["--set", "task.dtype=float64", "--set", "record.checkpoint_seconds=0"]
    command = ["-m", "episode", "run", *settings, "--set", "budget.rounds=4"]
    stop = ["-c", STOP_AFTER_TWO, "run", *settings, "--set", "budget.rounds=4"]
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    (ended,) = ranks(1, [*command, "--folder", str(whole)])
    assert ended.code == 0, ended.output
    for ended in ranks(3, [*stop, "--folder", str(moved)]):
        assert ended.code == 130, ended.output
        assert "told of a failure" not in ended.output

    def parts(round: int, ranks: int) -> set[str]:
        names = {f"clients-{round}-rank-{k}-of-{ranks}.safetensors" for k in range(ranks)}
        rows = {f"clients-0-rank-{k}-of-{ranks}.rows" for k in range(ranks)}
        return names if megabytes else names | rows

    assert {p.name for p in (moved / "checkpoint").glob("clients-*")} == parts(2, ranks=3)
    for ended in ranks(2, [*command, "--folder", str(moved), "--resume"]):
        assert ended.code == 0, ended.output
    a, b = (load_file(f / "model.safetensors") for f in (whole, moved))
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-12
    assert {p.name for p in (moved / "checkpoint").glob("clients-*")} == parts(4, ranks=2)
    (ended,) = ranks(1, [*command, "--folder", str(moved), "--resume"])
    assert ended.code == 0, ended.output  # read back


@pytest.mark.slow
def test_one_rank_writes_the_records_of_all_clients_whoever_serves_them(tmp_path: Path) -> None:
    settings = ["task=digits", "task.num_clients=5", "task.hidden=6", "task.time_steps=4",
                "task.dtype=float64", "task.holdout=0.2", "budget.rounds=4", "cohorts.kind=uniform",
                "cohorts.cohort_size=3", "record.evaluate_every=2", "record.checkpoint_seconds=0",
                "algorithm=scaffold_clipped"]  # fmt: skip
    sets = [word for s in settings for word in ("--set", s)]
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    done = subprocess.run(
        [sys.executable, "-m", "episode", "run", "-q", *sets, "--folder", str(whole)],
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for ended in ranks(2, ["-c", STOP_AFTER_TWO, "run", *sets, "--folder", str(shared)]):
        assert ended.code == 130, ended.output
    with (shared / "clients.jsonl").open("a") as file:
        file.write('{"round": 2, "clients"')
    again = ["-m", "episode", "run", *sets, "--folder", str(shared), "--resume"]
    for ended in ranks(2, again):
        assert ended.code == 0, ended.output
    for ours, theirs in zip(read_lines(shared), read_lines(whole), strict=True):
        assert ours.keys() == theirs.keys()
        assert (ours["round"], ours["clients"]) == (theirs["round"], theirs["clients"])
        assert ours.get("evaluated") == theirs.get("evaluated")
        for name in ("loss", "clipped", "largest_norm", "drift"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-11)
        for name, values in theirs.get("metrics", {}).items():
            assert ours["metrics"][name] == pytest.approx(values, abs=1e-11)
    names = [f"client {c}" for c in range(5)]
    summary = json.loads((shared / "summary.json").read_text())
    assert list(summary["per_client"]["holdout_accuracy"]["each"]) == names


STOP_AFTER_TWO = """
from episode.cli.main import main
from episode.engines.cluster import Cluster
from episode.federation.rounds import Rounds
import os, signal
tell = Cluster.tell
def telling(self, subject, text):
    if subject == "failed":
        print("told of a failure:", text, flush=True)
    tell(self, subject, text)
Cluster.tell = telling
play = Rounds.play
def stopping(self, server):
    if server.round == 1 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does, to one of them
    return play(self, server)
Rounds.play = stopping
main()
"""


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not under_torchrun()
    with pytest.raises(EpisodeError, match=r"nobody to meet \(RANK, .*torchrun --nproc-per-node"):
        Cluster.join({}, timeout=1)


def test_under_torchrun_every_engine_is_the_distributed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    given = EngineSettings("simulation", timeout_seconds=7.0)
    joined: list[EngineSettings] = []
    monkeypatch.setattr(Distributed, "join", lambda settings, hello: joined.append(settings))
    join(given, {})
    assert joined == [settings_here(given)] == [EngineSettings("distributed", timeout_seconds=7.0)]


@pytest.mark.slow
def test_ranks_with_other_settings_or_none_do_not_start(tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path / "run")]
    for ended in ranks(2, [*RUN, *folder], each={1: ["--set", "schedule.eta=0.5"]}):
        assert ended.code == 2, ended.output
        assert "different things: config.schedule.eta is" in ended.output
        assert "on rank 1" in ended.output
    for ended in ranks(2, [*RUN, *folder], each={1: ["--set", "algorithm=epsode"]}):
        assert ended.code == 2, ended.output
        assert "no algorithm 'epsode': did you mean 'episode'" in ended.output
    older = "import episode.version as v; v.__version__ = '0.0.1'; import episode.cli.main; "
    older += "episode.cli.main.main()"
    one = "import sys, os; exec(os.environ['OLDER'] if os.environ['RANK'] == '1' else "
    one += "'from episode.cli.main import main; main()')"
    for ended in ranks(2, ["-c", one, *RUN[2:], *folder], OLDER=older):
        assert ended.code == 2, ended.output
        assert '"0.0.1" on rank 1' in ended.output
    assert not (tmp_path / "run").exists()
    assert "Traceback" not in ended.output


@pytest.mark.slow
def test_a_rank_that_does_not_come_and_a_rendezvous_that_is_not_there_are_named() -> None:
    settings = ["--set", "engine.timeout_seconds=3"]
    (ended,) = ranks(2, [*RUN, *settings], missing=[1])
    assert ended.code == 1
    assert "Rank 0 waited at 127.0.0.1:" in ended.output
    assert "but not all of 2 ranks came" in ended.output
    assert "Traceback" not in ended.output
    (ended,) = ranks(2, [*RUN, *settings], missing=[0])
    assert ended.code == 1
    assert "Rank 1 on" in ended.output
    assert "cannot reach the rendezvous at 127.0.0.1:" in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.slow
def test_what_fails_on_one_rank_is_told_on_all(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for ended in ranks(2, [*RUN, "--folder", str(tmp_path / "run")]):
        assert ended.code in (1, 2), ended.output
        assert "already holds a run" in ended.output
        assert "Traceback" not in ended.output
