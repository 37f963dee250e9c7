"""`fit` as a person at a Python prompt meets it: progress, Ctrl-C, early ends, more rounds."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import episode
from episode import Callback, EpisodeError, MLflow, Schedule, TensorBoard, WandB
from episode.runs import progress as progress_module


def loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def fit(model: nn.Module | None = None, **changes: Any) -> episode.Run:
    g = torch.Generator().manual_seed(0)
    silos = [(torch.randn(8, 2, generator=g), torch.randn(8, 1, generator=g)) for _ in range(3)]
    options: dict[str, Any] = {
        "eta": 0.1, "gamma": 0.1, "local_steps": 2, "rounds": 6, "batch_size": 4,
        "evaluate": lambda m: {"weight": float(m.weight.sum())}, "algorithm": "scaffold",
    }  # fmt: skip
    return episode.fit(model or new_model(), silos, loss, **{**options, **changes})


def weights(model: nn.Module | None) -> Tensor:
    assert model is not None
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_the_public_names_are_listed_and_nothing_else() -> None:
    assert dir(episode) == episode.__all__
    assert {"fit", "diagnose", "load_run", "Run"} <= set(dir(episode))


@pytest.mark.parametrize("how", ["observe", "stop_when"])
def test_a_run_can_be_ended_early_and_has_finished(how: str, tmp_path: Path) -> None:
    rule = {
        "observe": lambda record: "stop" if record["round"] == 2 else None,
        "stop_when": lambda record: record["metrics"]["weight"] and record["round"] >= 2,
    }[how]
    run = fit(folder=tmp_path, **{how: rule})
    assert (run.status, len(run.history)) == ("finished", 3)
    assert run.summary["reason"] == "stopped after 3 of 6 rounds, as was asked"
    assert torch.equal(run.x, fit(rounds=3).x)
    again = fit(folder=tmp_path)
    assert len(again.history) == 3
    assert torch.equal(again.x, run.x)


def test_other_answers_of_an_observer_end_nothing() -> None:
    assert len(fit(observe=[lambda _: True, lambda _: "STOP"]).history) == 6


@pytest.mark.parametrize("folder", [None, "run"])
def test_ctrl_c_ends_after_the_round_and_leaves_the_last_model(
    folder: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def press(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    place = tmp_path / folder if folder else None
    before, model = signal.getsignal(signal.SIGINT), new_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, observe=press, folder=place)
    assert signal.getsignal(signal.SIGINT) is before
    assert torch.equal(weights(model), fit(rounds=3).x)
    assert "Stopping after this round" in caplog.text
    assert ("Call fit again" in caplog.text) == (folder is not None)
    if place:
        assert episode.load_run(place).status == "running"
        run = fit(folder=place)
        assert [r["round"] for r in run.history] == list(range(6))
        assert torch.equal(run.x, fit().x)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    def press(record: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    model = new_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, observe=press)
    assert torch.equal(weights(model), fit(rounds=1).x)


@pytest.mark.parametrize("trained", [True, False])
def test_a_run_that_is_given_more_rounds_is_the_longer_run(
    trained: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = new_model()
    fit(model, rounds=3, folder=tmp_path)
    longer = fit(model if trained else None, rounds=6, folder=tmp_path, extend=True)
    assert "had 3 rounds and goes on to 6" in caplog.text
    straight = fit(rounds=6)
    assert torch.equal(longer.x, straight.x)
    assert [r["loss"] for r in longer.history] == [r["loss"] for r in straight.history]
    assert fit(rounds=6, folder=tmp_path).read_back


@pytest.mark.parametrize(
    ("first", "changes", "message"),
    [
        ({}, {"rounds": 3}, "has 6 rounds already, more than 3: give rounds a larger number"),
        ({}, {"rounds": 9, "eta": 0.2}, "more than its rounds has changed .schedule.eta"),
        ({}, {"rounds": 9, "extend": 1}, "extend is 1: it must be True or False"),
        ({"schedule": "cosine"}, {"rounds": 9}, "depends on the number of rounds"),
        (
            {"schedule": Schedule(0.1, 0.1, warmup=0.5)}, {"rounds": 9},
            "depends on the number of rounds",
        ),
        ({"eta": 1e30, "algorithm": "fedavg"}, {"rounds": 9}, "diverged: there is nothing to go"),
    ],
)  # fmt: skip
def test_what_cannot_be_extended_is_one_sentence(
    first: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fit(folder=tmp_path, **first)
    with pytest.raises(EpisodeError, match=message):
        fit(**{"folder": tmp_path, "extend": True, **first, **changes})


def test_without_extend_a_longer_run_is_another_one(tmp_path: Path) -> None:
    fit(folder=tmp_path)
    with pytest.raises(EpisodeError, match=r"another configuration \(they differ in budget.rounds"):
        fit(folder=tmp_path, rounds=9)


def test_a_run_starts_from_the_weights_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = fit(folder=tmp_path / "first")
    assert first.model is not None
    origins = (first, tmp_path / "first", str(tmp_path / "first" / "model.safetensors"),
               first.model.state_dict(), episode.load_run(tmp_path / "first"))  # fmt: skip
    expected = fit(first.model, rounds=2).x
    first = fit(folder=tmp_path / "first")  # its model was trained on
    for origin in origins:
        given = first if isinstance(origin, episode.Run) and origin.model else origin
        given = first.model.state_dict() if isinstance(origin, dict) else given
        assert torch.equal(fit(start_from=given, rounds=2).x, expected)
    assert "at round 0: memories and momenta begin empty" in caplog.text


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (3, "start_from is 3: give a Run, its folder"),
        ("nowhere", "There are no weights in nowhere"),
        ({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, "do not fit the model: size mis"),
        ({}, "do not fit the model: Missing key"),
    ],
)
def test_weights_that_cannot_be_used_are_one_sentence(origin: Any, message: str) -> None:
    with pytest.raises(EpisodeError, match=message) as caught:
        fit(start_from=origin)
    assert "\n" not in str(caught.value)


def test_reading_a_run_back_is_said_and_what_cannot_be_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not fit(folder=tmp_path).read_back
    assert "read" not in caplog.text
    run = fit(folder=tmp_path)
    assert run.read_back
    assert "it was read, not trained again" in caplog.text
    assert "the code of the loss and the model cannot be compared" in caplog.text
    assert "read back" in repr(run)


def test_a_run_is_loaded_from_its_folder(tmp_path: Path) -> None:
    run = fit(folder=tmp_path, holdout=0.2, client_names=["a", "b", "c"])
    loaded = episode.load_run(str(tmp_path))
    assert torch.equal(loaded.x, run.x)
    assert (loaded.status, loaded.summary) == (run.status, run.summary)
    assert list(loaded.history) == list(run.history)
    assert loaded.history.clients() == run.history.clients()
    model = nn.Linear(2, 1)
    assert episode.load_run(tmp_path, model).model is model
    assert torch.equal(weights(model), run.x)
    with pytest.raises(EpisodeError, match="do not fit the model"):
        episode.load_run(tmp_path, nn.Linear(3, 1))
    with pytest.raises(EpisodeError, match="is not a run folder"):
        episode.load_run(tmp_path / "none")


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    monkeypatch.setattr(progress_module, "Console", lambda **_: console)
    fit(progress=True)
    assert "scaffold" in file.getvalue()
    assert "6/6" in file.getvalue()
    assert "weight" in file.getvalue()  # the metric


def test_progress_is_log_lines_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "episode")
    fit(progress=True)
    lines = [r.getMessage() for r in caplog.records]
    assert lines[0].startswith("scaffold: round 1 of 6: loss ")
    assert lines[-1].startswith("scaffold: round 6 of 6: loss ")
    caplog.clear()
    fit()
    assert not caplog.records
    with pytest.raises(EpisodeError, match="progress is 'yes': it must be True or False"):
        fit(progress="yes")


def test_a_run_shows_itself_in_notebooks(tmp_path: Path) -> None:
    page = fit(folder=tmp_path / "<b>")._repr_html_()
    for word in ("finished", "weight", "exchanges", "&lt;b&gt;"):
        assert word in page
    assert "<b>" not in page


def test_a_history_draws_itself(tmp_path: Path) -> None:
    history = fit(algorithm="episode").history
    figure = history.plot(path=tmp_path / "a.svg")
    labels = [axis.get_ylabel() for axis in figure.axes]
    assert labels == ["loss of the local steps", "weight", "gradient norm"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert len(history.plot("weight").axes) == 3
    with pytest.raises(EpisodeError, match="There is no metric 'wieght': did you mean 'weight'"):
        history.plot("wieght")
    with pytest.raises(EpisodeError, match=r"use a name that ends in \.png or \.svg"):
        history.plot(path=tmp_path / "a.gif")
    with pytest.raises(EpisodeError, match="There are no rounds to draw yet"):
        type(history)().plot()


class Told(Callback):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, config: Any, folder: Any) -> None:
        self.told.append(("begin", config["budget"]["rounds"], folder))

    def __call__(self, record: dict[str, Any]) -> object:
        self.told.append(record["round"])
        return "stop" if record["round"] == 1 else None

    def end(self, finished: bool) -> None:
        self.told.append(("end", finished))


def test_a_callback_is_told_of_the_beginning_and_the_end(tmp_path: Path) -> None:
    told = Told()
    fit(observe=told, folder=tmp_path)
    assert told.told == [("begin", 6, tmp_path), 0, 1, ("end", True)]
    failing = Told()
    with pytest.raises(ZeroDivisionError):
        fit(observe=[failing, lambda record: 1 / 0])
    assert failing.told == [("begin", 6, None), 0, ("end", False)]


def test_tensorboard_writes_into_the_runs_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(observe=TensorBoard(), folder=tmp_path)
    assert list((tmp_path / "events").iterdir())
    with pytest.raises(EpisodeError, match="TensorBoard has no folder to write to"):
        fit(observe=TensorBoard())


@pytest.mark.parametrize(("tracker", "extra"), [(MLflow(), "mlflow"), (WandB(), "wandb")])
def test_a_missing_tracker_is_named_before_anything_is_trained(
    tracker: Callback, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(EpisodeError, match=rf"pip install 'episode-fl\[{extra}\]'"):
        fit(observe=tracker)


def test_weights_and_biases_get_settings_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a module that stands for wandb, which is too large to install for the tests."""
    logged: list[Any] = []
    fake = SimpleNamespace(
        log=lambda values, step: logged.append((step, values["loss"], values["metrics/weight"])),
        finish=lambda exit_code: logged.append(exit_code),
    )

    def init(**options: Any) -> Any:
        logged.append((options["project"], options["mode"], options["config"]["seed"]))
        return fake

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    run = fit(observe=WandB("mine", mode="offline"), rounds=2)
    rows = [(r["round"], r["loss"], r["metrics"]["weight"]) for r in run.history]
    assert logged == [("mine", "offline", 0), *rows, 0]


def test_mlflow_gets_settings_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a module that stands for MLflow, which is too large to install for the tests."""
    logged: list[Any] = []

    class Client:
        def __init__(self, uri: str | None) -> None:
            logged.append(uri)

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return f"number of {name}"

        def create_run(self, experiment: str, run_name: str | None) -> Any:
            logged.append((experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="7"))

        def log_param(self, run: str, name: str, value: str) -> None:
            if name == "budget.rounds":
                logged.append((run, value))

        def log_metric(self, run: str, name: str, value: float, step: int) -> None:
            if name in ("loss", "metrics/weight"):
                logged.append((step, name, value))

        def set_terminated(self, run: str, status: str) -> None:
            logged.append((run, status))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    run = fit(observe=MLflow("mine", tracking_uri="file:x"), rounds=1)
    record = run.history[0]
    assert logged == [
        "file:x", ("number of mine", None), ("7", "1"), (0, "loss", record["loss"]),
        (0, "metrics/weight", record["metrics"]["weight"]), ("7", "FINISHED"),
    ]  # fmt: skip
