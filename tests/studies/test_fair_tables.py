"""The script of the fair tables never plays a run twice, and tunes as it says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from episode import EpisodeError
from episode.studies import demo

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import fair_comparisons  # noqa: E402
import fair_summary  # noqa: E402
import fair_tables  # noqa: E402

SETTINGS = [(0.1, 1.0), (0.5, 1.0)]
COMPARISON = fair_comparisons.Comparison(
    {"name": "digits"}, 16, 8, etas=(0.1, 0.5), gammas=(1.0,), etas_unclipped=(0.1, 0.5)
)


class Played(fair_comparisons.Table):
    """A table whose runs end at once, with an accuracy that depends on η and the seed."""

    def played(self, algorithm: str, setting: Any, seed: int, split: str, every: int = 0) -> Path:
        folder: Path = self.folder / f"{algorithm}-{setting[0]:g}-{seed}-{split}"
        folder.mkdir(parents=True)  # fails if it is played twice
        diverged = seed == 9
        end = {
            "status": "diverged" if diverged else "finished",
            "metrics": {f"{split}_accuracy": setting[0] + 0.01 * seed, "train_loss": 1.0},
            "rounds": 2, "exchanges": 4, "bytes_up": 10**6, "bytes_down": 0, "gradients": 18,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(end))
        return folder


def table(folder: Path, **changes: Any) -> Played:
    record = fair_comparisons.Record(folder / "runs.csv")
    return Played(replace(COMPARISON, **changes), {}, folder / "digits", record)


def test_a_setting_is_as_good_as_its_mean_over_the_seeds_of_the_trials(tmp_path: Path) -> None:
    tried = table(tmp_path, tuned_with=(0, 1, 2)).tried("celgc")
    assert tried == pytest.approx(dict(zip(SETTINGS, (0.11, 0.51), strict=True)))
    assert fair_comparisons.best(tried) == (0.5, 1.0)


def test_a_run_in_the_record_is_not_played_again(tmp_path: Path) -> None:
    first = table(tmp_path).tried("celgc")
    assert table(tmp_path).tried("celgc") == first


def test_a_line_that_was_cut_off_is_not_believed(tmp_path: Path) -> None:
    table(tmp_path).accuracy("celgc", (0.5, 1.0), 3, "test")
    record = tmp_path / "runs.csv"
    whole = record.read_text()
    record.write_text(whole[:-2])
    assert not fair_comparisons.Record(record).rows
    fair_comparisons.Record(record).add(
        dict(zip(whole.split()[0].split(","), "abcdefghijklm", strict=True))
    )
    assert list(fair_comparisons.Record(record).rows) == [tuple("abcdef")]


@pytest.mark.parametrize("text", ["a note", "a,b\n1,2\n", None])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str | None) -> None:
    other = tmp_path / "other"
    other.mkdir() if text is None else other.write_text(text)
    with pytest.raises(EpisodeError, match=r"^.* is not a record of runs: .*\.$"):
        fair_comparisons.Record(other)


@pytest.mark.parametrize("text", ["", "comparison,alg"])
def test_a_record_that_was_just_begun_is_begun_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.csv").write_text(text)
    found = table(tmp_path).accuracy("celgc", (0.5, 1.0), 3, "test")
    assert table(tmp_path).accuracy("celgc", (0.5, 1.0), 3, "test") == found


def test_a_run_that_diverged_counts_as_accuracy_zero(tmp_path: Path) -> None:
    assert table(tmp_path).accuracy("celgc", (0.5, 1.0), 9, "test") == 0.0


def test_other_similarities_use_the_settings_that_were_found(tmp_path: Path) -> None:
    tuned = table(tmp_path)
    other = replace(tuned, folder=tmp_path / "digits-s50", tuned=tuned)
    assert other.tried("celgc") == tuned.tried("celgc")
    assert not other.folder.exists()


@pytest.mark.parametrize(
    ("task", "local_steps", "best"),
    [("digits", 8, demo.BEST), ("digits-by-pixel", 4, demo.BEST_BY_PIXEL)],
)
def test_the_published_record_has_the_settings_of_the_demo(
    task: str, local_steps: int, best: dict[str, Any]
) -> None:
    record = fair_comparisons.Record(EXAMPLES.parent / "docs/fair_runs.csv")
    results = fair_summary.Results.of(record, task, local_steps)
    assert {name: fair_comparisons.best(results.tried(name)) for name in best} == best


def test_the_summary_finds_the_best_settings_and_leaves_out_what_was_not_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CELGC is best at η = 1, γ = 0.3, EPISODE at (3, 0.1); SNLI was tuned with one seed."""
    record = fair_comparisons.Record(tmp_path / "runs.csv")

    def add(algorithm: str, eta: float, gamma: float, seed: int, split: str, value: float) -> None:
        key = ("snli", algorithm, f"{eta:g}", f"{gamma:g}", str(seed), split)
        record.add(dict(zip(fair_comparisons.KEY, key, strict=True)) | {"accuracy": str(value)})

    for algorithm, peak in (("celgc", (1.0, 0.3)), ("episode", (3.0, 0.1))):
        for eta, gamma in fair_comparisons.COMPARISONS["snli"].settings(algorithm):
            distance = abs(eta - peak[0]) + abs(gamma - peak[1])
            add(algorithm, eta, gamma, 0, "validation", 0.6 - 0.1 * distance)
    for seed, accuracy in ((3, 0.5), (4, 0.7)):
        add("celgc", 1.0, 0.3, seed, "test", accuracy)
        add("episode", 3.0, 0.1, seed, "test", accuracy + 0.1)
    add("episode_trust", 1.0, 0.3, 3, "test", 0.9)  # not tuned, so it has no setting of its own
    results = fair_summary.Results.of(record, "snli", 4)
    assert results.shared == (1.0, 0.3)
    assert results.means("celgc") == ([0.5, 0.7], [0.5, 0.7])
    assert results.means("episode") == (pytest.approx([0.6, 0.8]), [])
    assert results.means("episode_trust") == ([], [0.9])
    assert results.near("celgc", 0.6) == 2  # γ of 0.1 and 0.3
    fair_summary.by_local_steps(record, "snli", (4, 8))
    lines = capsys.readouterr().out.splitlines()
    assert "| celgc | 0.600 ± 0.141 (1, 0.3) | 0.600 ± 0.141 | – | 2, – of 9 |" in lines
    assert "| episode | 0.700 ± 0.141 (3, 0.1) | – | – | 2, – of 9 |" in lines
    assert not any("scaffold" in line for line in lines)


