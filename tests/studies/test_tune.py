"""Studies: the paper's grid, what a kill leaves, what is refused."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killing import kill_when

from episode.errors import EpisodeError
from episode.results.store import find_runs
from episode.results.watch import Watcher
from episode.runs.config import Experiment, read_experiment
from episode.studies.search_space import (
    PAPER,
    Range,
    experiment_at,
    paper_protocol,
    parse_space,
)  # fmt: skip
from episode.studies.study import Study, open_study, sampler_of, suggest
from episode.studies.sweep import write_plan
from episode.studies.tune import StudyRunner, Trial

VALUES: dict[str, Any] = {"task": {"name": "synthetic"}, "budget": {"rounds": 4, "local_steps": 2}}


def test_the_papers_grid_is_15_pairs_for_celgc_at_its_setting() -> None:
    values = paper_protocol({"task": {"name": "snli"}})
    space = parse_space([], "snli")
    assert space == PAPER
    pairs = set()
    for gamma in space["schedule.gamma"]:  # type: ignore[union-attr]
        for threshold in space["threshold"]:  # type: ignore[union-attr]
            point = {"schedule.gamma": gamma, "threshold": threshold}
            experiment = experiment_at(values, point, "validation")
            assert experiment.algorithm.name == "celgc"
            assert experiment.budget.local_steps == 4
            assert experiment.task.similarity == 50  # type: ignore[attr-defined]
            assert experiment.task.evaluate_on == "validation"  # type: ignore[attr-defined]
            pairs.add((experiment.schedule.eta, experiment.schedule.gamma))
    assert len(pairs) == 15
    assert {(0.3, 0.1), (0.3, 0.03), (0.1, 0.01), (0.001, 0.01), (1.0, 0.1)} <= pairs


def test_what_the_user_says_goes_before_the_protocol() -> None:
    values = paper_protocol({"task": {"name": "digits", "similarity": 0.0}, "algorithm": "fedavg"})
    assert values["algorithm"]["name"] == "fedavg"
    assert values["task"]["similarity"] == 0.0


def test_spaces_are_lists_and_ranges() -> None:
    space = parse_space(["schedule.eta=0.01..1", "budget.local_steps=2..8", "seed=1,2"], "x")
    assert space["schedule.eta"] == Range(0.01, 1.0)
    assert space["budget.local_steps"] == Range(2, 8, whole=True)
    assert space["seed"] == [1, 2]
    with pytest.raises(EpisodeError, match="did you mean 'threshold'"):
        parse_space(["threshhold=1,5"], "x")
    with pytest.raises(EpisodeError, match="--search 'seed' is not of the form"):
        parse_space(["seed"], "x")
    with pytest.raises(EpisodeError, match="empty"):
        parse_space(["schedule.eta=1..0.1"], "x")


def test_a_study_follows_no_links_and_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    study = Study(tmp_path / "study", VALUES, {"schedule.eta": [0.1]})
    (tmp_path / "diary").write_text("dear diary")
    (tmp_path / "elsewhere").mkdir()
    study.folder.mkdir()
    targets = {"study.db": "diary", "locks": "elsewhere", "runs": "elsewhere"}
    for name, target in targets.items():
        (study.folder / name).symlink_to(tmp_path / target)
        with pytest.raises(OSError, match="A symbolic link is not followed"):
            StudyRunner(study).run()
        (study.folder / name).unlink()
    assert (tmp_path / "diary").read_text() == "dear diary"
    assert not list((tmp_path / "elsewhere").iterdir())
    before = os.umask(0o002)
    try:
        StudyRunner(study).run()
    finally:
        os.umask(before)
    modes = {p.stat().st_mode & 0o777 for p in study.folder.rglob("*") if p.is_file()}
    assert modes == {0o664}


@pytest.mark.parametrize("text", ["[]", "no json"])
def test_a_damaged_study_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(EpisodeError, match=r"study\.json (is damaged|cannot be read)"):
        StudyRunner(Study(tmp_path, VALUES, {"schedule.eta": [0.1]})).run()


def test_validating_digits_never_sees_the_test_examples() -> None:
    from episode.tasks.digits import split_digits

    test, train = split_digits(1797, "test")
    validation, rest = split_digits(1797, "validation")
    assert not set(test.tolist()) & set(validation.tolist())
    assert set(validation.tolist()) | set(rest.tolist()) == set(train.tolist())
    assert not set(validation.tolist()) & set(rest.tolist())


def test_a_grid_plays_every_point_once_and_finds_the_best(tmp_path: Path) -> None:
    space = parse_space(["schedule.eta=0.1,0.01", "threshold=5,10"], "synthetic")
    study = Study(tmp_path, VALUES, space)
    played: list[str] = []
    trials = StudyRunner(study, watch=lambda name, e: played.append(e.id)).run()
    assert len(set(played)) == len(played) == 4
    known = [t.value for t in trials if t.value is not None]
    assert known == sorted(known)
    summaries = {
        p.parent.name: json.loads(p.read_text()) for p in tmp_path.glob("runs/*/summary.json")
    }
    for trial in trials:
        if trial.value is not None:
            assert summaries[trial.experiment.name]["metrics"]["value"] == trial.value
    best = read_experiment(tmp_path / "best.toml")
    assert best.schedule == trials[0].experiment.schedule
    again: list[str] = []
    assert [t.point for t in StudyRunner(study, watch=lambda n, e: again.append(e.id)).run()] == [
        t.point for t in trials
    ]
    assert again == []


def test_a_study_of_another_space_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, VALUES, parse_space(["schedule.eta=0.01"], "synthetic"))
    StudyRunner(study).run()
    other = replace(study, space=parse_space(["schedule.eta=0.01,0.1"], "synthetic"))
    with pytest.raises(EpisodeError, match=r"another one \(they differ in space\.schedule\.eta\)"):
        StudyRunner(other).run()


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (["schedule.eta=0.01..1"], {}, "A grid needs lists"),
        (["schedule.etta=1,2"], {}, "did you mean 'schedule.eta'"),
        (["schedule.eta=0.01"], {"metric": "accuracy"}, "There is no metric 'accuracy'"),
        (["threshold=0,1"], {}, "γ/η must be a number above 0"),
        (["threshold=0..1"], {"sampler": "tpe"}, "γ/η must be a number above 0"),
        (["threshold=a,b"], {}, "γ/η must be a number above 0"),
        (
            ["schedule.eta=1", "schedule.gamma=1", "threshold=5"],
            {},
            "two of them determine the third",
        ),
    ],
)
def test_mistakes_are_sentences(
    tmp_path: Path, space: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        StudyRunner(Study(tmp_path, VALUES, parse_space(space, "synthetic"), **options)).run()


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    study = Study(tmp_path / "t", VALUES, parse_space(["schedule.eta=0.01"], "synthetic"))
    with pytest.raises(EpisodeError, match="choose --metric from gap, gradient_norm, value"):
        StudyRunner(replace(study, metric="loss")).run()
    assert not study.folder.exists()
    assert StudyRunner(replace(study, metric="gap")).run()[0].status == "complete"


def test_a_study_keeps_out_of_what_is_something_else(tmp_path: Path) -> None:
    study = Study(tmp_path / "study", VALUES, parse_space(["schedule.eta=0.01"], "synthetic"))
    StudyRunner(study).run()
    (run,) = study.folder.glob("runs/*")
    write_plan(tmp_path / "sweep", {}, [])
    for place in (study.folder / "celgc", tmp_path, run, tmp_path / "sweep"):
        before = set(tmp_path.rglob("*"))
        with pytest.raises(EpisodeError, match="holds a run, a sweep or a study"):
            StudyRunner(replace(study, folder=place)).run()
        assert set(tmp_path.rglob("*")) == before


def test_it_tells_of_trials_that_others_are_still_at_work_on(tmp_path: Path) -> None:
    study = Study(tmp_path, VALUES, parse_space(["schedule.eta=0.01,0.02"], "synthetic"))
    held: list[Any] = []

    def another_process(name: str, experiment: Experiment) -> None:
        if not held:  # it takes the second trial while the first is played
            opened = open_study(study)
            opened.sampler = sampler_of(study, 1)
            trial = opened.ask()
            held.append((tmp_path / "locks" / f"trial-{trial.number}").open("w"))
            fcntl.flock(held[0], fcntl.LOCK_EX)

    runner = StudyRunner(study, watch=another_process)
    assert len(runner.run()) == 1
    assert runner.running_elsewhere == 1
    held[0].close()
    assert len(runner.run()) == 2
    assert runner.running_elsewhere == 0


@pytest.mark.slow
def test_a_trial_left_behind_is_taken_up_where_it_was(tmp_path: Path) -> None:
    """Stopped in the middle of a trial, a TPE study ends as if it had not been."""
    space = parse_space(["schedule.eta=0.001..0.1", "threshold=1..20"], "synthetic")
    whole = Study(tmp_path / "whole", VALUES, space, "tpe", "none", trials=6)
    expected = [(t.number, t.point, t.value) for t in StudyRunner(whole).run()]
    stopped = replace(whole, folder=tmp_path / "stopped")
    for rounds in (1, 6, 11):  # of 4 each
        count = iter(range(100))
        with pytest.raises(KeyboardInterrupt):
            StudyRunner(stopped, stop=lambda count=count, r=rounds: next(count) >= r).run()
    assert [(t.number, t.point, t.value) for t in StudyRunner(stopped).run()] == expected


@pytest.mark.slow
def test_pruning_stops_trials_that_fall_behind(tmp_path: Path) -> None:
    values = {
        **VALUES,
        "budget": {"rounds": 10, "local_steps": 2},
        "algorithm": {"name": "episode"},
    }
    etas = "1e-6,2e-6,3e-6,0.005,0.01,0.015,0.02,0.025"
    space = parse_space([f"schedule.eta={etas}", "threshold=5"], "synthetic")
    trials = StudyRunner(Study(tmp_path, values, space, pruner="median")).run()
    pruned = {t.point["schedule.eta"] for t in trials if t.status == "pruned"}
    assert pruned
    assert trials[0].status == "complete"
    assert pruned.isdisjoint({trials[0].point["schedule.eta"]})
    told = {r.config["schedule"]["eta"] for r in find_runs([tmp_path]) if r.status == "pruned"}
    assert told == pruned
    watched = [f.status for f in Watcher([tmp_path]).update()]
    assert (watched.count("pruned"), watched.count("stopped")) == (len(pruned), 0)


HYPERBAND = {
    **VALUES, "budget": {"rounds": 27, "local_steps": 2}, "algorithm": {"name": "episode"},
    "record": {"evaluate_every": 3},
}  # fmt: skip


def hyperband(folder: Path) -> Study:
    etas = ",".join(f"{eta:g}" for eta in (*(k * 1e-6 for k in range(1, 9)), 0.005, 0.01, 0.02))
    space = parse_space([f"schedule.eta={etas}", "threshold=5"], "synthetic")
    return Study(folder, HYPERBAND, space, pruner="hyperband")


def outline(trials: list[Trial]) -> list[tuple[Any, ...]]:
    return [(t.number, t.point, t.status, t.value) for t in trials]


@pytest.mark.slow
def test_hyperband_stops_trials_early_and_keeps_the_best(tmp_path: Path) -> None:
    study = hyperband(tmp_path)
    trials = StudyRunner(study).run()
    assert trials[0].status == "complete"
    assert trials[0].point["schedule.eta"] >= 0.005
    pruned = [t for t in trials if t.status == "pruned"]
    assert pruned
    for trial in pruned:
        folder = tmp_path / "runs" / trial.experiment.name
        played = len((folder / "rounds.jsonl").read_text().splitlines())
        assert played < 27
        assert not (folder / "summary.json").exists()


@pytest.mark.slow
def test_a_hyperband_study_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    expected = outline(StudyRunner(hyperband(tmp_path / "whole")).run())
    study = hyperband(tmp_path / "stopped")
    for rounds in (2, 10, 17, 23):
        count = iter(range(1000))
        with pytest.raises(KeyboardInterrupt):
            StudyRunner(study, stop=lambda count=count, r=rounds: next(count) >= r).run()
    assert outline(StudyRunner(study).run()) == expected
    again: list[str] = []
    StudyRunner(study, watch=lambda name, e: again.append(name)).run()
    assert again == [], "a trial that was pruned stays so"


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "tpe"])
@pytest.mark.parametrize("suggestions", range(5, 9))
def test_a_study_killed_while_it_chooses_a_point_misses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, suggestions: int
) -> None:
    """A trial is there before its point is: two searched values are two more writes."""
    values = "0.01,0.02,0.03" if sampler == "grid" else "0.001..0.1"
    space = parse_space([f"schedule.eta={values}", "threshold=1,5"], "synthetic")
    wanted = None if sampler == "grid" else 6
    whole = Study(tmp_path / "whole", VALUES, space, sampler, "none", trials=wanted)
    expected = [(t.point, t.value) for t in StudyRunner(whole).run()]
    count = iter(range(100))

    def dying(trial: Any, name: str, values: Any) -> None:
        if next(count) == suggestions:
            raise SystemExit
        suggest(trial, name, values)

    study = replace(whole, folder=tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr("episode.studies.tune.suggest", dying)
        with pytest.raises(SystemExit):
            StudyRunner(study).run()
    assert [(t.point, t.value) for t in StudyRunner(study).run()] == expected


HYPERBAND_SEARCH = [
    "--search", "schedule.eta=0.000001,0.000002,0.000003,0.000004,0.005,0.01", "--search",
    "threshold=5", "--pruner", "hyperband", "--set", "task=synthetic", "--set",
    "algorithm=episode", "--set", "budget.rounds=27", "--set", "record.evaluate_every=3",
]  # fmt: skip


@pytest.mark.long
def test_a_hyperband_study_killed_again_and_again_ends_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    out, err = start(whole, *HYPERBAND_SEARCH).communicate(timeout=240)
    expected = json.loads(out.replace(str(whole), ""))
    (trials,) = expected.values()
    assert {t["status"] for t in trials} == {"complete", "pruned"}
    for rounds in (3, 20, 41, 60):
        kill_when(start(killed, *HYPERBAND_SEARCH), lambda r=rounds: rounds_of(killed) >= r)
    out, err = start(killed, *HYPERBAND_SEARCH).communicate(timeout=240)
    assert json.loads(out.replace(str(killed), "")) == expected, err
    assert (killed / "best.toml").read_text() == (whole / "best.toml").read_text()


def rounds_of(folder: Path) -> int:
    return sum(f.read_bytes().count(b"\n") for f in folder.glob("runs/*/rounds.jsonl"))


GRID_SEARCH = [
    "--search", "schedule.eta=0.3,1.0", "--search", "schedule.gamma=0.03,0.1",
    "--set", "budget.rounds=20",
]  # fmt: skip


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "episode", "tune", "--folder", str(folder), "--json",
        "--set", "budget.local_steps=2", "--set", "record.checkpoint_seconds=0",
        "--set", "engine.workers=1", *(more or GRID_SEARCH),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_two_processes_share_a_study_and_a_killed_one_is_made_good(tmp_path: Path) -> None:
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    out, err = start(whole).communicate(timeout=240)
    expected = json.loads(out)
    killed, other = start(shared), start(shared)
    deadline = time.monotonic() + 120
    while not list(shared.glob("runs/*/rounds.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    out, err = other.communicate(timeout=240)
    assert other.returncode == 0, err
    out, err = start(shared).communicate(timeout=240)

    def table(found: dict[str, Any]) -> set[tuple[Any, ...]]:
        (trials,) = found.values()
        return {(str(t["point"]), t["validation_accuracy"]) for t in trials}

    assert table(json.loads(out)) == table(expected)
    assert (shared / "best.toml").read_text() == (whole / "best.toml").read_text()
