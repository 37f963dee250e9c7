"""Sites that name their own folders, and a server that has no data: by config alone."""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import Act, crash, relabel, silence
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import ServerApp
from local_grid import LocalGrid

from episode import EpisodeError
from episode.errors import ClusterError
from episode.federation import checkpoint
from episode.flower.app import client_app, run_config, server_app
from episode.flower.app_files import write_app
from episode.flower.messages import ANSWER
from episode.results.per_client import read_lines
from episode.results.store import CHECKPOINT, read_json, read_partition, read_run
from episode.runs.config import Experiment, read_experiment
from episode.runs.records import Run
from episode.runs.trainer import job_of, train
from fault_matrix import LEFT_OUT

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
LABELS = {"north": ("no", "yes"), "south": ("yes", "maybe"), "west": ("no", "maybe")}
SETTINGS = [
    "task=silos", "task.word_buckets=32", "task.hidden=6", "task.batch_size=4", "budget.rounds=4",
    "budget.local_steps=2", "record.evaluate_every=2", "engine.timeout_seconds=3",
]  # fmt: skip


def write_notes(folder: Path) -> Path:
    """Write three silos, none of which has all labels."""
    for k, name in enumerate(NAMES):
        (folder / name).mkdir(parents=True)
        with (folder / name / "notes.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for row in range(20 + 10 * k):
                words = ["good", "bad", name, "day", "night"][row % 3 :]
                writer.writerow([" ".join(words), LABELS[name][row % 2]])
    return folder


def experiment(*more: str) -> Experiment:
    return read_experiment(None, [*SETTINGS, *more])


def grid_of(chosen: Experiment, sites: dict[int, dict[str, Any]], **options: Any) -> LocalGrid:
    """Return a grid of sites with these node configs."""
    grid = LocalGrid(client_app(), list(sites), **options)
    for context in grid.contexts.values():
        context.run_config = run_config(chosen)
        context.node_config |= sites[int(context.node_config["partition-id"])]
    return grid


def folders(root: Path) -> dict[int, dict[str, Any]]:
    return {k: {"data": str(root / name)} for k, name in enumerate(NAMES)}


def play(chosen: Experiment, grid: LocalGrid, folder: Path) -> None:
    app: ServerApp = server_app()
    config = {**run_config(chosen), "folder": str(folder)}
    app(grid, Context(1, 1, {}, RecordDict(), config))


def model_in(folder: Path) -> torch.Tensor:
    identity = read_json(folder / "config.json")["id"]
    return checkpoint.load(folder / CHECKPOINT, identity, "cpu")[0].x


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_notes(tmp_path / "silos")


@pytest.fixture
def whole(root: Path) -> Run:
    """The simulation, which sees all folders."""
    return train(job_of(experiment(f"task.data={root}")))


def test_three_sites_with_their_own_folders_give_the_bits_of_the_simulation(
    root: Path, whole: Run, tmp_path: Path
) -> None:
    chosen = experiment()
    play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")
    assert torch.equal(model_in(tmp_path / "run"), whole.x)
    stored = read_run(tmp_path / "run")
    metrics = [r["metrics"] for r in stored.rounds if "metrics" in r]
    assert metrics == [r["metrics"] for r in whole.history if "metrics" in r]
    assert set(metrics[0]) == {"test_loss", "test_accuracy", "train_loss", "train_accuracy"}
    counts = read_partition(tmp_path / "run")
    assert counts is not None
    assert (list(counts.clients), counts.labels) == (list(NAMES), ["maybe", "no", "yes"])


@pytest.mark.parametrize("holdout", ["task.holdout=0", "task.holdout=0.3"])
def test_each_site_is_evaluated_on_its_own_rows_as_in_the_simulation(
    root: Path, tmp_path: Path, holdout: str
) -> None:
    train(job_of(experiment(holdout, f"task.data={root}")), tmp_path / "whole")
    chosen = experiment(holdout)
    play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")
    assert torch.equal(model_in(tmp_path / "run"), model_in(tmp_path / "whole"))
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "whole")
    first, second = (read_run(tmp_path / name).summary for name in ("run", "whole"))
    assert first["per_client"] == second["per_client"]
    assert first["metrics"] == second["metrics"]
    split = "test" if holdout.endswith("=0") else "holdout"
    found = first["per_client"][f"{split}_accuracy"]["each"]
    assert tuple(found) == NAMES
    assert read_partition(tmp_path / "run") == read_partition(tmp_path / "whole")


def test_a_holdout_that_leaves_a_site_nothing_is_named_before_round_0(
    root: Path, tmp_path: Path
) -> None:
    (root / "south" / "notes.csv").write_text("text,label\ngood,yes\nbad,maybe\n")
    chosen = experiment("task.holdout=0.3")
    with pytest.raises(EpisodeError, match=r"site 1 .* A holdout of 0.3 leaves silo south nothing"):
        play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")


