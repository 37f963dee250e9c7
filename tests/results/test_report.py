"""The report: its contents, and the folders that it refuses."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_run, some_runs, write_partition
from torch.nn import functional as F

from episode import fit
from episode.errors import EpisodeError
from episode.results.groups import group_runs
from episode.results.report import write_report
from episode.results.run_tables import short_table
from episode.results.store import LabelCounts, find_runs, read_partition, read_run
from episode.results.watch import Watcher


def packed(page: Path) -> dict[str, Any]:
    """The page's data, with every column as the list of its numbers, read by its own rules."""
    text = page.read_text()

    def unpack(name: str) -> bytes:
        found = re.search(rf'id="{name}">([^<]*)<', text)
        assert found
        return gzip.decompress(base64.b64decode(found[1]))

    data: dict[str, Any] = json.loads(unpack("data"))
    blob = unpack("columns")
    numbers = struct.unpack(f"<{len(blob) // 8}d", blob)
    for run in data["runs"]:
        for table in ("columns", "metrics"):
            for name, (start, count) in run[table].items():
                values = numbers[start : start + count]
                run[table][name] = [None if v != v else v for v in values]
    return data


def test_the_page_holds_every_metric_to_the_last_digit(tmp_path: Path) -> None:
    runs = find_runs([some_runs(tmp_path / "runs")])
    write_report(runs, tmp_path / "r.html")
    data = packed(tmp_path / "r.html")
    assert [r["name"] for r in data["runs"]] == [r.folder.name for r in runs]
    for shown, run in zip(data["runs"], runs, strict=True):
        for key in ("seconds", "drift", "global_norm", "threshold", "exchanges"):
            assert shown["columns"][key] == [r[key] for r in run.rounds]
        assert shown["metrics"]["test_accuracy"] == [
            r["metrics"]["test_accuracy"] for r in run.rounds if "metrics" in r
        ]


def test_the_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    write_report(find_runs([some_runs(tmp_path / "runs")]), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    ours = text[: text.index("plotly.js v")] if "plotly.js v" in text else text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", ours)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a<script>alert(1)<", "episode")
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html", title="<b>&")
    text = (tmp_path / "r.html").read_text()
    assert "a<script>" not in text
    assert "<title>&lt;b&gt;&amp;</title>" in text


def test_groups_take_the_mean_over_finished_seeds_only(tmp_path: Path) -> None:
    accuracies = []
    for seed in (0, 1):
        folder = make_run(tmp_path / f"{seed}", seed=seed)
        accuracies.append(read_run(folder).summary["metrics"]["test_accuracy"])
    make_run(tmp_path / "2", seed=2, status="diverged")
    (group,) = group_runs(find_runs([tmp_path]))
    spread = group.metric("test_accuracy")
    assert spread is not None
    assert spread.mean == pytest.approx(sum(accuracies) / 2, rel=1e-15)
    assert spread.deviation == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert group.status() == "1 diverged"


