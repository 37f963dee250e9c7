"""`episode plan` and `episode diagnose` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

QUICK = ["--steps", "6", "--points", "4", "--batches", "4", "--rehearsal", "16", "-q"]


def episode(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "episode", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("command", ["plan", "diagnose"])
def test_every_help_has_a_sentence_and_an_example(command: str, tmp_path: Path) -> None:
    assert f"Example: episode {command}" in episode(command, "--help", cwd=tmp_path).stdout


def test_plan_prints_the_theorem_the_table_and_a_picture(tmp_path: Path) -> None:
    done = episode("plan", "--plot", "p.png", "--eta", "1", "--gamma", "1", cwd=tmp_path)
    assert "R at least   33,809,073 rounds" in done.stdout
    assert "FAILS  Lemma 1: reach" in done.stdout
    assert "Fewest rounds: EPISODE" in done.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    values = json.loads(episode("plan", "--json", "--L1", "0", cwd=tmp_path).stdout)
    assert values["gamma"] == "Infinity"
    assert len(values["table"]) == 6


def test_diagnose_takes_a_task_and_a_runs_folder(tmp_path: Path) -> None:
    done = episode("diagnose", "relaxed_smooth", *QUICK, "--html", "d.html", cwd=tmp_path)
    assert "Is clipping needed? not at η = " in done.stdout
    assert "; yes at η ≥ " in done.stdout
    assert "</html>" in (tmp_path / "d.html").read_text()
    sets = ["--set", "task=relaxed_smooth", "--set", "budget.rounds=3"]
    episode("run", *sets, "--folder", "r", "-q", cwd=tmp_path)
    found = json.loads(episode("diagnose", "r", *QUICK, "--json", cwd=tmp_path).stdout)
    assert found["title"] == "relaxed_smooth, episode after 3 rounds"
    assert found["points"][0]["gradient_norm"] < 20
    assert found["verdict"]["findings"][0]["question"] == "Is clipping needed?"
    (tmp_path / "d.json").write_text(json.dumps(found))
    planned = episode("plan", "--from", "d.json", "--epsilon", "0.01", "--json", cwd=tmp_path)
    made = json.loads(planned.stdout)
    assert made["constants"]["kappa"] == found["estimates"]["kappa"]["value"]
    assert made["local_steps"] == found["verdict"]["local_steps"]
    said = episode("plan", "--from", "d.json", "--L1", "0", "-I", "3", cwd=tmp_path).stdout
    assert "no guarantee" in said
    assert "L1 = 0" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--epsilon", "9"], "Theorem 1 admits at most"),
        (["plan", "--sigma", "-1"], "sigma is -1.0: it must be 0 or more"),
        (["plan", "--eta", "1"], "Only one of --eta and --gamma"),
        (["plan", "--from", "no.json"], "no.json cannot be read"),
        (["plan", "--from", "/dev/null"], "/dev/null is not a diagnosis: make one with"),
        (["plan", "--plot", "/proc/p.png"], "cannot be written"),
        (["plan", "--plot", "p.gif"], "p.gif does not name a picture"),
        (["diagnose", "digits", "--html", "/proc/d.html"], "/proc/d.html cannot be written"),
        (["diagnose", "."], "so it is not a run's folder"),
        (["diagnose", "digit"], "did you mean 'digits'"),
        (["diagnose", "no/folder"], "There is no config or folder"),
        (["diagnose", "digits", "--points", "1"], "points is 1"),
        (["diagnose", "digits", "--set", "task.num_clients=1"], "There is one client"),
        (["diagnose", "digits", "--set", "task.batch_size=150"], "make a single batch"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert message in episode(*arguments, cwd=tmp_path, code=2).stderr
