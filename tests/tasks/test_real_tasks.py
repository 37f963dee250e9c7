"""The four real tasks and everybody's own silos train, resume and evaluate from official files."""

from __future__ import annotations

import csv
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from episode import EpisodeError, fit
from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import job_of, train
from episode.tasks import precision
from episode.tasks.partitioned import PartitionedSettings
from episode.tasks.precision import Precision
from episode.tasks.settings import Share
from episode.tasks.silos import Silos
from episode.testing import check_task
from official import write_cifar10, write_imagenet, write_sentiment140, write_snli, write_vectors

NAMES = ("snli", "sentiment140", "cifar10", "imagenet")
SMALL: dict[str, dict[str, Any]] = {
    "snli": {"hidden": 6, "classifier": 6},
    "sentiment140": {"hidden": 6},
    "cifar10": {"width": 4},
    "imagenet": {"width": 4, "image_size": 16},
}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    def make(name: str) -> dict[str, Any]:
        write = {
            "snli": write_snli,
            "sentiment140": write_sentiment140,
            "cifar10": write_cifar10,
            "imagenet": write_imagenet,
        }[name]
        values = {"name": name, "data": str(write(tmp_path / name)), **SMALL[name]}
        if name in ("snli", "sentiment140"):
            values["vectors"] = str(write_vectors(tmp_path / "vectors.txt.gz"))
        return values | {"num_clients": 3, "batch_size": 4}

    return make