def test_bad_folders_are_one_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="There is no folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(EpisodeError, match="is not a run folder and contains none"):
        find_runs([tmp_path / "empty"])
    make_run(tmp_path / "both" / "a", task="digits")
    make_run(tmp_path / "both" / "b", task="snli")
    with pytest.raises(EpisodeError, match=r"different tasks \(digits, snli\)"):
        group_runs(find_runs([tmp_path / "both"]))
    half = make_run(tmp_path / "half", status="running")
    (half / "config.json").write_text('{"seed": 0, "ta')
    with pytest.raises(EpisodeError, match=r"config\.json cannot be read"):
        find_runs([half])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b'{"model_type": "bert"}', "not a run folder: its config.json has no"),
        ("config.json", b"[1, 2]", "not a run folder"),
        ("config.json", b'{"task": "text-classification"}', "not a run folder"),
        ("config.json", b'{"task": {}, "algorithm": "ppo"}', "not a run folder"),
        ("summary.json", b"[]", r"summary\.json is damaged \(it is not a JSON object\)"),
        ("rounds.jsonl", b"\xff\xfe\n{}\n", "damaged in line 1"),
        ("rounds.jsonl", b'{"round": 0}\n\n', "damaged in line 1"),
    ],
)
def test_damaged_folders_and_those_of_other_programs_are_named(
    tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    folder = make_run(tmp_path / "a")
    (folder / file).write_bytes(content)
    with pytest.raises(EpisodeError, match=message):
        find_runs([tmp_path])
    with pytest.raises(EpisodeError, match=message):
        Watcher([tmp_path]).update()


def test_a_run_without_rounds_yet_is_shown_as_not_finished(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    empty = make_run(tmp_path / "b", seed=1, status="running")
    (empty / "rounds.jsonl").unlink()
    runs = find_runs([tmp_path])
    write_report(runs, tmp_path / "r.html")
    assert "b: not finished" in (tmp_path / "r.html").read_text()


def test_partitions_are_read_from_the_folders_and_equal_ones_are_shown_once(tmp_path: Path) -> None:
    for seed in range(20):
        partition = write_partition(make_run(tmp_path / "runs" / f"{seed:02}", seed=seed))
    write_partition(make_run(tmp_path / "runs" / "20", "celgc", seed=19))
    make_run(tmp_path / "runs" / "21", "celgc", seed=18)  # without a partition
    assert read_partition(tmp_path / "runs" / "20") == LabelCounts(**partition)
    assert read_partition(tmp_path / "runs" / "21") is None
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html")
    titles = [p["title"] for p in packed(tmp_path / "r.html")["partitions"]]
    assert titles == [f"s = 0%, seed {seed}" for seed in range(12)]
    write_report(
        find_runs([tmp_path / "runs" / "20", tmp_path / "runs" / "19"]), tmp_path / "r.html"
    )
    assert packed(tmp_path / "r.html")["partitions"] == [partition]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"title": "t", "labels": ["a"], "clients": ["0"], "counts": [[1, 2]]}',
        '{"title": "t", "labels": ["a"], "clients": ["0", "1"], "counts": [[1]]}',
        '{"title": "t", "labels": ["a"], "clients": ["0"], "counts": [["x"]]}',
        '{"title": "t", "labels": ["a"], "clients": ["0"], "counts": 3}',
        '{"title": "t", "labels',
    ],
)
def test_a_damaged_partition_is_one_sentence(tmp_path: Path, content: str) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "partition.json").write_text(content)
    with pytest.raises(EpisodeError, match=r"partition\.json (is damaged|cannot be read)"):
        write_report(find_runs([tmp_path]), tmp_path / "r.html")


def test_each_run_has_the_command_that_repeats_it(tmp_path: Path) -> None:
    make_run(tmp_path / "my runs" / "a")
    path = make_run(tmp_path / "my runs" / "b") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"made_by": "fit"}))
    write_report(find_runs([tmp_path]), tmp_path / "r.html")
    text = html.unescape((tmp_path / "r.html").read_text())
    folder = tmp_path / "my runs" / "a"
    assert f"episode run '{folder}' --folder '{folder}-again'" in text
    assert "call episode.fit again" in text


def test_runs_that_evaluate_nothing_are_compared_by_their_loss(tmp_path: Path) -> None:
    silos = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(2)]
    for algorithm in ("celgc", "episode"):
        fit(
            torch.nn.Linear(3, 1), silos, lambda m, b: F.mse_loss(m(b[0]), b[1]),
            algorithm=algorithm, eta=0.1, gamma=0.1, local_steps=2, rounds=3, batch_size=8,
            folder=tmp_path / algorithm,
        )  # fmt: skip
    runs = find_runs([tmp_path])
    table = short_table(group_runs(runs))
    losses = [row[table.columns.index("loss")] for row in table.rows]
    assert losses == [f"{run.summary['loss']:.3f}" for run in runs]
