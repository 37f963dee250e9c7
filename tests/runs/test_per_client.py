"""Records of each client: what is written, kept, resumed and summarised."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode import ClientError, EpisodeError, LazyClients, Uniform
from episode.federation.job import RecordSettings
from episode.results.per_client import read_lines
from episode.results.store import read_json
from episode.runs.config import Experiment, read_experiment
from episode.runs.records import Run
from episode.runs.trainer import job_of, train

NAMES = ["north", "south", "west", "east"]


class PowerCut(BaseException):
    """Stops a run in the middle, as nothing else may."""


def silos(count: int = 4, size: int = 30) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(size, 3, generator=g) + i, torch.randint(2, (size,), generator=g))
        for i in range(count)
    ]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, data: Any) -> dict[str, Tensor]:
    return {"accuracy": (model(data[0]).argmax(1) == data[1]).double().mean()}


def fit(folder: Path | None = None, stop_after: int | None = None, **changes: Any) -> Run:
    def observe(record: dict[str, Any]) -> None:
        if record["round"] == stop_after:
            raise PowerCut

    torch.manual_seed(1)
    given: dict[str, Any] = {
        "clients": silos(), "loss": loss, "eta": 0.1, "gamma": 0.05, "local_steps": 3, "rounds": 6,
        "batch_size": 8, "seed": 4, "checkpoint_seconds": 0, "evaluate_every": 2, "workers": 2,
        "holdout": 0.2, "evaluate_client": accuracy, "client_names": NAMES, "observe": observe,
    }  # fmt: skip
    return episode.fit(nn.Linear(3, 2), **{**given, "folder": folder, **changes})


def test_a_round_has_a_line_with_the_values_of_each_client(tmp_path: Path) -> None:
    run = fit(tmp_path, cohorts=Uniform(2))
    lines = [json.loads(line) for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(6))
    for line, record in zip(lines, run.history, strict=True):
        assert line["clients"] == record["cohort"]
        assert statistics.fmean(line["loss"]) == pytest.approx(record["loss"])
        assert statistics.fmean(line["clipped"]) == pytest.approx(record["clipped_steps"])
        assert max(line["drift"]) == record["drift"]
        evaluated = record["round"] % 2 == 1
        assert ("metrics" in line) is evaluated
        if evaluated:
            assert line["evaluated"] == [0, 1, 2, 3], "all clients, not the cohort alone"
            assert [len(values) for values in line["metrics"].values()] == [4]
    assert lines == run.history.client_lines


def test_a_client_is_evaluated_on_what_it_has_held_out_and_did_not_train_on() -> None:
    seen: list[tuple[int, Tensor]] = []

    def evaluate_client(model: nn.Module, data: Any) -> dict[str, float]:
        assert not model.training
        seen.append((len(data[0]), data[0]))
        return {"examples": len(data[0])}

    trained: list[Tensor] = []

    def noting(model: nn.Module, batch: Any) -> Tensor:
        if torch.is_grad_enabled():
            trained.append(batch[0])
        return loss(model, batch)

    run = fit(evaluate_client=evaluate_client, loss=noting, workers=1, rounds=10)
    assert {count for count, _ in seen} == {6}
    rows = {tuple(row.tolist()) for batch in trained for row in batch}
    assert not rows & {tuple(row.tolist()) for _, data in seen for row in data}
    assert len(rows) == 4 * 24
    assert run.summary["per_client"]["examples"]["each"] == dict.fromkeys(NAMES, 6.0)


def test_the_summary_has_each_value_by_name_the_worst_the_mean_and_the_spread(
    tmp_path: Path,
) -> None:
    run = fit(tmp_path)
    found = read_json(tmp_path / "summary.json")["per_client"]
    assert list(found) == ["accuracy", "loss"]
    values = dict(zip(NAMES, run.history.client_lines[-1]["metrics"]["accuracy"], strict=True))
    assert found["accuracy"]["each"] == values
    assert found["accuracy"]["worst"] == min(values.values())
    assert values[found["accuracy"]["worst_client"]] == min(values.values())
    assert found["accuracy"]["mean"] == pytest.approx(statistics.fmean(values.values()))
    assert found["accuracy"]["spread"] == pytest.approx(statistics.stdev(values.values()))
    losses = found["loss"]
    assert losses["worst"] == max(losses["each"].values()), "of losses, the largest is the worst"
    assert read_json(tmp_path / "client_names.json") == NAMES


def test_the_history_has_the_records_of_each_client_and_a_frame_of_them() -> None:
    run = fit(cohorts=Uniform(2))
    assert run.client_names == NAMES
    found = run.history.clients()
    assert list(found) == NAMES
    for client, records in enumerate(found.values()):
        took_part = [r["round"] for r in run.history if client in r["cohort"]]
        assert [r["round"] for r in records if "loss" in r] == took_part
        assert [r["round"] for r in records if "metrics" in r] == [1, 3, 5]
    frame = run.history.client_frame()
    assert set(frame.columns) == {
        "client", "round", "loss", "clipped", "largest_norm", "drift", "accuracy",
    }  # fmt: skip
    last = frame[(frame["client"] == "west") & (frame["round"] == 5)]
    assert last["accuracy"].item() == run.summary["per_client"]["accuracy"]["each"]["west"]


def test_a_killed_run_goes_on_with_the_same_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(whole, cohorts=Uniform(2))
    for stop in (0, 3):
        with pytest.raises(PowerCut):
            fit(cut, stop_after=stop, cohorts=Uniform(2))
        with (cut / "clients.jsonl").open("a") as file:
            file.write('{"round": 9, "clients": [1]}\n{"round": 10, "cli')  # a torn last line
    resumed = fit(cut, cohorts=Uniform(2))
    assert (cut / "clients.jsonl").read_bytes() == (whole / "clients.jsonl").read_bytes()
    assert resumed.history.client_lines == read_lines(whole)
    again = fit(cut, cohorts=Uniform(2))  # read back
    assert again.history.client_lines == resumed.history.client_lines
    assert again.summary == resumed.summary


def test_records_are_synced_before_a_checkpoint_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from episode.federation import checkpoint

    events: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda file: events.append(Path(f"/proc/self/fd/{file}").readlink().name)
    )
    save = checkpoint.save

    def noted(*args: Any, **options: Any) -> None:
        events.append("save")
        save(*args, **options)

    monkeypatch.setattr(checkpoint, "save", noted)
    fit(tmp_path, rounds=1)
    assert {"rounds.jsonl", "clients.jsonl"} <= set(events[: events.index("save")])


def test_records_can_be_turned_off_and_on_and_do_not_decide_the_run(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        fit(tmp_path, stop_after=3, per_client=False)
    assert not (tmp_path / "clients.jsonl").exists()
    on = fit(tmp_path, per_client=True)
    assert [line["round"] for line in read_lines(tmp_path)] == [3, 4, 5]
    assert on.summary["per_client"]["accuracy"]["each"].keys() == set(NAMES)
    off = fit(per_client=False)
    assert torch.equal(on.x, off.x)
    assert "per_client" not in off.summary
    assert off.history.clients() == {}


def test_above_a_hundred_clients_records_are_off_unless_asked_for() -> None:
    many = silos(101, size=4)
    options: dict[str, Any] = {"clients": many, "client_names": (), "rounds": 1, "batch_size": 2}
    quiet = fit(**options, holdout=0, evaluate_client=None)
    assert quiet.history.client_lines == []
    assert len(quiet.client_names) == 101
    asked = fit(**options, holdout=0, evaluate_client=None, per_client=True)
    assert len(asked.history.client_lines[0]["loss"]) == 101
    with pytest.raises(EpisodeError, match=r"The 101 clients hold out data, but .* per_client"):
        fit(**options, holdout=0.3)
    assert fit(**options, holdout=0.3, per_client=False).status == "finished"
    assert RecordSettings().keeps_clients(100)


def test_without_a_function_the_loss_is_what_clients_are_evaluated_for() -> None:
    run = fit(evaluate_client=None, evaluate_every=0, holdout=silos())
    model = run.model
    assert model is not None
    found = run.summary["per_client"]["holdout_loss"]["each"]
    with torch.no_grad():
        expected = [loss(model, data).item() for data in silos()]
    assert list(found.values()) == pytest.approx(expected, rel=1e-5)


def test_a_holdout_of_its_own_may_be_missing_for_some_clients() -> None:
    data = silos()
    held_out = [data[0], None, (data[2][0][:0], data[2][1][:0]), data[3]]
    run = fit(holdout=held_out)
    assert set(run.summary["per_client"]["accuracy"]["each"]) == {"north", "east"}
    assert set(run.summary["per_client"]["loss"]["each"]) == set(NAMES)


def test_a_metric_called_loss_does_not_hide_that_of_training() -> None:
    run = fit(evaluate_client=lambda m, d: {"loss": -1.0, "drift": -2.0})
    line = run.history.client_lines[-1]
    assert set(line["metrics"]) == {"holdout_loss", "holdout_drift"}
    assert min(line["loss"]) > 0


def test_many_clients_that_are_opened_when_needed_hold_out_too() -> None:
    clients = LazyClients(4, lambda c: silos()[c])
    lazy, listed = fit(clients=clients), fit()
    assert torch.equal(lazy.x, listed.x)
    assert lazy.history.client_lines == listed.history.client_lines


def test_who_diverged_is_written_down(tmp_path: Path) -> None:
    data = silos(2)
    data[1] = (data[1][0] * 1e30, data[1][1])
    run = fit(tmp_path, clients=data, client_names=NAMES[:2], algorithm="fedavg", eta=1e9)
    assert run.status == "diverged"
    last = read_lines(tmp_path)[-1]
    assert last["round"] == run.history[-1]["round"]
    assert any(not math.isfinite(v) for v in [*last["loss"], *last["drift"]])
    assert "per_client" in read_json(tmp_path / "summary.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 0.99}, "A holdout of 0.99 leaves north nothing to train on .it has 30 examp"),
        ({"holdout": 1.5}, "holdout is 1.5: it must be a share"),
        ({"holdout": True}, "holdout is True: give a share such as 0.2, or a list"),
        ({"holdout": "0.2"}, "holdout is '0.2'"),
        ({"holdout": silos(3)}, "holdout has 3 datasets for 4 clients: give one for each"),
        ({"holdout": 0}, "evaluate_client needs data that clients do not train on"),
        ({"client_names": ["a", "b"]}, "2 client_names for 4 clients: give one for each"),
        ({"client_names": ["a", "b", "c", "b"]}, "Two clients are called 'b'"),
        ({"evaluate_client": lambda m, d: 0.5}, r"evaluate_client\(model, data\) returned 0.5: it"),
        ({"evaluate_client": lambda m, d: {"a": "b"}}, "must return a dict of names and numbers"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        fit(**changes)


def test_an_evaluation_that_fails_names_the_client() -> None:
    def fails(model: nn.Module, data: Any) -> dict[str, float]:
        raise ValueError("no coffee")

    with pytest.raises(ClientError, match="evaluate_client failed for north: ValueError: no coff"):
        fit(evaluate_client=fails)


def experiment(**task: Any) -> Experiment:
    values = {"task": {"name": "digits", "num_clients": 3, "hidden": 4, "time_steps": 4, **task}}
    return Experiment.from_dict({**values, "budget": {"rounds": 2, "local_steps": 2}})


def test_a_config_from_before_there_was_a_holdout_describes_the_same_run() -> None:
    plain, none, some = experiment(), experiment(holdout=0), experiment(holdout=0.2)
    assert plain.id == none.id != some.id
    assert "holdout" not in none.to_dict()["task"]
    assert Experiment.from_dict(some.to_dict()).id == some.id
    off = read_experiment(None, ["record.per_client=false"])
    assert off.record.per_client is False
    assert off.id == read_experiment(None, []).id
    assert "per_client" not in read_experiment(None, []).to_dict()["record"]


def test_a_shipped_task_evaluates_each_client_on_its_own_digits(tmp_path: Path) -> None:
    run = train(job_of(experiment(holdout=0.25)), tmp_path)
    found = run.summary["per_client"]
    assert set(found) == {"holdout_loss", "holdout_accuracy", "loss"}
    assert list(found["holdout_accuracy"]["each"]) == ["client 0", "client 1", "client 2"]
    assert set(run.summary["metrics"]) == {
        "test_loss", "test_accuracy", "train_loss", "train_accuracy",
    }  # fmt: skip
    whole, held = experiment().task.build(0, "cpu"), experiment(holdout=0.25).task.build(0, "cpu")
    for client in range(3):
        assert held.examples(client) == whole.examples(client) - round(whole.examples(client) / 4)
    with pytest.raises(EpisodeError, match="leaves client 0 nothing to train on"):
        experiment(num_clients=1438, holdout=0.5, batch_size=1).task.build(0, "cpu")


def test_a_run_from_before_is_resumed_and_read_back(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        fit(tmp_path, stop_after=3)
    for name in ("clients.jsonl", "client_names.json"):
        (tmp_path / name).unlink()
    run = fit(tmp_path)
    assert [line["round"] for line in run.history.client_lines] == [3, 4, 5]
    (tmp_path / "clients.jsonl").unlink()
    assert fit(tmp_path).history.clients() == {}


def test_a_damaged_file_is_one_sentence_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        fit(tmp_path, stop_after=3)
    (tmp_path / "clients.jsonl").write_text('{"round": "one"}\n{}\n')
    with pytest.raises(EpisodeError, match=r"clients.jsonl is damaged in line 1: delete this file"):
        fit(tmp_path)
    (tmp_path / "clients.jsonl").unlink()
    assert fit(tmp_path).status == "finished"
