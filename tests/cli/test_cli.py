"""The command line as a user meets it: output, help, exit codes, and never a traceback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from episode import ALGORITHMS
from episode.studies.demo import BEST, BEST_BY_PIXEL, SHARED

pytestmark = pytest.mark.slow

QUICK = ["--set", "budget.rounds=2", "--set", "budget.local_steps=2"]


def episode(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "episode", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


COMMANDS = [
    "demo", "run", "list", "verify", "sweep", "compare", "report", "watch", "tune", "reproduce",
    "partition", "plan", "diagnose",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_a_sentence_and_an_example(command: str, tmp_path: Path) -> None:
    text = episode(command, "--help", cwd=tmp_path).stdout
    assert f"Example: episode {command}" in text


def test_help_says_what_an_argument_is(tmp_path: Path) -> None:
    assert "Task with data to distribute" in episode("partition", "--help", cwd=tmp_path).stdout
    assert "a [sweep] table of lists" in episode("sweep", "--help", cwd=tmp_path).stdout


def test_run_writes_a_folder_and_prints_its_summary(tmp_path: Path) -> None:
    done = episode("run", *QUICK, "--folder", "here", cwd=tmp_path)
    assert "finished" in done.stdout
    assert "test_accuracy" in done.stdout
    assert (tmp_path / "here" / "summary.json").exists()
    done = episode("run", *QUICK, "--folder", "here", cwd=tmp_path, code=2)
    assert "already holds a run: go on with --resume" in done.stderr
    again = episode("run", "here", "--resume", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["status"] == "finished"


def test_run_takes_toml_and_dry_run_prints_what_would_run(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('algorithm = "celgc"\n[task]\nname = "quadratics"\n')
    done = episode("run", "c.toml", "--dry-run", "--set", "seed=7", cwd=tmp_path)
    assert 'name = "celgc"' in done.stdout
    assert "seed = 7" in done.stdout
    assert not (tmp_path / "runs").exists()
    (tmp_path / "printed.toml").write_text(done.stdout)
    result = json.loads(episode("run", "printed.toml", "--json", cwd=tmp_path).stdout)
    assert result["metrics"]["x"] == pytest.approx(0, abs=1e-9)
    assert result["folder"].startswith("runs/quadratics-celgc-")


def test_list_names_everything(tmp_path: Path) -> None:
    names = json.loads(episode("list", "--json", cwd=tmp_path).stdout)
    assert set(names["algorithms"]) == set(ALGORITHMS)
    own = {"digits", "synthetic", "quadratics", "relaxed_smooth"}
    assert set(names["tasks"]) == own | {"snli", "sentiment140", "cifar10", "imagenet", "silos"}
    assert "simulation" in names["engines"]
    assert "celgc" in episode("list", "algorithms", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--set", "algorithm=epsode"], "did you mean 'episode'?"),
        (["run", "--set", "cohorts.kind=uniform", "--set", "cohorts.cohort_size=99"], "8 clients"),
        (["run", "missing.toml"], "There is no config missing.toml"),
        (["run", "--resume"], "--resume needs the run's folder"),
        (["run", ".", "--resume"], "is not a run folder"),
        (["run", "--set", "task.num_clients=5000"], "5000 clients cannot share 1438 examples"),
        (["run", "--folder", "/proc/nothing"], "cannot be written"),
        (["list", "algorithm"], "did you mean 'algorithms'"),
        (["run", "--set", "eta=0.1"], "did you mean 'schedule.eta'?"),
        (["frobnicate"], "There is no command 'frobnicate'"),
        (["demo", "--rounds", "0"], "not in the range"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = episode(*arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert done.stdout == ""


def test_a_diverged_run_is_a_result_not_a_failure(tmp_path: Path) -> None:
    sets = ["task=synthetic", "task.x_0=50", "algorithm=fedavg", "budget.rounds=5"]
    done = episode("run", *(a for s in sets for a in ("--set", s)), "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["status"] == "diverged"
    assert "in round 0" in result["reason"]


def test_demo_writes_tables_picture_and_runs(tmp_path: Path) -> None:
    done = episode("demo", "--rounds", "2", "--folder", "d", cwd=tmp_path)
    for name in ("fedavg", "scaffold", "episode_guarded", "naive_parallel_clip"):
        assert name in done.stdout
        # One run at its own best setting, one at the shared one, which may be the same; and one
        # pixel by pixel.
        runs = 1 + (BEST[name] != SHARED) + (name in BEST_BY_PIXEL)
        assert len(list((tmp_path / "d").glob(f"digits-{name}-*/summary.json"))) == runs
    assert (tmp_path / "d" / "demo.png").read_bytes().startswith(b"\x89PNG")
    tables = [line for line in done.stdout.splitlines() if line.startswith((*BEST, "algorithm"))]
    assert len(tables) == 2 + len(BEST) + len(BEST_BY_PIXEL)
    assert max(map(len, tables)) <= 80
    assert done.stdout.count("Each at its own best setting") == 2
    assert "With and without clipping" in done.stdout
    found = json.loads(
        episode("demo", "--rounds", "2", "--folder", "d", "--json", cwd=tmp_path).stdout
    )
    for part, best in (("digits", BEST), ("by_pixel", BEST_BY_PIXEL)):
        assert {row["algorithm"] for row in found[part]} == set(best)
        accuracies = [row["accuracy"] for row in found[part]]
        assert accuracies == sorted(accuracies, reverse=True)
    assert {
        "accuracy",
        "shared",
        "eta",
        "gamma",
        "loss",
        "status",
        "rounds",
        "exchanges",
        "MB",
        "gradients",
        "seconds",
    } < set(found["digits"][0])


def test_ctrl_c_saves_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "episode", "run", "--folder", "r"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    rounds = tmp_path / "r" / "rounds.jsonl"
    deadline = time.monotonic() + 120
    while not rounds.exists() or rounds.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Go on with: episode run r --resume" in errors
    assert "Traceback" not in errors
    assert (tmp_path / "r" / "checkpoint" / "state.safetensors").exists()


def test_a_folder_made_in_python_is_sent_back_there(tmp_path: Path) -> None:
    config = {"made_by": "fit", "seed": 0, "task": {"name": "Net"}, "algorithm": {"name": "celgc"}}
    config |= {"schedule": {"eta": 1.0}, "budget": {"rounds": 1, "local_steps": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = episode("run", str(tmp_path), "--resume", cwd=tmp_path, code=2)
    assert "was made by episode.fit in Python" in done.stderr


def test_verify_prints_figures_and_bounds(tmp_path: Path) -> None:
    done = episode("verify", cwd=tmp_path)
    [(holding, checks)] = re.findall(r"(\d+) of (\d+) checks hold", done.stdout)
    assert holding == checks == str(done.stdout.count("(must be "))
    assert int(checks) > len(ALGORITHMS)
    assert "(must be <= 1e-12)" in done.stdout


def test_version(tmp_path: Path) -> None:
    assert episode("--version", cwd=tmp_path).stdout.strip().count(".") == 2


@pytest.mark.parametrize("group", [[], ["data"], ["flower"]])
def test_a_mistyped_command_gets_one_suggestion(group: list[str], tmp_path: Path) -> None:
    typed, meant = ("fech", "fetch") if group == ["data"] else ("rn", "run")
    told = episode(*group, typed, cwd=tmp_path, code=2).stderr
    assert told.count("did you mean") == 1
    assert f"There is no command '{typed}': did you mean '{meant}'?" in told


def test_a_picture_of_an_unknown_kind_is_refused_before_any_work(tmp_path: Path) -> None:
    told = episode("partition", "digits", "--picture", "a.gif", cwd=tmp_path, code=2)
    assert "a.gif does not name a picture: use a name that ends in .png or .svg" in told.stderr
    assert told.stdout == ""
    episode("partition", "digits", "--picture", "a.svg", cwd=tmp_path)
    assert "<svg" in (tmp_path / "a.svg").read_text()