def test_a_server_without_data_weights_sites_by_the_examples_that_they_told(
    root: Path, tmp_path: Path
) -> None:
    weighted = ("algorithm.weighting=examples", "budget.rounds=1")
    whole = train(job_of(experiment(*weighted, f"task.data={root}")))
    chosen = experiment(*weighted)
    play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")
    assert torch.equal(model_in(tmp_path / "run"), whole.x)


def test_what_sites_send_before_the_first_round_is_what_the_docs_list(
    root: Path, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []

    def listen(client: int, reply: Message) -> Message:
        told.append(dict(reply.content.config_records[ANSWER]))
        return reply

    chosen = experiment("budget.rounds=1", "record.evaluate_every=0")
    play(chosen, grid_of(chosen, folders(root), fault=listen), tmp_path / "run")
    facts = [json.loads(t["facts"]) for t in told if "facts" in t]
    assert len(facts) == 3
    assert all(set(f) == {"name", "counts", "own_file", "words"} for f in facts)
    everything = json.dumps(told)
    assert "good" not in everything
    assert "notes.csv" not in everything


def test_a_resumed_run_does_not_ask_for_facts_again(root: Path, whole: Run, tmp_path: Path) -> None:
    chosen, run = experiment("budget.rounds=4"), tmp_path / "run"

    def lost(client: int, reply: Message) -> Message | None:
        played = reply.content.config_records[ANSWER].get("round")
        return None if played == 2 else reply

    with pytest.raises(ClusterError):
        play(chosen, grid_of(chosen, folders(root), fault=lost), run)
    grid = grid_of(chosen, folders(root))
    play(chosen, grid, run)
    assert "query.facts" not in {m.metadata.message_type for m in grid.sent}
    assert torch.equal(model_in(run), whole.x)


@pytest.mark.fault(
    engine="Flower", phase="evaluate", fault=("SIGKILL", "SIGSTOP", "stale round"), outcome=LEFT_OUT
)
def test_a_site_that_is_missing_or_late_at_an_evaluation_is_left_out_of_it(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = experiment("budget.rounds=2")
    acts = {
        "did not reply": silence,
        "was lost": crash,
        "replied about something else": relabel(round=0),
    }
    found = []
    for reason, act in acts.items():

        def fault(client: int, reply: Message, act: Act = act) -> Message | None:
            label = reply.content.config_records[ANSWER]
            late = label.get("round") == 1 and "evaluation" in label
            return act(reply) if client == 1 and late else reply

        run = tmp_path / reason
        with caplog.at_level(logging.WARNING, logger="flwr"):
            play(chosen, grid_of(chosen, folders(root), fault=fault), run)
        assert f"Round 1: site 1 was not evaluated: it {reason}" in caplog.text
        found.append(read_run(run).summary["metrics"])
    assert found[0] == found[1] == found[2]


LIES: list[Callable[[Any, Any], str]] = [
    lambda part, own: "[" * 100_000,
    lambda part, own: "[1, 2]",
    lambda part, own: json.dumps([{"other": []}, own]),
    lambda part, own: json.dumps([{"test": [[0, 0, 0, 0.0, 5, 5]]}, own]),
    lambda part, own: json.dumps([{"test": [[1, 0, 1, 0.0, 10**9, 10**9]]}, own]),
    lambda part, own: json.dumps([{"test": part["test"] * 2}, own]),
    lambda part, own: json.dumps([{"test": [[1, 0, 1, "x", 1, 1]]}, own]),
    lambda part, own: json.dumps([{"test": 7}, own]),
    lambda part, own: json.dumps([part, {"accuracy": "high"}]),
]
"""What site 1 may send instead of its part of an evaluation."""


@pytest.mark.fault(engine="Flower", phase="evaluate", fault="wrong shape", outcome=LEFT_OUT)
def test_an_evaluation_that_a_site_cannot_have_made_is_left_out(root: Path, tmp_path: Path) -> None:
    chosen = experiment("budget.rounds=1")
    found = []
    for k, lie in enumerate([None, *LIES]):

        def fault(client: int, reply: Message, lie: Any = lie) -> Message | None:
            label = reply.content.config_records[ANSWER]
            if client == 1 and "evaluation" in label:
                if lie is None:
                    return None
                label["evaluation"] = lie(*json.loads(str(label["evaluation"])))
            return reply

        play(chosen, grid_of(chosen, folders(root), fault=fault), tmp_path / f"{k}")
        found.append(read_run(tmp_path / f"{k}").summary["metrics"])
    assert all(metrics == found[0] for metrics in found)


@pytest.mark.parametrize(
    ("site", "node_config", "sentence"),
    [
        (1, {"data": "nowhere"}, r"site 1 .*There is no folder nowhere"),
        (2, {}, r"site 2 .*task\.data is missing"),
        (0, {"num-partitions": 4}, r"was told of \d sites, and others of \d"),
        (2, {"partition-id": 7}, r"has partition-id 7, but there are 3 sites"),
        (2, {"partition-id": 0}, r"has the partition-id of node"),
    ],
)
def test_a_site_that_is_set_up_wrongly_is_named_before_the_first_round(
    site: int, node_config: dict[str, Any], sentence: str, root: Path, tmp_path: Path
) -> None:
    chosen, sites = experiment(), folders(root)
    if not node_config:
        del sites[site]["data"]
    grid = grid_of(chosen, sites)
    grid.contexts[1000 + site].node_config |= node_config
    with pytest.raises(EpisodeError, match=sentence):
        play(chosen, grid, tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("note,class\nx,no\n", r"site 1 .*has the columns note, class, but no text"),
        ("text,label\nx,no\n", r"site 1 .*too few rows"),
        ("", r"site 1 .*has no rows"),
    ],
)
def test_a_site_with_a_wrong_file_is_named(
    text: str, sentence: str, root: Path, tmp_path: Path
) -> None:
    (root / "south" / "notes.csv").write_text(text)
    chosen = experiment()
    with pytest.raises(EpisodeError, match=sentence):
        play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")


def test_a_site_with_a_label_that_nobody_listed_is_named(root: Path, tmp_path: Path) -> None:
    chosen = experiment('task.labels=["no", "yes"]')
    sentence = r"site 1 .*the label 'maybe', which is not one of no, yes"
    with pytest.raises(EpisodeError, match=sentence):
        play(chosen, grid_of(chosen, folders(root)), tmp_path / "run")


def test_a_site_that_does_not_come_is_missed_by_its_number(root: Path, tmp_path: Path) -> None:
    chosen, sites = experiment("engine.timeout_seconds=1"), folders(root)
    del sites[1]
    grid = grid_of(chosen, sites, num_partitions=3)
    with pytest.raises(ClusterError, match=r"2 of 3 came within 1 s \(missing: site 1\)"):
        play(chosen, grid, tmp_path / "run")


@pytest.mark.parametrize("number", [3, 1])
def test_a_silo_that_appears_after_the_first_round_is_refused_and_the_run_goes_on(
    number: int, root: Path, whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = experiment()

    def late(client: int, reply: Message) -> Message:
        label = reply.content.config_records[ANSWER]
        if label.get("round") == 1 and 2000 not in grid.contexts:
            grid.connect(2000, number)
            grid.contexts[2000].run_config = run_config(chosen)
            grid.contexts[2000].node_config["data"] = str(root / "north")
        return reply

    grid = grid_of(chosen, folders(root), fault=late)
    with caplog.at_level("WARNING", "flwr"):
        play(chosen, grid, tmp_path / "run")
    assert torch.equal(model_in(tmp_path / "run"), whole.x)
    assert "Node 2000 is not admitted" in caplog.text


def test_a_server_needs_no_data_and_is_not_given_any(root: Path, tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"the server needs no data: leave it out"):
        write_app(tmp_path / "app", experiment(f"task.data={root}"))
    with pytest.raises(EpisodeError, match=r"cannot agree on words: give task\.word_buckets"):
        write_app(tmp_path / "app", read_experiment(None, ["task=silos"]))
    assert not (tmp_path / "app").exists()
    write_app(tmp_path / "app", experiment())
    text = (tmp_path / "app" / "README.md").read_text()
    assert "episode flower site --superlink HOST:443 --number 0 --of 3 --data ./our-data" in text


def test_a_file_that_vanishes_in_mid_run_is_named_and_the_run_resumes(
    root: Path, whole: Run, tmp_path: Path
) -> None:
    chosen, run = experiment("engine.retries=0"), tmp_path / "run"
    notes = root / "south" / "notes.csv"
    content, status = notes.read_bytes(), notes.stat()

    def vanish(client: int, reply: Message) -> Message:
        label = reply.content.config_records[ANSWER]
        if label.get("round") == 1 and notes.exists():
            notes.unlink()
            forget()
        return reply

    def forget() -> None:
        from episode.flower import app, serving

        serving._SITES.clear()  # as the process of the next message
        app._task.cache_clear()

    with pytest.raises(ClusterError, match=r"site 1 failed: .*south has no data"):
        play(chosen, grid_of(chosen, folders(root), fault=vanish), run)
    notes.write_bytes(content)
    os.utime(notes, ns=(status.st_atime_ns, status.st_mtime_ns))
    play(chosen, grid_of(chosen, folders(root)), run)
    assert torch.equal(model_in(run), whole.x)