def test_steps_that_exchange_every_time_are_the_same_at_every_number_of_local_steps() -> None:
    record = fair_comparisons.Record(EXAMPLES.parent / "docs/fair_runs.csv")
    at = {i: fair_summary.Results.of(record, "digits", i) for i in (4, 8)}
    assert at[4].means("naive_parallel_clip")[0] == at[8].means("naive_parallel_clip")[0] != []
    assert at[4].means("celgc")[0] != at[8].means("celgc")[0]


def rounds_file(folder: Path, accuracies: list[float | None]) -> Path:
    """Write a record of rounds; an accuracy of None is a round without an evaluation."""
    lines = [
        {
            "round": k, "exchanges": 2 * (k + 1), "gradients": 72 * (k + 1), "seconds": k + 0.54,
            "bytes_up": 10**6, "bytes_down": 10**6,
            "metrics": None if value is None else {"test_accuracy": value},
        }
        for k, value in enumerate(accuracies)
    ]  # fmt: skip
    folder.mkdir()
    path = folder / "rounds.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_costs_end_with_the_first_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    path = rounds_file(tmp_path / "run", [0.2, None, 0.6, 0.9])
    assert fair_comparisons.cost_to(0.5, path) == {
        "rounds": "3", "exchanges": "6", "megabytes": "2.0", "gradients": "216", "seconds": "2.5",
    }  # fmt: skip
    assert set(fair_comparisons.cost_to(0.95, path).values()) == {""}


def test_a_cost_in_the_record_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(self: Any, algorithm: str, setting: Any, seed: int, split: str, every: int) -> Path:
        played.append((algorithm, seed, split, every))
        return rounds_file(tmp_path / str(seed), [0.2, 0.6]).parent

    played: list[Any] = []
    monkeypatch.setattr(fair_comparisons.Table, "played", play)
    record = fair_comparisons.Record(tmp_path / "runs.csv")
    for _ in range(2):
        costs = fair_comparisons.Record(
            tmp_path / "costs.csv", fair_comparisons.COST_KEY, fair_comparisons.COST
        )
        made = fair_comparisons.Table(COMPARISON, {}, tmp_path / "digits", record, costs)
        assert made.cost("celgc", (0.5, 1.0), 3, 0.5)["rounds"] == "2"
    assert played == [("celgc", 3, "test", 1)]


