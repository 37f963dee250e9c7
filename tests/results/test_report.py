"""The report: what it holds, what it refuses, and how it behaves in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_run, some_runs
from torch.nn import functional as F

from episode import fit
from episode.errors import EpisodeError
from episode.results.groups import grouped
from episode.results.plotly_script import drawing_only, plotly_script
from episode.results.report import write_report
from episode.results.store import find_runs, read_run
from episode.results.text_tables import brief_sheet
from episode.results.watch import Watch
from episode.runs.config import Experiment, read_experiment
from episode.runs.report_extras import command_of


def packed(page: Path) -> dict[str, Any]:
    """The page's data, with every column as the list of its numbers, read by its own rules."""
    text = page.read_text()

    def unpack(name: str) -> bytes:
        found = re.search(rf'id="{name}">([^<]*)<', text)
        assert found
        return gzip.decompress(base64.b64decode(found[1]))

    data: dict[str, Any] = json.loads(unpack("data"))
    blob = unpack("numbers")
    numbers = struct.unpack(f"<{len(blob) // 8}d", blob)
    for run in data["runs"]:
        for table in ("columns", "metrics"):
            for name, (start, count) in run[table].items():
                values = numbers[start : start + count]
                run[table][name] = [None if v != v else v for v in values]
    return data


def test_the_page_holds_every_figure_to_the_last_digit(tmp_path: Path) -> None:
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


def test_plotly_starts_only_what_is_drawn() -> None:
    from plotly.offline import get_plotlyjs

    whole = get_plotlyjs()
    script = plotly_script()
    (kinds,) = re.findall(r"\.register\(\[([^\]]*)\]\)", script)
    assert len(kinds.split(",")) == 1
    assert len(whole) - len(script) < 1000
    for unknown in ("", "x.register([a(),b()])", whole + "y.register([a(),b()])"):
        assert drawing_only(unknown, ("heatmap",)) == unknown


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
    (group,) = grouped(find_runs([tmp_path]))
    spread = group.metric("test_accuracy")
    assert spread is not None
    assert spread.mean == pytest.approx(sum(accuracies) / 2, rel=1e-15)
    assert spread.deviation == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert group.status() == "1 diverged"


def test_bad_folders_are_one_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="There is no folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(EpisodeError, match="is not a run's folder and holds none"):
        find_runs([tmp_path / "empty"])
    make_run(tmp_path / "both" / "a", task="digits")
    make_run(tmp_path / "both" / "b", task="snli")
    with pytest.raises(EpisodeError, match=r"different tasks \(digits, snli\)"):
        grouped(find_runs([tmp_path / "both"]))
    half = make_run(tmp_path / "half", status="running")
    (half / "config.json").write_text('{"seed": 0, "ta')
    with pytest.raises(EpisodeError, match=r"config\.json cannot be read"):
        find_runs([half])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b'{"model_type": "bert"}', "not a run's folder: its config.json has no"),
        ("config.json", b"[1, 2]", "not a run's folder"),
        ("config.json", b'{"task": "text-classification"}', "not a run's folder"),
        ("config.json", b'{"task": {}, "algorithm": "ppo"}', "not a run's folder"),
        ("summary.json", b"[]", "is no summary of ours"),
        ("rounds.jsonl", b"\xff\xfe\n{}\n", "damaged in line 1"),
        ("rounds.jsonl", b'{"round": 0}\n\n', "damaged in line 1"),
    ],
)
def test_folders_of_other_programs_and_damaged_ones_are_told(
    tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    folder = make_run(tmp_path / "a")
    (folder / file).write_bytes(content)
    with pytest.raises(EpisodeError, match=message):
        find_runs([tmp_path])
    if file != "summary.json":
        with pytest.raises(EpisodeError, match=message):
            Watch([tmp_path]).look()


def test_a_run_without_rounds_yet_is_shown_as_not_finished(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    empty = make_run(tmp_path / "b", seed=1, status="running")
    (empty / "rounds.jsonl").unlink()
    runs = find_runs([tmp_path])
    write_report(runs, tmp_path / "r.html")
    assert "b: not finished" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=celgc", "schedule.eta=0.3", "seed=4"],
        ["algorithm.correction=resampled", "algorithm.clipping=per_step", "task.similarity=30"],
        ["task=snli", "task.scale=paper", "schedule.kind=constant", "schedule.milestones=[]"],
        ["task=silos", "task.data=here", "task.hidden=8"],  # a setting without a default
    ],
)
def test_the_command_to_repeat_a_run_gives_the_same_run(overrides: list[str]) -> None:
    import shlex

    experiment = read_experiment(None, overrides)
    words = shlex.split(command_of({**experiment.to_dict(), "id": experiment.id}))
    assert words[:2] == ["episode", "run"]
    again = read_experiment(None, words[3::2])
    assert isinstance(again, Experiment)
    assert again.id == experiment.id


def test_runs_that_evaluate_nothing_are_compared_by_their_loss(tmp_path: Path) -> None:
    silos = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(2)]
    for algorithm in ("celgc", "episode"):
        fit(
            torch.nn.Linear(3, 1), silos, lambda m, b: F.mse_loss(m(b[0]), b[1]),
            algorithm=algorithm, eta=0.1, gamma=0.1, local_steps=2, rounds=3, batch_size=8,
            folder=tmp_path / algorithm,
        )  # fmt: skip
    runs = find_runs([tmp_path])
    sheet = brief_sheet(grouped(runs))
    losses = [row[sheet.columns.index("loss")] for row in sheet.rows]
    assert losses == [f"{run.summary['loss']:.3f}" for run in runs]
