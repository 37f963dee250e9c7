"""Silos with tables of numbers: an MLP, on columns that are scaled without any row leaving."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from episode.errors import EpisodeError
from episode.runs.config import read_experiment
from episode.runs.trainer import job_of, train
from episode.tasks.settings import Share
from episode.tasks.silos import Silos

NAMES = ("north", "south", "west")


def write_table(path: Path, rows: list[list[Any]], head: tuple[str, ...] = ()) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head or ("age", "pressure", "label"), *rows])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three silos whose columns have very different sizes, and different means."""
    chance = random.Random(0)
    for number, name in enumerate(NAMES):
        rows = []
        for _ in range(60):
            age, pressure = chance.gauss(50 + 5 * number, 10), chance.gauss(12_000, 900)
            label = "ill" if (age - 50) / 10 + (pressure - 12_000) / 900 > 0 else "well"
            rows.append([age, pressure, label])
        write_table(tmp_path / "silos" / name / "patients.csv", rows)
    return tmp_path / "silos"


def settings(folder: Path, **changes: Any) -> Silos:
    return Silos(data=str(folder), model="mlp", **changes)


def test_an_mlp_learns_from_tables_of_numbers(folder: Path) -> None:
    options = [f'task.data="{folder}"', "task.name=silos", "task.model=mlp", "budget.rounds=30"]
    run = train(job_of(read_experiment(None, options)))
    assert run.summary["metrics"]["test_accuracy"] > 0.85


def rows_of(task: Any, client: int) -> torch.Tensor:
    dataset = task.batches[client]._dataset
    return dataset.gather(torch.arange(len(dataset)), ())[0]


def test_columns_are_scaled_over_the_training_rows_of_all_silos(folder: Path) -> None:
    task = settings(folder).build(0, "cpu")
    rows = torch.cat([rows_of(task, client) for client in range(3)]).double()
    assert rows.mean(0).abs().max() < 1e-6
    assert (rows.square().mean(0) - 1).abs().max() < 1e-5


def test_sites_scale_as_a_simulation_does_and_tell_no_row(folder: Path) -> None:
    whole = settings(folder).build(0, "cpu")
    common = Silos(model="mlp")
    own = {client: {"data": str(folder / name)} for client, name in enumerate(NAMES)}
    facts = {client: common.facts(client, own[client], seed=0) for client in own}
    agreed = common.agree(json.loads(json.dumps(facts, sort_keys=True), object_hook=numbered))
    for client in own:
        share = Share((client,), common.told(agreed, client), own[client])
        there = common.build_share(share, 0, "cpu")
        assert torch.equal(rows_of(there, client), rows_of(whole, client))
    server = common.build_share(Share((), agreed), 0, "cpu")
    assert torch.equal(server.initial()[0], whole.initial()[0])
    told = json.dumps(facts)
    for name in NAMES:
        for row in (folder / name / "patients.csv").read_text().splitlines()[1:]:
            assert not any(value in told for value in row.split(",")[:2])


def numbered(values: dict[str, Any]) -> dict[Any, Any]:
    """Keys of clients are numbers, which JSON makes text."""
    return {int(k) if k.isdigit() else k: v for k, v in values.items()}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["x", 2, "ill"], "Row 1 of .*patients.csv has no number in the column age: fill it in"),
        (["", 2, "ill"], "has no number in the column age"),
        (["inf", 2, "ill"], "has no number in the column age"),
        ([1, 2, ""], "has no label"),
        ([1, 2, "ill", 4], "all silos need the same"),
    ],
)
def test_a_cell_that_is_no_number_is_named_but_not_shown(
    row: list[Any], message: str, folder: Path
) -> None:
    write_table(folder / "north" / "patients.csv", [row, [1, 2, "well"]])
    with pytest.raises(EpisodeError, match=message):
        settings(folder).build(0, "cpu")


def test_silos_with_other_columns_are_refused(folder: Path) -> None:
    write_table(folder / "south" / "patients.csv", [[1, 2, "ill"]] * 30, ("age", "dose", "label"))
    with pytest.raises(EpisodeError, match="has the columns age, dose, label, but needs age, pres"):
        settings(folder).build(0, "cpu")
    facts = {
        client: Silos(model="mlp").facts(client, {"data": str(folder / name)}, 0)
        for client, name in enumerate(NAMES)
    }
    with pytest.raises(EpisodeError, match=r"Site 1 .south. has .*dose.* for the columns of"):
        Silos(model="mlp").agree(facts)


def test_a_site_with_few_rows_tells_no_means(folder: Path) -> None:
    write_table(folder / "west" / "patients.csv", [[1, 2, "ill"], [3, 4, "well"]] * 4)
    with pytest.raises(EpisodeError, match="6 rows to train on: with fewer than 10, the means"):
        Silos(model="mlp").facts(2, {"data": str(folder / "west")}, 0)


def test_a_column_that_is_always_the_same_does_no_harm(folder: Path) -> None:
    for name in NAMES:
        rows = [[k, 7, "ill" if k % 2 else "well"] for k in range(30)]
        write_table(folder / name / "patients.csv", rows)
    task = settings(folder, batch_size=8).build(0, "cpu")
    assert rows_of(task, 0)[:, 1].abs().max() == 0


def test_sites_that_lie_about_their_columns_are_refused(folder: Path) -> None:
    own = {c: {"data": str(folder / name)} for c, name in enumerate(NAMES)}
    facts = {c: Silos(model="mlp").facts(c, own[c], 0) for c in own}
    facts[1]["numbers"]["spread"] = [-1.0, 1.0]
    with pytest.raises(EpisodeError, match="Silo 1 told means of its columns that make no sense"):
        Silos(model="mlp").agree(facts)
