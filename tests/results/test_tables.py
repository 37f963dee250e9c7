"""Tables of runs: groups and copies, unrounded CSV, and narrow terminals."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

from made_runs import make_run
from rich.console import Console

from episode.catalogue import CELLS, cell_name
from episode.core import ALGORITHMS, Algorithm
from episode.results.figures import STYLES
from episode.results.groups import differing_keys, group_runs, settings_of, without_copies
from episode.results.run_tables import full_table, short_table
from episode.results.store import find_runs


def accuracy(folder: Path) -> float:
    summary = json.loads((folder / "summary.json").read_text())
    return float(summary["metrics"]["test_accuracy"])


def test_a_copy_of_a_run_does_not_count_as_another_seed(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "a" / f"run-{seed}", seed=seed)
    make_run(tmp_path / "b" / "copy", seed=1)
    make_run(tmp_path / "b" / "other", seed=1, local_steps=4)
    runs = find_runs([tmp_path / "a", tmp_path / "b"])
    assert len(runs) == 5
    assert [r.folder.name for r in without_copies(runs)] == ["run-0", "run-1", "run-2", "other"]
    three, one = group_runs(runs)
    spread = three.metric("test_accuracy")
    assert spread is not None
    assert (len(three.runs), len(one.runs), spread.count) == (3, 1, 3)


def test_settings_that_do_not_decide_a_result_do_not_separate_runs(tmp_path: Path) -> None:
    for seed, min_replies in ((0, 1), (1, 2), (1, 3)):
        path = make_run(tmp_path / f"{seed}-{min_replies}", seed=seed) / "config.json"
        engine = {"name": "flower", "min_replies": min_replies, "retries": min_replies}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": engine}))
    (group,) = group_runs(find_runs([tmp_path]))
    assert [r.folder.name for r in group.runs] == ["0-1", "1-2"]  # 1-3 is a copy of 1-2


def test_of_several_copies_the_finished_one_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "a", status="running")
    make_run(tmp_path / "b")
    assert [r.folder.name for r in without_copies(find_runs([tmp_path]))] == ["b"]


def made_in_python(folder: Path) -> Path:
    config = make_run(folder) / "config.json"
    pieces = {"algorithm": {"correction": "resampled", "clipping": "episodic"}, "made_by": "fit"}
    config.write_text(json.dumps(json.loads(config.read_text()) | pieces))
    return folder / "rounds.jsonl"


def test_runs_made_in_python_are_copies_if_their_first_rounds_agree_too(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        rounds = made_in_python(tmp_path / name)
    first, *others = rounds.read_text().splitlines()
    changed = json.dumps(json.loads(first) | {"loss": 3.0})  # as another loss function has it
    rounds.write_text("\n".join([changed, *others]) + "\n")
    assert [r.folder.name for r in without_copies(find_runs([tmp_path]))] == ["a", "c"]
    groups = group_runs(find_runs([tmp_path]))
    assert [[r.folder.name for r in g.runs] for g in groups] == [["a"], ["c"]]  # one seed each


def test_a_run_made_in_python_has_the_name_and_the_colour_of_its_algorithm(tmp_path: Path) -> None:
    made_in_python(tmp_path / "a")
    (run,) = find_runs([tmp_path])
    assert run.label == "episode"
    assert run.label in STYLES


def test_the_names_of_cells_are_those_of_the_algorithms() -> None:
    values = {n: a.to_dict() for n, a in ALGORITHMS.items()}
    assert {n: cell_name(pieces) for n, pieces in values.items()} == {n: n for n in values}
    assert set(CELLS.values()) == set(ALGORITHMS) == set(STYLES)
    soft = {"correction": "resampled", "clipping": {"name": "my_clipping.py:Soft", "scale": 2}}
    assert cell_name(soft) == "resampled-Soft"
    assert cell_name(soft | {"server": "my_server.py:Halfway"}) == "resampled-Soft-Halfway"


def test_a_server_step_is_part_of_a_name() -> None:
    """A run with Adam on the server is not one of fedavg."""
    for server, name in (
        ("sgd", "fedavg-rate"),
        ("adamw", "fedavg-adamw"),
        ({"name": "sgd", "momentum": 0.5}, "fedavgm"),
    ):
        assert cell_name(Algorithm.named("fedavg", server=server).to_dict()) == name


def set_accuracy(folder: Path, value: float) -> None:
    """Give a run another final accuracy, in its summary and in its last round."""
    summary = json.loads((folder / "summary.json").read_text())
    *rounds, last = (folder / "rounds.jsonl").read_text().splitlines()
    record = json.loads(last)
    for values in (summary, record):
        values["metrics"]["test_accuracy"] = value
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").write_text("\n".join([*rounds, json.dumps(record)]) + "\n")


def test_the_best_comes_first_among_runs_of_one_task_and_budget(tmp_path: Path) -> None:
    for name, steps, value in (
        ("celgc", 8, 0.5), ("episode", 8, 0.9), ("fedavg", 8, None), ("celgc", 4, 0.7),
        ("scaffold", 8, 0.6), ("episode", 4, 0.95),
    ):  # fmt: skip
        status = "finished" if value else "diverged"
        folder = make_run(tmp_path / f"{steps}-{name}", name, local_steps=steps, status=status)
        if value:
            set_accuracy(folder, value)
    rows = short_table(group_runs(find_runs([tmp_path]))).rows
    assert [(row[1], row[0]) for row in rows] == [
        ("4", "episode"), ("4", "celgc"),
        ("8", "episode"), ("8", "scaffold"), ("8", "celgc"), ("8", "fedavg"),
    ]  # fmt: skip


def test_the_csv_has_one_value_per_cell_to_the_last_digit(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed, rounds=2000) for seed in range(3)]
    make_run(tmp_path / "lost", algorithm="fedavg", rounds=2000, status="diverged")
    text = full_table(group_runs(find_runs([tmp_path]))).csv()
    episode, fedavg = csv.DictReader(io.StringIO(text))
    values = [accuracy(f) for f in folders]
    assert float(episode["test_accuracy"]) == statistics.fmean(values)
    assert float(episode["test_accuracy_deviation"]) == statistics.stdev(values)
    assert float(episode["gradients"]) == 8 * 8 * 2000
    assert (fedavg["test_accuracy"], fedavg["status"]) == ("", "diverged")


def test_on_a_narrow_terminal_words_are_wrapped_and_metrics_are_whole(tmp_path: Path) -> None:
    for algorithm in ("naive_parallel_clip", "episode"):
        for steps in (4, 8):
            for seed in (0, 1):
                name = f"{algorithm}-{steps}-{seed}"
                make_run(tmp_path / name, algorithm=algorithm, seed=seed, local_steps=steps)
    table = short_table(group_runs(find_runs([tmp_path])))
    metrics = [cell for row in table.rows for cell in row[table.left :]]
    for width in (70, 80, 200):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(table)
        shown = console.export_text()
        assert all(metric in shown for metric in metrics), shown
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width
        assert ("test_accuracy" in shown) is (width == 200)


def test_a_piece_of_the_algorithm_has_one_key_for_its_name() -> None:
    configs = [{"algorithm": ALGORITHMS[name].to_dict()} for name in ("episode", "episode_trust")]
    full, measured = (settings_of(config) for config in configs)
    assert (full["algorithm.trust"], measured["algorithm.trust"]) == ("full", "measured")
    assert measured["algorithm.trust.full_from"] == 0.9
    differing = differing_keys([full, measured])
    trust = [f"algorithm.trust{field}" for field in ("", ".full_from", ".lifetime")]
    assert differing == ["algorithm.clipping", *trust]
