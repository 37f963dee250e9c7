"""Checkpoints and folders: complete or absent, and a resumed run is the same run."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import episode
from episode import Algorithm, EpisodeError, Uniform
from episode.federation import checkpoint
from episode.federation.state import ClientState, ServerState
from episode.results.store import dumps, read_json, read_rounds, read_run
from episode.runs.records import History, Run


class PowerCut(BaseException):
    """Stops a run in the middle, as nothing else may."""


def train(folder: Path | None, algorithm: Algorithm, stop_after: int | None = None) -> Run:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    g = torch.Generator().manual_seed(0)
    silos = [
        (torch.randn(30, 3, generator=g) + i, torch.randint(2, (30,), generator=g))
        for i in range(5)
    ]

    def observe(record: dict[str, Any]) -> None:
        if record["round"] == stop_after:
            raise PowerCut

    return episode.fit(
        model, silos, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]), algorithm=algorithm,
        eta=0.1, gamma=0.05, local_steps=3, rounds=6, batch_size=8, seed=4, folder=folder,
        cohorts=Uniform(3), checkpoint_seconds=0, observe=observe, workers=2,
        evaluate=lambda m: {"size": m[0].weight.norm()},
    )  # fmt: skip


def metrics(history: History) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in history]


@pytest.mark.slow
@pytest.mark.parametrize("name", episode.ALGORITHMS)
def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    momentum = 0.0 if episode.ALGORITHMS[name].descent.adapts else 0.9
    algorithm = Algorithm.named(name, momentum=momentum, weight_decay=0.01)
    whole = train(None, algorithm)
    for stop in (0, 3):
        with pytest.raises(PowerCut):
            train(tmp_path, algorithm, stop_after=stop)
    resumed = train(tmp_path, algorithm)
    assert torch.equal(resumed.x, whole.x)
    assert metrics(resumed.history) == metrics(whole.history)
    assert metrics(History(read_rounds(tmp_path / "rounds.jsonl"))) == metrics(whole.history)
    stored = load_file(tmp_path / "model.safetensors")
    for key, value in whole.model.state_dict().items():
        assert torch.equal(stored[key], value)


def test_a_finished_run_is_read_back_not_run_again(tmp_path: Path) -> None:
    algorithm = Algorithm.named("scaffold")
    first = train(tmp_path, algorithm)
    again = train(tmp_path, algorithm, stop_after=0)  # would be cut if it ran
    assert again.summary == first.summary
    assert torch.equal(again.x, first.x)
    assert metrics(again.history) == metrics(first.history)


def test_a_folder_tells_everything_with_plain_json(tmp_path: Path) -> None:
    train(tmp_path, Algorithm.named("episode"))
    assert {p.name for p in tmp_path.iterdir()} >= {
        "config.json", "env.json", "rounds.jsonl", "checkpoint", "summary.json",
    }  # fmt: skip
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(6))
    stored = read_run(tmp_path)
    assert stored.status == "finished"
    assert stored.summary["rounds"] == 6
    assert json.loads((tmp_path / "env.json").read_text())["torch"] == torch.__version__
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_torn_last_line_is_dropped_on_resume(tmp_path: Path) -> None:
    algorithm = Algorithm.named("episode")
    with pytest.raises(PowerCut):
        train(tmp_path, algorithm, stop_after=3)
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "loss": 0.')
    assert metrics(train(tmp_path, algorithm).history) == metrics(train(None, algorithm).history)


def change(path: Path, line: int, key: str) -> None:
    """Change a number of a record, so that it is still a record."""
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[line])
    record[key] = [2 * v for v in record[key]] if isinstance(record[key], list) else 2 * record[key]
    lines[line] = json.dumps(record) + "\n"
    path.write_text("".join(lines))


@pytest.mark.parametrize("stop_after", [3, None])
@pytest.mark.parametrize("file", ["rounds.jsonl", "clients.jsonl"])
def test_records_that_were_changed_are_not_gone_on_with(
    file: str, stop_after: int | None, tmp_path: Path
) -> None:
    algorithm = Algorithm.named("episode")
    with contextlib.suppress(PowerCut):
        train(tmp_path, algorithm, stop_after)
    change(tmp_path / file, 1, "loss")
    with pytest.raises(EpisodeError, match=rf"{file} .*was changed after the checkpoint"):
        train(tmp_path, algorithm)


def test_records_of_clients_may_be_deleted(tmp_path: Path) -> None:
    algorithm = Algorithm.named("episode")
    with pytest.raises(PowerCut):
        train(tmp_path, algorithm, stop_after=3)
    (tmp_path / "clients.jsonl").unlink()
    for _ in range(2):  # the run goes on, and is read back
        assert torch.equal(train(tmp_path, algorithm).x, train(None, algorithm).x)


@pytest.mark.parametrize(
    ("key", "reason"),
    [("gradients", "gradients is 1, but the last round has"), ("metrics", "metrics is "),
     ("loss", "loss is 1, but the last"), ("per_client", "per_client is not what clients.jsonl")],
)  # fmt: skip
def test_a_summary_of_other_numbers_is_not_read_back(key: str, reason: str, tmp_path: Path) -> None:
    algorithm = Algorithm.named("episode")
    train(tmp_path, algorithm)
    summary = read_json(tmp_path / "summary.json")
    summary[key] = {"size": 1.0} if isinstance(summary[key], dict) else 1
    (tmp_path / "summary.json").write_text(dumps(summary))
    with pytest.raises(EpisodeError, match=rf"summary\.json is damaged \({reason}"):
        train(tmp_path, algorithm)


def test_a_folder_of_another_config_is_refused_and_left_alone(tmp_path: Path) -> None:
    train(tmp_path, Algorithm.named("episode"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(EpisodeError, match=r"another configuration.*algorithm\.clipping"):
        train(tmp_path, Algorithm.named("episode_guarded"))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_of_other_data_is_refused(tmp_path: Path) -> None:
    def fit(shift: float) -> Run:
        data = [(torch.arange(8.0)[:, None] + shift, torch.zeros(8))]
        torch.manual_seed(0)
        return episode.fit(
            nn.Linear(1, 1), data, loss=lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1]), eta=0.01,
            gamma=0.1, local_steps=1, rounds=1, batch_size=8, folder=tmp_path,
        )  # fmt: skip

    fit(0.0)
    with pytest.raises(EpisodeError, match=r"they differ in task\.data"):
        fit(5.0)


@pytest.mark.parametrize("part", ["trained", "frozen", "buffer"])
def test_a_folder_of_other_initial_weights_is_refused(part: str, tmp_path: Path) -> None:
    def fit(shift: float) -> Run:
        torch.manual_seed(0)
        backbone = nn.Linear(2, 2).requires_grad_(False)
        model = nn.Sequential(backbone, nn.Linear(2, 2), nn.BatchNorm1d(2))
        parts = {"trained": model[1].bias, "frozen": backbone.bias, "buffer": model[2].running_var}
        parts[part].data.add_(shift)
        data = [(torch.arange(16.0).reshape(8, 2), torch.zeros(8, 2))]
        return episode.fit(
            model, data, loss=lambda m, b: F.mse_loss(m(b[0]), b[1]), eta=0.01, gamma=0.1,
            local_steps=1, rounds=1, batch_size=8, folder=tmp_path,
        )  # fmt: skip

    first = fit(0.0)
    assert torch.equal(fit(0.0).x, first.x)
    with pytest.raises(EpisodeError, match=r"differ in task\.initial_state.*torch\.manual_seed"):
        fit(1.0)


def test_a_damaged_model_file_is_written_anew_from_the_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, Algorithm.named("episode"))
    file = tmp_path / "model.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:50])
    train(tmp_path, Algorithm.named("episode"))
    assert file.read_bytes() == good
    assert file.stat().st_mode & 0o777 == 0o644


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    algorithm = Algorithm.named("episode")
    from episode.runs.folder import RunFolder

    with pytest.raises(PowerCut):
        train(tmp_path, algorithm, stop_after=1)
    config = read_json(tmp_path / "config.json")
    with RunFolder(tmp_path, config, config["id"]):
        with pytest.raises(EpisodeError, match="Another process is writing"):
            train(tmp_path, algorithm)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_refused_in_a_sentence(tmp_path: Path, damage: str) -> None:
    algorithm = Algorithm.named("episode_plus_plus")
    with pytest.raises(PowerCut):
        train(tmp_path, algorithm, stop_after=3)
    file = tmp_path / "checkpoint" / "state.safetensors"
    good = file.read_bytes()
    flipped = bytes([good[-5] ^ 1])
    file.write_bytes({
        "truncate": good[: len(good) // 2],
        "flip": good[:-5] + flipped + good[-4:],
        "empty": b"",
        "text": b"not a checkpoint",
    }[damage])  # fmt: skip
    rounds = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(EpisodeError, match=r"state\.safetensors is damaged: remove"):
        train(tmp_path, algorithm)
    assert (tmp_path / "rounds.jsonl").read_bytes() == rounds
    file.write_bytes(good)
    assert train(tmp_path, algorithm).status == "finished"


def test_a_summary_without_its_checkpoint_is_refused_not_overwritten(tmp_path: Path) -> None:
    algorithm = Algorithm.named("fedavg")
    train(tmp_path, algorithm)
    (tmp_path / "checkpoint" / "state.safetensors").unlink()
    with pytest.raises(EpisodeError, match="a summary but no checkpoint"):
        train(tmp_path, algorithm)
    assert len(read_rounds(tmp_path / "rounds.jsonl")) == 6


def test_a_checkpoint_of_another_run_or_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    checkpoint.save(file, ServerState(torch.ones(2)), {3: ClientState(memory=torch.ones(2))}, "a")
    server, clients = checkpoint.load(file, "a", "cpu")
    assert server.x.tolist() == [1, 1]
    assert list(clients) == [3]
    with pytest.raises(EpisodeError, match="another configuration"):
        checkpoint.load(file, "b", "cpu")


def test_a_failed_run_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    algorithm = Algorithm.named("episode")
    fail = [True]
    good = episode.tasks.neural.NeuralTask.evaluate

    def evaluate(self: Any, x: torch.Tensor, buffers: Any) -> dict[str, float]:
        if fail[0] and self.num_clients == 5:
            raise RuntimeError("out of coffee")
        return good(self, x, buffers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episode.tasks.neural.NeuralTask, "evaluate", evaluate)
        with pytest.raises(RuntimeError, match="coffee"):
            train(tmp_path, algorithm)
        assert read_run(tmp_path).status == "failed"
        assert "coffee" in read_run(tmp_path).summary["reason"]
        fail[0] = False
        assert train(tmp_path, algorithm).status == "finished"
    assert read_run(tmp_path).status == "finished"


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    algorithm = Algorithm.named("scaffold")
    calls = [0]
    save = checkpoint.save_file

    def full(tensors: Any, file: Path, metadata: Any) -> None:
        calls[0] += 1
        if calls[0] > 3:
            file.write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(tensors, file, metadata)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(OSError, match=r"state\.safetensors cannot be written .*No space left"):
            train(tmp_path, algorithm)
    assert read_run(tmp_path).status == "failed"
    assert not list(tmp_path.rglob("*.tmp"))
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / "checkpoint" / "state.safetensors"
    assert checkpoint.load(path, config["id"], "cpu")[0].round == 3
    assert torch.equal(train(tmp_path, algorithm).x, train(None, algorithm).x)


def test_a_diverged_run_keeps_its_folder_and_its_status(tmp_path: Path) -> None:
    def explode(folder: Path) -> Run:
        torch.manual_seed(0)
        data = [(torch.randn(8, 2), torch.randn(8))]
        return episode.fit(
            nn.Linear(2, 1), data, loss=lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1]),
            algorithm="fedavg", eta=1e9, gamma=1.0, local_steps=4, rounds=20, batch_size=8,
            folder=folder,
        )  # fmt: skip

    first = explode(tmp_path)
    assert first.status == "diverged"
    assert torch.isfinite(first.x).all()
    stored = read_run(tmp_path)
    assert stored.status == "diverged"
    assert stored.summary["rounds"] == len(stored.rounds) < 20
    again = explode(tmp_path)
    assert again.summary == first.summary
    assert torch.equal(again.x, first.x)
    (tmp_path / "summary.json").unlink()  # as if killed just before it was written
    replayed = explode(tmp_path)
    assert replayed.summary["reason"] == first.summary["reason"]
    assert torch.equal(replayed.x, first.x)
    assert '"NaN"' in (tmp_path / "rounds.jsonl").read_text().splitlines()[-1] or (
        '"Infinity"' in (tmp_path / "rounds.jsonl").read_text().splitlines()[-1]
    )


def test_numbers_that_are_not_finite_survive_strict_json(tmp_path: Path) -> None:
    values = {"a": [float("inf"), -float("inf"), 1.5], "b": None}
    (tmp_path / "x.json").write_text(dumps(values))
    assert read_json(tmp_path / "x.json") == values
    assert "Infinity" in dumps(values)
