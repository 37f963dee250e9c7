"""Each silo in tables and reports: read from folders, old, new and damaged ones."""

from __future__ import annotations

import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from made_runs import PLACES, make_run, write_silos
from rich.console import Console
from test_report import packed

from episode.errors import EpisodeError
from episode.results.groups import group_runs
from episode.results.per_client import (
    last_values,
    make_line,
    overview,
    read_lines,
    read_names,
    summarise,
    summary_of,
)
from episode.results.report import write_report
from episode.results.silo_page import silo_data
from episode.results.silo_tables import as_json, remarks, silo_columns, silo_metrics, silo_table
from episode.results.store import find_runs, read_run


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]


def test_values_that_nobody_measured_take_no_room() -> None:
    trained: dict[str, list[float | None]] = {
        "loss": [1.0, 2.0], "clipped": [0.0, 0.5], "largest_norm": [None, None], "drift": [0.1, 0.2]
    }  # fmt: skip
    line = make_line(3, [1, 4], trained, {4: {"accuracy": 0.5}, 0: {}})
    assert line == {
        "round": 3, "clients": [1, 4], "loss": [1.0, 2.0], "clipped": [0.0, 0.5],
        "drift": [0.1, 0.2], "evaluated": [4], "metrics": {"accuracy": [0.5]},
    }  # fmt: skip
    everybody = make_line(3, [1, 4], trained, {4: {"a": 1.0}, 1: {"b": 2.0}})
    assert "evaluated" not in everybody
    assert everybody["metrics"] == {"b": [2.0, None], "a": [None, 1.0]}


def test_the_last_value_that_is_known_of_each_client_counts() -> None:
    lines = [
        {"round": 0, "clients": [0, 2], "loss": [5.0, 3.0]},
        {"round": 1, "clients": [1, 2], "loss": [4.0, None]},
    ]
    assert last_values(lines, "loss") == {0: 5.0, 1: 4.0, 2: 3.0}
    assert summarise(lines, ["a", "b", "c"])["loss"]["worst_client"] == "a"


def test_a_value_that_is_no_number_is_the_worst() -> None:
    each = {"a": 0.1, "b": math.nan, "c": 0.9}
    for metric in ("accuracy", "loss"):
        assert overview(metric, each)["worst_client"] == "b"
    assert overview("loss", {"a": 1.0})["spread"] is None


@pytest.mark.parametrize(
    "line",
    [
        "[]", "3", '{"round": 0}', '{"round": -1, "clients": []}', '{"round": 0, "clients": [1.5]}',
        '{"round": 0, "clients": [true]}', '{"round": 0, "clients": [0], "loss": [1, 2]}',
        '{"round": 0, "clients": [0], "loss": ["x"]}', '{"round": 0, "clients": [0], "loss": 1}',
        '{"round": 0, "clients": [0], "metrics": []}', '{"round": 0, "clients": "01"}',
        '{"round": 0, "clients": [0], "metrics": {"a": [1, 2]}}',
        '{"round": 0, "clients": [0], "evaluated": [0, 1], "metrics": {"a": [1]}}',
        '{"round": 0, "clients": [0], "metrics": {"a": [[1]]}}', "[" * 100_000, "\\x00",
        '{"round": 3, "clients": [0]}', f'{{"round": 4, "clients": [0], "loss": [1{"0" * 400}]}}',
    ],
)  # fmt: skip
def test_damaged_records_are_one_sentence(tmp_path: Path, line: str) -> None:
    folder = write_silos(make_run(tmp_path / "a"))
    lines = (folder / "clients.jsonl").read_text().splitlines()
    lines[4] = line
    (folder / "clients.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(EpisodeError, match=r"clients\.jsonl is damaged in line 5: delete this fil"):
        write_report(find_runs([tmp_path]), tmp_path / "r.html")
    (folder / "clients.jsonl").write_text("\n".join(lines[:5]))  # the same as a torn last line
    assert len(read_lines(folder)) == 4


@pytest.mark.parametrize("names", ["{}", '["a", 3]', '"abc"'])
def test_damaged_names_are_one_sentence(tmp_path: Path, names: str) -> None:
    folder = write_silos(make_run(tmp_path / "a"))
    (folder / "client_names.json").write_text(names)
    with pytest.raises(EpisodeError, match=r"client_names\.json is damaged: delete this file"):
        read_names(folder)


@pytest.mark.parametrize(
    "found", [[], {"loss": 3}, {"loss": {"each": {}}}, {"loss": {"each": {"a": "b"}}}, "x"]
)
def test_a_damaged_summary_of_silos_is_one_sentence(tmp_path: Path, found: Any) -> None:
    folder = make_run(tmp_path / "a")
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"per_client": found}))
    with pytest.raises(EpisodeError, match=r"summary\.json is damaged at per_client"):
        silo_columns(group_runs(find_runs([tmp_path])))