@pytest.mark.parametrize("algorithm", ["celgc", "naive_parallel_clip"])
def test_every_algorithm_is_evaluated_after_as_many_iterations(
    tmp_path: Path, algorithm: str
) -> None:
    record = fair_comparisons.Record(tmp_path / "runs.csv")
    comparison = replace(COMPARISON, iterations=32, evaluate_every=16)
    made = fair_comparisons.Table(comparison, {}, tmp_path / "digits", record)
    every = comparison.rounds_between_evaluations
    folder = made.played(algorithm, (0.1, 1.0), 0, "test", every)
    lines = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    found = [line["gradients"] / 8 for line in lines if line.get("metrics")]
    assert found == [16, 32]  # iterations: a gradient of each of the 8 clients


def test_costs_are_medians_of_the_runs_that_reach_the_target() -> None:
    names = fair_comparisons.COST
    costs = [dict.fromkeys(names, value) for value in ("10", "", "11", "2000")]
    row = fair_tables.cost_row("celgc", costs)
    assert row == "| celgc | 3 of 4 | 11 | 11 | 11.0 | 11 | 11.0 |"
    assert "| 10.5 | 10.5 | 10.5 |" in fair_tables.cost_row("celgc", costs[:3])
    assert fair_tables.cost_row("celgc", costs[1:2]) == "| celgc | 0 of 1 | – | – | – | – | – |"


def test_the_usual_number_of_local_steps_is_the_usual_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*more: str) -> fair_comparisons.Table:
        monkeypatch.setattr(sys, "argv", ["fair_tables.py", "snli", *more])
        return fair_tables.asked_table(fair_tables.arguments())

    assert asked("--local-steps", "4").folder == asked().folder
    other = asked("--local-steps", "8", "--similarity", "30")
    assert other.folder.name == "snli-I8-s30"
    assert other.comparison.local_steps == 8
    assert other.comparison.task["similarity"] == 30
    assert other.tuned is not None
    assert other.tuned.folder.name == "snli-I8"


def test_a_lead_has_the_standard_error_of_its_pairs_of_seeds() -> None:
    assert fair_summary.lead([0.5, 0.6], [0.4, 0.3]) == "+20.0 ± 10.0"
    assert fair_summary.lead([0.5, 0.6], [0.6]) == "-5.0"


def test_what_is_compared_at_equal_exchanges_exchanges_as_often() -> None:
    record = fair_comparisons.Record(EXAMPLES.parent / "docs/fair_runs.csv")
    found = fair_summary.equal_exchanges(record)
    assert len(found) == 10
    for _, ours, theirs in found:
        a, b = (int(r.cost(name)[0]) for r, name in ((ours, "episode_trust"), (theirs, "celgc")))
        assert abs(a - b) <= 1  # 200 iterations are not a multiple of 16


def test_maps_have_a_line_for_each_algorithm_that_does_not_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[list[float]]] = []

    def draw(axis: Any, values: list[list[float]], highest: list[float]) -> None:
        drawn.append(values)

    monkeypatch.setattr(fair_tables, "draw_map", draw)
    by_setting = {"celgc": {(0.1, 1.0): 0.3, (0.5, 1.0): 0.4}}
    by_setting["fedavg"] = {(0.1, 1.0): 0.5, (0.5, 1.0): 0.6}
    fair_tables.draw_maps(COMPARISON, by_setting, tmp_path / "maps.png")
    assert drawn == [[[0.3, 0.4]], [[0.5, 0.6]]]
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


def test_the_pages_and_readme_show_the_published_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fair_summary.py"])
    fair_summary.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = ("README", "docs/results", "docs/more_results", "docs/costs")
    page = [
        line for name in names for line in (EXAMPLES.parent / f"{name}.md").read_text().splitlines()
    ]
    assert len(rows) > 90
    assert [row for row in rows if row not in page] == []
    demo_section = (EXAMPLES.parent / "README.md").read_text().split("\n## ")[1].splitlines()
    shown = [line for line in demo_section if line.startswith("| ")]
    assert len(shown) > 20
    assert [row for row in shown if row not in rows] == []