def experiment(task: dict[str, Any], rounds: int = 3, **sections: Any) -> Experiment:
    budget = {"rounds": rounds, "local_steps": 2}
    return Experiment.from_dict({"task": task, "budget": budget, **sections})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_task_trains_resumes_and_evaluates(
    name: str, settings: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    chosen = experiment(settings(name))
    whole = train(job_of(chosen), tmp_path / "whole")
    assert whole.status == "finished"
    metrics = whole.summary["metrics"]
    assert set(metrics) == {"test_loss", "test_accuracy", "train_loss", "train_accuracy"}
    played = []

    def stop() -> bool:
        played.append(1)
        return len(played) == 2

    with pytest.raises(KeyboardInterrupt):
        train(job_of(chosen), tmp_path / "cut", stop=stop)
    resumed = train(job_of(chosen), tmp_path / "cut")
    assert len(resumed.history) == 3
    assert torch.equal(resumed.x, whole.x)
    assert resumed.summary["metrics"] == metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", *NAMES])
def test_clients_can_hold_out_examples_and_are_evaluated_on_them(
    name: str, settings: Callable[[str], dict[str, Any]]
) -> None:
    given = {"name": "digits", "hidden": 4} if name == "digits" else settings(name)
    plain = experiment(given).task
    chosen = experiment({**given, "holdout": 0.25}).task
    whole, task = plain.build(1, "cpu"), chosen.build(1, "cpu")
    assert (whole.evaluates_clients, task.evaluates_clients) == (False, True)
    point = task.initial()
    for client in range(task.num_clients):
        found = task.evaluate_client(client, *point)
        assert set(found) == {"holdout_loss", "holdout_accuracy"}
        assert 0 <= found["holdout_accuracy"] <= 1
        held_out = max(1, round(0.25 * whole.examples(client)))
        assert task.examples(client) == whole.examples(client) - held_out
        part = chosen.build_share(Share((client,)), 1, "cpu")
        assert part.evaluate_client(client, *point) == found, "wherever the data are"
    assert chosen.sizes(1) == [task.examples(c) for c in range(task.num_clients)]
    server = chosen.build_share(Share(()), 1, "cpu")
    assert server.evaluates_clients, "a server without data asks for it"


@pytest.mark.parametrize("name", NAMES)
def test_the_test_split_is_not_touched_in_tuning(
    name: str, settings: Callable[[str], dict[str, Any]]
) -> None:
    task = experiment(settings(name) | {"evaluate_on": "validation"}).task.build(0, "cpu")
    metrics = task.evaluate(*task.initial())
    assert set(metrics) == {
        "validation_loss", "validation_accuracy", "train_loss", "train_accuracy",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_task_keeps_the_contract(name: str, settings: Callable[[str], dict[str, Any]]) -> None:
    # The check takes finite differences: on the smallest networks kinks are too close for them.
    larger = {"width": 8, "image_size": 32, "batch_size": 8} if name == "imagenet" else {}
    check_task(experiment(settings(name) | larger).task.build(0, "cpu"))


@pytest.mark.parametrize("name", ["digits", *NAMES])
def test_a_task_counts_the_labels_of_its_partition(
    name: str, settings: Callable[[str], dict[str, Any]]
) -> None:
    chosen = experiment({"name": "digits"} if name == "digits" else settings(name)).task
    found, task = chosen.partition(1), chosen.build(1, "cpu")
    assert found is not None
    assert task.label_counts == chosen.label_counts(found, 1)
    assert task.label_counts is not None
    assert task.label_counts.title.endswith("%, seed 1")
    sizes = [task.examples(c) for c in range(task.num_clients)]
    assert [sum(row) for row in task.label_counts.counts] == sizes == [*map(len, found.parts)]


def test_settings_say_which_splits_and_partitions_they_have() -> None:
    digits, synthetic = (experiment({"name": name}).task for name in ("digits", "synthetic"))
    assert (digits.splits, synthetic.splits) == (("test", "validation"), ())
    assert (synthetic.partition(0), synthetic.chosen_scale()) == (None, None)


def test_the_partition_rule_is_called_partition_in_configs() -> None:
    chosen = experiment({"name": "cifar10", "partition": "dirichlet", "alpha": 0.2})
    assert chosen.to_dict()["task"]["partition"] == "dirichlet"
    assert Experiment.from_dict(chosen.to_dict()) == chosen
    assert chosen.task.partition_summary() == "Dirichlet, α = 0.2"
    assert chosen.task.has_setting("partition")
    assert not chosen.task.has_setting("partition_rule")
    with pytest.raises(EpisodeError, match=r"did you mean 'task\.partition'"):
        experiment({"name": "cifar10", "partitions": "dirichlet"})


def test_silos_keep_the_contract(tmp_path: Path) -> None:
    check_task(silos(write_silos(tmp_path / "silos")).task.build(0, "cpu"))


def test_a_partition_of_silos_has_their_names_and_not_what_they_hold_out(tmp_path: Path) -> None:
    chosen = silos(write_silos(tmp_path / "silos")).task
    assert isinstance(chosen, Silos)
    found, task = chosen.partition(0), chosen.build(0, "cpu")
    assert found.clients == sorted(p.name for p in (tmp_path / "silos").iterdir())
    sizes = [task.examples(c) for c in range(task.num_clients)]
    assert [len(part) for part in found.parts] == sizes
    assert task.label_counts is not None
    assert [sum(row) for row in task.label_counts.counts] == sizes
    assert task.label_counts.clients == found.clients
    assert task.label_counts.title == "one client per silo, seed 0"


def test_snli_learns(settings: Callable[[str], dict[str, Any]]) -> None:
    chosen = experiment(
        settings("snli") | {"hidden": 16, "classifier": 16, "similarity": 50, "batch_size": 16},
        rounds=100,
        schedule={"eta": 1.0, "gamma": 0.3},
        record={"evaluate_every": 0},
        algorithm="naive_parallel_clip",
    )
    metrics = train(job_of(chosen)).summary["metrics"]
    assert metrics["train_accuracy"] > 0.7  # by chance 0.33
    assert metrics["test_accuracy"] > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_papers_at_its_scale(name: str) -> None:
    paper = read_experiment(None, [f"task={name}", "task.scale=paper"])
    expected = {
        "snli": (0.3, 0.03, 26825, 4, 64),
        "sentiment140": (0.3, 0.03, 4000, 4, 128),
        "cifar10": (1.0, 0.5, 14550, 8, 64),
        "imagenet": (0.1, 1.0, 450_360, 64, 32),
    }[name]
    eta, gamma, iterations, local_steps, batch = expected
    assert (paper.schedule.eta, paper.schedule.gamma) == (eta, gamma)
    assert paper.budget.local_steps == local_steps
    assert 0 <= paper.budget.rounds * local_steps - iterations < local_steps
    assert isinstance(paper.task, PartitionedSettings)
    assert (paper.task.batch_size, paper.task.num_clients) == (batch, 8)
    again = Experiment.from_dict(json.loads(json.dumps(paper.to_dict())))
    assert again == paper


def test_more_local_steps_make_fewer_rounds_of_one_budget() -> None:
    four, eight = (
        read_experiment(None, ["task=snli", f"budget.local_steps={i}"]).budget for i in (4, 8)
    )
    assert four.rounds * 4 == eight.rounds * 8
    fixed = read_experiment(None, ["task=snli", "budget.local_steps=8", "budget.rounds=7"])
    assert fixed.budget.rounds == 7


MIXED = """
import torch
from episode.federation.protocols import Draw
from episode.tasks.neural import NeuralTask
torch.manual_seed(0)
model = torch.nn.RNN(16, 64)
head = torch.randn(64)
data = [(torch.randn(32, 9, 16), torch.randn(32))]
loss = lambda m, b: ((m(b[0].transpose(0, 1))[0][-1].float() @ head - b[1]) ** 2).mean()
gradients = []
for precision in ("float32", "bfloat16"):
    task = NeuralTask(model, data, loss, batch_size=32, precision=precision)
    replica = task.objective()
    value, blocks = replica.gradient(Draw(0, "local", 0))
    assert value.dtype == replica.x.dtype == torch.float32
    assert all(block.dtype == torch.float32 for block in blocks)
    gradients.append(torch.cat([b.reshape(-1) for b in blocks]))
cosine = torch.nn.functional.cosine_similarity(*gradients, dim=0)
assert 0.98 < cosine < 1, cosine
assert not torch.equal(*gradients)
"""


@pytest.mark.slow
def test_mixed_precision_keeps_float32_vectors() -> None:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    command = [sys.executable, "-c", MIXED]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def fit_a_number(wanted: Precision, folder: Path | None = None) -> set[tuple[bool, torch.dtype]]:
    """Whether and to what the losses of a run were cast; without any product in bfloat16."""
    seen = set()

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        seen.add((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return (next(model.parameters()) - batch[0]).square().mean()

    run = fit(
        torch.nn.Linear(1, 1, bias=False), [(torch.ones(4, 1),)], loss=loss, eta=0.1, gamma=1.0,
        local_steps=2, rounds=2, batch_size=2, precision=wanted, folder=folder,
    )  # fmt: skip
    assert next(run.model.parameters()).dtype == torch.float32
    return seen


def test_fit_computes_losses_in_the_precision_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precision, "_works_here", lambda: True)
    assert fit_a_number("bfloat16", tmp_path) == {(True, torch.bfloat16)}
    assert {enabled for enabled, _ in fit_a_number("float32")} == {False}
    with pytest.raises(EpisodeError, match="precision"):
        fit_a_number("float32", tmp_path)


def test_fit_refuses_a_precision_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_works_here", lambda: False)
    with pytest.raises(EpisodeError, match="bfloat16 does not work on this processor"):
        fit_a_number("bfloat16")
    with pytest.raises(EpisodeError, match="no precision 'float16'"):
        fit_a_number("float16")  # type: ignore[arg-type]


def test_a_processor_without_bfloat16_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "TRIAL", "import os; os.abort()")
    precision._works_here.cache_clear()
    with pytest.raises(EpisodeError, match="bfloat16 does not work on this processor"):
        precision.check_precision("bfloat16", "cpu")
    precision._works_here.cache_clear()


def test_data_that_are_not_there_say_how_to_get_them() -> None:
    with pytest.raises(EpisodeError, match="episode data fetch snli"):
        job_of(read_experiment(None, ["task=snli"]))


def write_silos(folder: Path, count: int = 3) -> Path:
    for silo in range(count):
        place = folder / f"silo{silo}"
        place.mkdir(parents=True)
        rows = [("good day" if k % 2 else "bad day", "yes" if k % 2 else "no") for k in range(30)]
        if silo == 1:
            lines = [json.dumps({"text": t, "label": y}) for t, y in rows]
            (place / "a.jsonl").write_text("\n".join(lines) + "\n")
        elif silo == 2:
            import pyarrow as pa
            import pyarrow.parquet as pq

            columns = {"text": [t for t, _ in rows], "label": [y for _, y in rows]}
            pq.write_table(pa.table(columns), place / "a.parquet")
        else:
            with (place / "a.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *rows])
    return folder


def silos(folder: Path, **settings: Any) -> Experiment:
    task = {"name": "silos", "data": str(folder), "hidden": 8, "batch_size": 8, **settings}
    return experiment(task, rounds=20, record={"evaluate_every": 0})


def test_folders_of_csv_jsonl_and_parquet_are_a_federation(tmp_path: Path) -> None:
    run = train(job_of(silos(write_silos(tmp_path / "silos"))))
    assert run.summary["metrics"]["test_accuracy"] == 1.0


@pytest.mark.slow
def test_the_example_of_three_clinics_learns() -> None:
    folder = Path(__file__).parents[2] / "examples" / "silos"
    chosen = read_experiment(None, ["task=silos", f"task.data={folder}", "budget.rounds=20"])
    assert train(job_of(chosen)).summary["metrics"]["test_accuracy"] >= 0.95


def test_folders_of_images_are_a_federation(tmp_path: Path) -> None:
    for silo in ("north", "south"):
        write_imagenet(tmp_path / "silos" / silo)
        (tmp_path / "silos" / silo / "val").rename(tmp_path / "silos" / silo / "test")
    chosen = silos(tmp_path / "silos", model="resnet18", width=4, image_size=16)
    task = chosen.task.build(0, "cpu")
    assert [task.examples(c) for c in range(2)] == [36, 36]
    assert set(task.evaluate(*task.initial())) >= {"test_accuracy", "train_accuracy"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", "text,mood\nhi,yes\n", "has the columns text, mood, but no label: all silos"),
        ("a.csv", "text,label\nhi,yes\nho,\n", "Row 2 of .*a.csv has no label"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.jsonl", '{"text": "hi", "label": 1}\n{"te', "Row 2 of .*a.jsonl cannot be read"),
        ("a.parquet", "nonsense", "a.parquet is no parquet file"),
        ("a.parquet", "PAR1nonsense....PAR1", "a.parquet is no parquet file"),
        ("a.csv", "text,label\nhi, ho,yes\n", "Row 1 of .*a.csv has more fields than columns"),
        ("a.jsonl", '{"text": "hi", "label": ["yes"]}\n', "Row 1 of .* for its label: it must be"),
        ("a.jsonl", '{"text": "hi", "label": NaN}\n', "Row 1 of .*a.jsonl has no label"),
        ("test.csv", "text,label\nhi,perhaps\n", "Row 1 of .*test.csv has the label 'perhaps'"),
        ("a.txt", "hi", "has no data that can be read .a.txt cannot.: put .csv"),
    ],
)
def test_bad_silos_name_file_and_row(tmp_path: Path, file: str, content: str, message: str) -> None:
    folder = write_silos(tmp_path / "silos")
    (folder / "zzz").mkdir()
    (folder / "zzz" / file).write_text(content)
    with pytest.raises(EpisodeError, match=message):
        job_of(silos(folder))


def test_labels_have_one_name_in_every_kind_of_table(tmp_path: Path) -> None:
    for silo, (file, start, row) in enumerate(
        [
            ("a.csv", "text,label\n", "good day,{}\n"),
            ("a.jsonl", "", '{{"text": "bad day", "label": {}.0}}\n'),
        ]
    ):
        place = tmp_path / "silos" / f"silo{silo}"
        place.mkdir(parents=True)
        rows = (row.format(k % 2) for k in range(30))
        (place / file).write_text(start + "".join(rows) + "\n" * silo)  # a blank line at the end
    assert silos(tmp_path / "silos").task.partition(0).names == ["0", "1"]


def test_silos_are_prepared_anew_for_other_vectors_of_one_archive(tmp_path: Path) -> None:
    folder = write_silos(tmp_path / "silos")
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as zipped:
        zipped.writestr("a.txt", "good 1 2\nday 2 3\nbad 3 5\n")
        zipped.writestr("b.txt", "good 1 2 3\nday 2 3 4\nbad 3 5 6\n")
    for name, size in (("a.txt", 2), ("b.txt", 3)):
        task = silos(folder, vectors=str(tmp_path / "v.zip" / name)).task.build(0, "cpu")
        assert task.model.encoder.words.embedding_dim == size


def test_a_label_that_only_held_out_rows_have_is_named(
    tmp_path: Path, settings: Callable[[str], dict[str, Any]]
) -> None:
    chosen = settings("imagenet")
    for file in (Path(chosen["data"]) / "train" / "n02").iterdir():
        file.unlink()
    with pytest.raises(EpisodeError, match=r"val/n02/\S+ has the label 'n02', which no training"):
        job_of(experiment(chosen))


def test_a_row_whose_label_no_training_row_has_is_named(
    settings: Callable[[str], dict[str, Any]],
) -> None:
    snli, tweets, images = (settings(name) for name in ("snli", "sentiment140", "cifar10"))
    train = Path(snli["data"]) / "snli_1.0_train.jsonl"
    train.write_text(train.read_text().replace('"neutral"', '"entailment"'))
    train = Path(tweets["data"]) / "training.1600000.processed.noemoticon.csv"
    train.write_bytes(train.read_bytes().replace(b'"4",', b'"0",'))
    for k in range(1, 6):
        batch = Path(images["data"]) / f"data_batch_{k}"
        content = pickle.loads(batch.read_bytes(), encoding="bytes")
        content[b"labels"] = [min(y, 8) for y in content[b"labels"]]
        batch.write_bytes(pickle.dumps(content, protocol=2))
    for chosen, message in (
        (snli, "Line 2 of .*dev.jsonl has the label 'neutral'"),
        (tweets, "Row 1 of .*testdata.manual.*csv has the label 'positive'"),
        (images, "Image 9 of .*test_batch has the label 'truck'"),
    ):
        with pytest.raises(EpisodeError, match=message):
            job_of(experiment(chosen))


def test_a_label_that_only_held_out_rows_of_a_silo_have_is_named(tmp_path: Path) -> None:
    folder = write_silos(tmp_path / "silos")
    with (folder / "silo0" / "a.csv").open("a") as file:
        file.writelines(f"odd day,rare{k}\n" for k in range(6))
    with pytest.raises(EpisodeError, match=r"held out for test has the label 'rare\d', which no"):
        job_of(silos(folder, test_share=0.5))


def test_a_prepared_array_that_is_cut_off_is_named(
    settings: Callable[[str], dict[str, Any]],
) -> None:
    chosen = experiment(settings("cifar10"))
    ready = chosen.task.prepare()
    (ready.folder / "train-labels.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(EpisodeError, match="is damaged: remove it"):
        job_of(chosen)


def test_users_with_too_few_tweets_are_named(settings: Callable[[str], dict[str, Any]]) -> None:
    with pytest.raises(EpisodeError, match="No user has 50 tweets here: lower"):
        job_of(experiment({**settings("sentiment140"), "minimum_tweets": 50}))


def test_csv_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    folder = write_silos(tmp_path / "silos")
    (folder / "silo0" / "a.csv").write_bytes(b"text,label\ncaf\xe9,yes\n")
    with pytest.raises(EpisodeError, match="is not UTF-8"):
        job_of(silos(folder))


def test_a_task_of_ones_own_runs_from_its_file(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "my_task.py"
    named = f"task.name={example}:Waves"
    chosen = read_experiment(None, [named, "task.noise=0.2"])
    assert chosen.name.startswith("Waves-episode-")
    run = train(job_of(chosen), tmp_path / "run")
    assert run.summary["metrics"]["test_accuracy"] > 0.9
    assert read_experiment(tmp_path / "run", [named]) == chosen


def test_a_task_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_the_task.py").write_text("from my_parts import *")
    (tmp_path / "my_parts.py").write_text("ETA = 0.25")
    text = "import beside_the_task\ndef task(seed, device): ...\n"
    text += "task.defaults = {'schedule': {'eta': beside_the_task.ETA, 'gamma': 0.1}}"
    (tmp_path / "mine.py").write_text(text)
    settings = [f"task={tmp_path}/mine.py:task", "budget.rounds=1", "budget.local_steps=1"]
    assert read_experiment(None, settings).schedule.eta == 0.25


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 1/0", "MyTask", "cannot be imported: ZeroDivisionError in line 1"),
        ("def f(:", "MyTask", "cannot be imported: SyntaxError in line 1"),
        ("class Mine: pass", "MyTask", "There is no task '.*:MyTask'"),
        ("class MyTask: pass", "MyTask", "is a class, but no TaskSettings"),
        ("def f(): pass", "", "Say which task"),
    ],
)
def test_a_bad_task_file_is_a_sentence(tmp_path: Path, text: str, name: str, message: str) -> None:
    (tmp_path / "t.py").write_text(text)
    with pytest.raises(EpisodeError, match=message):
        read_experiment(None, [f'task="{tmp_path}/t.py:{name}"'])
    with pytest.raises(EpisodeError, match="There is no file"):
        read_experiment(None, ["task=none.py:MyTask"])


SETTINGS = "from episode.tasks.settings import TaskSettings\nclass MyTask(TaskSettings):\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def MyTask(seed, device): pass", "t.py:MyTask returned NoneType: it must return a task"),
        ("def MyTask(): pass", "t.py:MyTask failed: TypeError"),
        (SETTINGS + " summary = ''", r"t.py:MyTask has no build\(self, seed, device\)"),
        (
            SETTINGS + " def build(self, seed, device):\n  1 / 0",
            "t.py:MyTask failed: ZeroDivisionError in line 4",
        ),
    ],
)
def test_a_task_that_cannot_be_built_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.py").write_text(text)
    values = ["schedule.eta=1", "schedule.gamma=1", "budget.rounds=1", "budget.local_steps=1"]
    with pytest.raises(EpisodeError, match=message):
        job_of(read_experiment(None, [f'task="{tmp_path}/t.py:MyTask"', *values]))