def runs_of_two(root: Path) -> Path:
    for algorithm in ("celgc", "episode"):
        for seed in (0, 1):
            write_silos(make_run(root / f"{algorithm}-{seed}", algorithm, seed), 5)
    return root


def test_the_table_has_silos_against_algorithms_and_the_worst_mean_and_spread(
    tmp_path: Path,
) -> None:
    groups = group_runs(find_runs([runs_of_two(tmp_path)]))
    metric, columns = silo_columns(groups)
    assert metric == "holdout_accuracy"
    assert silo_metrics(groups) == ["holdout_accuracy", "holdout_loss", "loss"]
    table = silo_table(metric, columns)
    assert list(table.columns) == ["silo", "celgc", "episode"]
    assert table.title == "holdout_accuracy of 5 silos (higher is better)"
    assert [row[0] for row in table.rows] == [
        *(f"{place} 1" for place in PLACES[:5]), "worst silo", "mean of silos", "spread",
        "better / worse than celgc",
    ]  # fmt: skip
    each = [summary_of(read_run(tmp_path / f"episode-{s}"))["holdout_accuracy"]["each"]
            for s in (0, 1)]  # fmt: skip
    north = [values["Aachen 1"] for values in each]
    assert columns[1].each["Aachen 1"].mean == statistics.fmean(north)
    assert table.rows[0][2] == f"{statistics.fmean(north):.3f} ± {statistics.stdev(north):.3f}"
    worst = [min(values.values()) for values in each]
    assert columns[1].overview["worst"].mean == statistics.fmean(worst), "of each run, then meaned"
    means = [{s: c.each[s].mean for s in c.each} for c in columns]
    better = sum(means[1][s] > means[0][s] for s in means[0])
    assert table.rows[-1][2] == f"{better} / {5 - better}"
    assert remarks(metric, columns) == []
    stored = as_json(metric, columns)
    assert stored[1]["each"]["Aachen 1"]["mean"] == statistics.fmean(north)
    assert json.loads(json.dumps(stored)) == stored


def test_of_losses_the_largest_is_the_worst(tmp_path: Path) -> None:
    metric, columns = silo_columns(group_runs(find_runs([runs_of_two(tmp_path)])), "holdout_loss")
    first = columns[0]
    assert first.overview["worst"].mean >= max(s.mean for s in first.each.values())
    assert silo_table(metric, columns).title.endswith("(lower is better)")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    runs_of_two(tmp_path)
    make_run(tmp_path / "episode-2", "episode", 2)  # an older run, without records
    make_run(tmp_path / "fedavg-0", "fedavg", 0)
    make_run(tmp_path / "scaffold-0", "scaffold", 0, status="running")
    write_silos(make_run(tmp_path / "celgc-4", "celgc", 0, local_steps=4), 3)
    metric, columns = silo_columns(group_runs(find_runs([tmp_path])))
    table = silo_table(metric, columns)
    assert table.rows[-1][0] == "status"
    said = remarks(metric, columns)
    for words in (
        "episode, local_steps 8: 1 of 3 finished runs without holdout_accuracy of each silo.",
        "fedavg, local_steps 8: 1 of 1 finished runs without holdout_accuracy of each silo.",
        "scaffold, local_steps 8: no run has finished.",
        "celgc, local_steps 4: no holdout_accuracy of Delft 1, Ely 1.",
    ):
        assert words in said, said
    fedavg = [c.name for c in columns].index("fedavg, local_steps 8")
    assert {row[1 + fedavg] for row in table.rows[:-1]} == {"–"}


