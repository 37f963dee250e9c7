"""`sweep`, `compare`, `report`, `watch`, `tune` and `reproduce` as a user meets them."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from made_runs import make_run, write_silos
from test_cli import episode

from episode.runs.config import read_experiment

pytestmark = pytest.mark.slow


def test_from_a_sweep_to_its_report(tmp_path: Path) -> None:
    tiny = ["--set", "task=synthetic", "--set", "budget.rounds=4", "--set", "schedule.eta=1e6"]
    over = ["--over", "algorithm=celgc,fedavg", "--over", "seed=0,1", "--jobs", "1"]
    steps = "--over", "budget.local_steps=2,4"
    listed = episode("sweep", *tiny, *over, *steps, "--dry-run", cwd=tmp_path).stdout
    assert len(listed.splitlines()) == 1 + 8
    assert listed.count("local_steps 4") == 4
    done = episode("sweep", *tiny, *over, "--folder", "s", "--track", cwd=tmp_path)
    assert "4 runs in s" in done.stdout
    assert len(list(tmp_path.glob("s/*/events/events.out*"))) == 4
    assert "diverged" in (tmp_path / "s" / "table.md").read_text()
    done = episode("compare", "s", cwd=tmp_path)
    assert "algorithm.name" in done.stdout
    rows = json.loads(episode("compare", "s", "--json", cwd=tmp_path).stdout)
    assert {r["settings"]["seed"] for r in rows} == {0, 1}
    done = episode("report", "s", cwd=tmp_path)
    assert done.stdout.startswith("s/report.html")
    assert "4 runs" in episode("watch", "s", cwd=tmp_path).stdout


def test_runs_are_compared_silo_by_silo(tmp_path: Path) -> None:
    for algorithm in ("celgc", "episode"):
        write_silos(make_run(tmp_path / "runs" / algorithm, algorithm), 3)
    make_run(tmp_path / "runs" / "fedavg", "fedavg")
    done = episode("compare", "runs", "--per-silo", cwd=tmp_path)
    words = [line.split() for line in done.stdout.splitlines()]
    assert words[1] == ["silo", "celgc", "episode", "fedavg"]
    assert [row[0] for row in words[2:5]] == ["Aachen", "Bergen", "Cork"]
    assert "fedavg: 1 of 1 finished runs without holdout_accuracy of each silo." in done.stdout
    assert "With --metric: holdout_loss, loss." in done.stdout
    done = episode("compare", "runs", "--per-silo", "--json", "--metric", "loss", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert [len(column["each"]) for column in found] == [3, 3, 0]
    done = episode("compare", "runs", "--metric", "loss", cwd=tmp_path, code=2)
    assert done.stderr == "Error: --metric chooses what --per-silo shows: give both.\n"
    done = episode("compare", "runs/fedavg", "--per-silo", cwd=tmp_path, code=2)
    assert "None of these runs has records of each silo" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_names_the_silo_that_it_serves_worst(tmp_path: Path) -> None:
    small = ["task=digits", "task.num_clients=2", "task.hidden=4", "task.time_steps=2",
             "budget.rounds=2", "task.holdout=0.2"]  # fmt: skip
    sets = [word for s in small for word in ("--set", s)]
    done = episode("run", *sets, "--folder", "r", cwd=tmp_path)
    worst = json.loads((tmp_path / "r/summary.json").read_text())["per_client"]["holdout_accuracy"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("worst silo"))
    assert line.endswith(f"holdout_accuracy {worst['worst']:.6g} ({worst['worst_client']})")
    done = episode(
        "run", *sets, "--set", "task.holdout=0.9999", "--folder", "s", cwd=tmp_path, code=2
    )
    assert "A holdout of 0.9999 leaves client 0 nothing to train on" in " ".join(
        done.stderr.split()
    )


def test_tune_ends_with_a_config_that_runs(tmp_path: Path) -> None:
    search = ["--search", "schedule.eta=0.01,0.02", "--set", "task=synthetic"]
    rounds = ["--set", "budget.rounds=3"]
    done = episode("tune", *search, *rounds, "--folder", "t", cwd=tmp_path)
    assert "2 trials, the best first" in done.stdout
    assert episode("run", "t/best.toml", "--json", cwd=tmp_path).stdout
    for wrong, message in (
        (("--per-algorithm", "celgc,epsiode"), "did you mean 'episode'"),
        (("--trials", "3"), "--trials is for --sampler tpe"),
    ):
        done = episode("tune", *search, *wrong, "--folder", "w", cwd=tmp_path, code=2)
        assert message in " ".join(done.stderr.split())
        assert not (tmp_path / "w").exists()
    lost = "--set", "algorithm=fedavg", "--search", "schedule.eta=1e6", "--set", "task=synthetic"
    done = episode("tune", *lost, *rounds, "--folder", "lost", cwd=tmp_path, code=1)
    assert "widen the search space" in done.stdout
    other = episode("tune", *search, "--folder", "t", cwd=tmp_path, code=2)
    assert "is another one (they differ in config.budget.rounds)" in other.stderr


def test_recipes_are_listed_and_their_data_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    assert "snli-ablation" in episode("reproduce", cwd=tmp_path).stdout
    done = episode("reproduce", "snli", "--scale", "laptop", cwd=tmp_path, code=2)
    assert "snli is not on this machine: get it with `episode data fetch snli`" in done.stderr
    asked = "reproduce", "complexity", "snli", "--scale", "laptop", "--data", "snli=no", "--dry-run"
    done = episode(*asked, cwd=tmp_path, code=2)
    assert "snli cannot be made: There is no folder or archive no" in " ".join(done.stderr.split())
    done = episode("reproduce", "snli", "--dry-run", "--tune", cwd=tmp_path, code=2)
    assert "tune first, or give a study with --tuned" in " ".join(done.stderr.split())
    done = episode("reproduce", "synthetic", "--dry-run", cwd=tmp_path)
    assert "synthetic needs no runs" in done.stderr
    for unused in (("--set", "schedule.eta=5"), ("--seeds", "3"), ("--tune",)):
        done = episode("reproduce", "synthetic", "complexity", *unused, cwd=tmp_path, code=2)
        assert f"{unused[0]} would change nothing" in " ".join(done.stderr.split())
    done = episode("reproduce", "snli", "--data", "glov=x", cwd=tmp_path, code=2)
    assert "did you mean 'glove'" in done.stderr


def test_the_commands_of_a_dry_run_give_the_runs_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    done = episode("reproduce", "digits", "snli-time", "--dry-run", cwd=tmp_path)
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert len(commands) > 10
    for words in commands:
        assert words[:3] == ["episode", "run", "--folder"]
        settings = [b for a, b in pairwise(words) if a == "--set"]
        assert read_experiment(None, settings).name == Path(words[3]).name


def test_folders_that_cannot_be_compared_are_one_sentence(tmp_path: Path) -> None:
    make_run(tmp_path / "a", task="digits")
    make_run(tmp_path / "b", task="snli")
    for command in ("compare", "report"):
        done = episode(command, "a", "b", cwd=tmp_path, code=2)
        assert "runs of different tasks (digits, snli)" in done.stderr
        (tmp_path / "none").mkdir(exist_ok=True)
        done = episode(command, "none", cwd=tmp_path, code=2)
        assert "is not a run folder and contains none" in done.stderr
        assert done.stderr.count("\n") == 1


def test_copies_are_told_of_and_count_once(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("copy", 1)):
        make_run(tmp_path / name, seed=seed)
    done = episode("compare", "a", "b", "copy", cwd=tmp_path)
    assert "1 run is a copy of another (the same config and seed)" in done.stderr
    assert done.stdout.splitlines()[1].split()[1] == "2"
    done = episode("report", "a", "b", "copy", cwd=tmp_path)
    assert "2 runs" in done.stdout


@pytest.mark.long
def test_every_recipe_is_made_at_scale_smoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    done = episode("reproduce", "--all", "--quiet", "--json", "--folder", "r", cwd=tmp_path)
    served = json.loads(done.stdout)
    assert len(served) == 10
    for name, entry in served.items():
        assert entry["missing"] == ""
        verdicts = {c["verdict"] for c in entry["claims"]}
        computed = name in ("synthetic", "complexity")
        assert verdicts == {"holds" if computed else "not testable at this scale"}
        for file in ("figure.png", "figure.pdf", "table.md", "table.tex", "table.csv"):
            assert (tmp_path / "r" / name / file).stat().st_size > 0
