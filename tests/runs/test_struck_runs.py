"""A run of one process, or a Flower server, that a fault strikes in any phase: by name or unharmed.

Of Flower, the sites are in the server's process; what sites alone can do is in `tests/flower`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Forks
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import episode
from episode.errors import EpisodeError
from episode.results.store import read_json, read_rounds
from episode.runs.folder import RunFolder
from episode.runs.records import Run
from fault_matrix import DIVERGED, PHASES, RECORDED, RESUMES, error_within

pytestmark = pytest.mark.slow
SECONDS = 20.0
"""Longer than any error here takes on a busy machine."""
ENGINES = ["simulation", "Flower"]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as helper:
        yield helper


@pytest.fixture(scope="module")
def whole(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Undisturbed runs, by engine."""
    folders = {engine: tmp_path_factory.mktemp("whole") / "run" for engine in ENGINES}
    for engine, folder in folders.items():
        assert forks.play(engine, folder)[0] == 0
    return folders


def contents(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    rounds = [{**r, "seconds": 0} for r in read_rounds(folder / "rounds.jsonl")]
    return load_file(folder / "model.safetensors"), rounds


def assert_same(ours: Path, theirs: Path) -> None:
    """Check that two runs have the same records and the same model, bit for bit."""
    (model, rounds), (expected, records) = contents(ours), contents(theirs)
    assert rounds == records
    assert model.keys() == expected.keys()
    assert all(torch.equal(model[name], expected[name]) for name in expected)
    assert not list(ours.rglob("*.tmp"))


def assert_named(code: int, said: str, reason: str, struck: Path) -> None:
    """Check that a run has ended in time, with one sentence."""
    assert time.time() - struck.stat().st_mtime < SECONDS
    assert code in (1, 2), said
    assert reason in " ".join(said.split()), said
    assert sum(line.startswith("Error") for line in said.splitlines()) == 1, said
    assert "Traceback" not in said


@pytest.mark.fault(fault="SIGKILL", outcome=RESUMES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_run_resumes(
    engine: str, phase: str, forks: Forks, whole: dict[str, Path], tmp_path: Path
) -> None:
    code, said = forks.play(engine, tmp_path / "run", {"kind": "SIGKILL", "phase": phase})
    assert code == -9, said
    code, said = forks.play(engine, tmp_path / "run")
    assert code == 0, said
    assert_same(tmp_path / "run", whole[engine])


@pytest.mark.fault(fault="SIGSTOP", outcome=RESUMES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stopped_run_keeps_its_folder_and_goes_on(
    engine: str, phase: str, forks: Forks, whole: dict[str, Path], tmp_path: Path
) -> None:
    player = forks.start(engine, tmp_path / "run", {"kind": "SIGSTOP", "phase": phase})
    player.wait_until_stopped()
    with pytest.raises(EpisodeError, match="Another process is writing to"):
        with RunFolder(tmp_path / "run", {}, ""):
            pass
    player.go_on()
    assert forks.wait() == 0, player.log.read_text()
    assert_same(tmp_path / "run", whole[engine])


@pytest.mark.fault(fault="disk full", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_disk_stops_a_run_that_resumes_once_there_is_room(
    engine: str, phase: str, forks: Forks, whole: dict[str, Path], tmp_path: Path
) -> None:
    """No byte can be written after the fault, to any file."""
    code, said = forks.play(engine, tmp_path / "run", {"kind": "disk full", "phase": phase})
    assert_named(code, said, "File too large", tmp_path / "run.struck")
    assert str(tmp_path / "run") in said.replace("\n", "")  # it names the file
    code, said = forks.play(engine, tmp_path / "run")
    assert code == 0, said
    assert_same(tmp_path / "run", whole[engine])


@pytest.mark.fault(fault="deleted folder", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_whose_folder_is_deleted_stops_and_does_not_make_it_again(
    engine: str, phase: str, forks: Forks, tmp_path: Path
) -> None:
    code, said = forks.play(engine, tmp_path / "run", {"kind": "deleted folder", "phase": phase})
    assert_named(code, said, "was removed or replaced during this run", tmp_path / "run.struck")
    assert not (tmp_path / "run").exists()


@pytest.mark.fault(fault="NaN", outcome=DIVERGED)
@pytest.mark.parametrize(
    ("engine", "phase"),
    [("simulation", "probe"), ("simulation", "local"), ("simulation", "average"),
     ("Flower", "average")],
)  # fmt: skip
def test_a_run_that_leaves_the_finite_numbers_has_diverged(
    engine: str, phase: str, forks: Forks, tmp_path: Path
) -> None:
    code, said = forks.play(engine, tmp_path / "run", {"kind": "NaN", "phase": phase})
    assert code == 0, said
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["status"] == "diverged"
    assert "in round 2" in summary["reason"]
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(t.double()).all()) for t in model.values())


@pytest.mark.fault(engine="simulation", fault="wrong shape", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", ["probe", "local"])
def test_a_gradient_of_another_shape_is_the_error_of_its_client(
    phase: str, forks: Forks, tmp_path: Path
) -> None:
    code, said = forks.play("simulation", tmp_path / "run", {"kind": "wrong shape", "phase": phase})
    reason = f"Client 1 failed in the {phase} phase of round 2"
    assert_named(code, said, reason, tmp_path / "run.struck")


@pytest.mark.fault(phase="checkpoint", outcome=error_within(SECONDS))
@pytest.mark.parametrize("fault", ["NaN", "wrong shape"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_with_other_contents_than_were_meant_is_refused(
    engine: str, fault: str, forks: Forks, tmp_path: Path
) -> None:
    """The disk stores other numbers, or fewer, than it was given."""
    forks.play(engine, tmp_path / "run", {"kind": fault, "phase": "checkpoint", "round": 3})
    (tmp_path / "run" / "summary.json").unlink()  # as if killed before it was written
    struck = tmp_path / "now"
    struck.touch()
    code, said = forks.play(engine, tmp_path / "run")
    assert_named(code, said, "state.safetensors is damaged: remove the run's folder", struck)


@pytest.mark.fault(phase="checkpoint", fault="stale round", outcome=RESUMES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_older_than_the_records_is_gone_on_from(
    engine: str, forks: Forks, whole: dict[str, Path], tmp_path: Path
) -> None:
    """As when a disk has lost the last checkpoints, or a copy was put back."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    for phase, number in (("checkpoint", 2), ("evaluate", 3)):
        strike = {"kind": "SIGKILL", "phase": phase, "round": number}
        assert forks.play(engine, run, strike)[0] == -9
        (tmp_path / "run.struck").unlink()
        if not kept.exists():
            kept.write_bytes((run / "checkpoint" / "state.safetensors").read_bytes())
    assert len(read_rounds(run / "rounds.jsonl")) == 3
    (run / "checkpoint" / "state.safetensors").write_bytes(kept.read_bytes())
    code, said = forks.play(engine, run)
    assert code == 0, said
    assert_same(run, whole[engine])


@pytest.mark.fault(engine="simulation", phase="evaluate", fault="NaN", outcome=RECORDED)
def test_a_metric_that_is_not_a_number_is_recorded_and_changes_nothing() -> None:
    runs = [fitted(float), fitted(lambda r: math.nan if r == 2 else float(r))]
    assert [run.status for run in runs] == ["finished", "finished"]
    assert torch.equal(runs[0].x, runs[1].x)
    assert [math.isnan(r["metrics"]["m"]) for r in runs[1].history] == [False, False, True, False]


@pytest.mark.fault(
    engine="simulation", phase="evaluate", fault="wrong shape", outcome=error_within(SECONDS)
)
@pytest.mark.timeout(SECONDS)
def test_metrics_of_another_shape_are_an_error_that_shows_them(tmp_path: Path) -> None:
    error = r"evaluate\(model\) returned .*tensor.*: it must return a dict of names and numbers"
    with pytest.raises(EpisodeError, match=error):
        fitted(lambda r: torch.ones(2) if r == 2 else 0.0, tmp_path)
    assert fitted(lambda r: 0.0, tmp_path).status == "finished"


def fitted(metric: Callable[[int], Any], folder: Path | None = None) -> Run:
    """Play four rounds, with a metric of the round that was played last."""
    torch.manual_seed(0)
    played: list[int] = []

    def evaluate(model: nn.Module) -> dict[str, Any]:
        return {"m": metric(len(played))}

    return episode.fit(
        nn.Linear(2, 1), [(torch.randn(8, 2), torch.randn(8, 1))] * 2,
        loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), eta=0.1, gamma=0.1,
        local_steps=2, rounds=4, batch_size=4, evaluate=evaluate, folder=folder,
        observe=lambda record: played.append(record["round"]), workers=1,
    )  # fmt: skip