def test_runs_without_records_of_silos_say_so_and_unknown_metrics_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "old")
    with pytest.raises(EpisodeError, match="None of these runs has records of each silo"):
        silo_columns(group_runs(find_runs([tmp_path])))
    write_silos(make_run(tmp_path / "new", "celgc"))
    with pytest.raises(EpisodeError, match=r"'holdout_acuracy': did you mean 'holdout_accuracy'"):
        silo_columns(group_runs(find_runs([tmp_path])), "holdout_acuracy")


def test_numbered_clients_of_several_seeds_get_a_warning(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_silos(make_run(tmp_path / str(seed), seed=seed), named=False)
    metric, columns = silo_columns(group_runs(find_runs([tmp_path])))
    assert next(iter(columns[0].each)) == "client 0"
    assert remarks(metric, columns) == [
        "Clients without names may hold other data for another seed."
    ]


def test_a_silo_may_have_any_name(tmp_path: Path) -> None:
    folder = write_silos(make_run(tmp_path / "a"), 2)
    names = ["[red]clinic[/red]", "<b>x</b><script>"]
    (folder / "client_names.json").write_text(json.dumps(names))
    path = folder / "summary.json"
    found = {"per_client": summarise(read_lines(folder), names)}
    path.write_text(json.dumps(json.loads(path.read_text()) | found))
    runs = find_runs([tmp_path])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(silo_table(*silo_columns(group_runs(runs))))
    assert "[red]clinic[/red]" in console.export_text()
    write_report(runs, tmp_path / "r.html")
    assert "<script>" not in (tmp_path / "r.html").read_text().split("<style>")[0]
    assert packed(tmp_path / "r.html")["silos"]["silos"] == names


class Kept(list[float | None]):
    """Columns, one after another."""

    def add(self, column: Any) -> list[int]:
        start = len(self)
        self.extend(column)
        return [start, len(self) - start]

    def at(self, place: list[int]) -> list[float | None]:
        return [None if v is None or v != v else v for v in self[place[0] : sum(place)]]


def test_the_page_holds_the_values_of_each_silo_to_the_last_digit(tmp_path: Path) -> None:
    write_silos(make_run(tmp_path / "a", evaluate_every=5), 4, share=0.5)
    write_silos(make_run(tmp_path / "b", "celgc"), 6, share=0.5)
    make_run(tmp_path / "c", "fedavg")  # without records
    runs, columns = find_runs([tmp_path]), Kept()
    found = silo_data(runs, columns)
    assert found is not None
    assert len(found["silos"]) == 6
    assert found["metrics"] == [
        "holdout_accuracy", "holdout_loss", "loss", "clipped", "largest_norm", "drift",
    ]  # fmt: skip
    assert (found["runs"][2], found["thinned"]) == ({}, False)
    for place, name in enumerate("ab"):
        lines, own = lines_of(tmp_path / name), found["runs"][place]
        count = 4 if name == "a" else 6
        evaluated = [line for line in lines if "metrics" in line]
        curve = own["holdout_accuracy"]
        assert columns.at(curve["rounds"]) == [line["round"] for line in evaluated]
        values = columns.at(curve["values"])
        rows = [values[k : k + 6] for k in range(0, len(values), 6)]
        padding = [None] * (6 - count)
        assert rows == [line["metrics"]["holdout_accuracy"] + padding for line in evaluated]
        assert columns.at(curve["last"]) == rows[-1]
        drift = columns.at(own["drift"]["values"])
        first = dict(zip(lines[0]["clients"], lines[0]["drift"], strict=True))
        assert drift[:6] == [first.get(k) for k in range(6)]


def test_long_curves_are_thinned_and_end_with_their_last_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("episode.results.silo_page.MOST_VALUES", 100)
    write_silos(make_run(tmp_path / "a", rounds=90), 3, share=0.3)
    columns = Kept()
    found = silo_data(find_runs([tmp_path]), columns)
    assert found is not None
    assert found["thinned"]
    lines = lines_of(tmp_path / "a")
    for metric in found["metrics"]:
        curve = found["runs"][0][metric]
        rounds = columns.at(curve["rounds"])
        assert len(rounds) == 18
        assert rounds[-1] == 89
        assert columns.at(curve["last"]) == list(last_values(lines, metric).values())


def test_reports_of_old_runs_have_no_silos(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    write_report(find_runs([tmp_path]), tmp_path / "r.html")
    assert packed(tmp_path / "r.html")["silos"] is None
