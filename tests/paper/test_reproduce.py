"""Recipes: what they need, what they write, and that their verdicts can go either way."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from episode.errors import EpisodeError
from episode.paper import RECIPES, Kitchen, index, recipe, serve
from episode.paper import published as paper
from episode.paper.others import _imagenet_claims
from episode.paper.recipe import Cell, Results
from episode.paper.snli import SnliEffects, ablation_claims
from episode.results.store import StoredRun
from episode.studies.sweep import SweepOptions, sweep

DATASETS = {"snli", "sentiment140", "cifar10", "imagenet"}


def test_there_is_a_recipe_for_every_table_and_figure() -> None:
    assert set(RECIPES) == {
        "complexity", "synthetic", "snli", "snli-time", "snli-ablation", "cifar10", "imagenet",
        "sentiment140-steps", "sentiment140-time", "digits",
    }  # fmt: skip
    with pytest.raises(EpisodeError, match="did you mean 'snli-time'"):
        recipe("snli-tim")


def test_the_papers_numbers_are_complete() -> None:
    """Spot checks against the paper, and every cell that a recipe shows."""
    assert paper.SNLI_ABLATION["episode", 4, 30] == (0.399, 81.7)
    assert paper.SNLI_ABLATION["scaffold", 8, 30] == (10.86, 32.8)
    assert paper.SNLI_ABLATION["celgc", 4, 10] == (0.667, 73.3)
    assert paper.SNLI_MINUTES["episode", 8, 30] == (13.98, 22.43, 53.43)
    assert paper.IMAGENET["episode", 128, 60] == (1.016, 74.36)
    assert len(paper.SNLI_ABLATION) == 36
    assert len(paper.SNLI_MINUTES) == 12
    assert len(paper.IMAGENET) == 16


@pytest.mark.parametrize("name", [n for n, r in RECIPES.items() if r.datasets])
def test_without_their_data_recipes_say_what_to_fetch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path))
    missing = RECIPES[name].missing(Kitchen("laptop", tmp_path / "out"))
    assert "episode data fetch" in missing
    assert missing.count(".") <= 3


def test_at_the_papers_scale_runs_have_the_papers_settings(tmp_path: Path) -> None:
    kitchen = Kitchen("paper", tmp_path)
    snli = RECIPES["snli-ablation"].experiments(kitchen)
    assert len(snli) == 37
    for e in snli:
        assert (e.schedule.eta, e.schedule.gamma) == (0.3, 0.03)
        assert e.budget.rounds * e.budget.local_steps >= 26_825
        assert e.schedule.milestones == (0.6, 0.8)
    assert {e.budget.local_steps for e in snli} == {1, 2, 4, 8, 16}
    imagenet = RECIPES["imagenet"].experiments(kitchen)
    assert {e.budget.local_steps for e in imagenet} == {64, 128}
    assert {(e.algorithm.momentum, e.algorithm.weight_decay) for e in imagenet} == {(0.9, 5e-5)}
    cifar = RECIPES["cifar10"].experiments(kitchen)
    assert {(e.schedule.eta, e.schedule.gamma) for e in cifar} == {(1.0, 0.5)}


def test_recipes_share_their_runs(tmp_path: Path) -> None:
    kitchen = Kitchen("paper", tmp_path)
    effects = {e.id for e in RECIPES["snli"].experiments(kitchen)}
    assert effects == {e.id for e in RECIPES["snli-time"].experiments(kitchen)}
    assert effects < {e.id for e in RECIPES["snli-ablation"].experiments(kitchen)}


def test_synthetic_and_complexity_are_made_at_full_scale(tmp_path: Path) -> None:
    kitchen = Kitchen("smoke", tmp_path)
    for name in ("synthetic", "complexity"):
        served = serve(RECIPES[name], kitchen)
        assert {c.verdict for c in served.claims} == {"holds"}
        for file in ("figure.png", "figure.pdf", "table.md", "table.tex", "table.csv",
                     "claims.md", "claims.json", "README.md"):  # fmt: skip
            assert (tmp_path / name / file).stat().st_size > 0
        for file in ("table.tex", "claims.tex"):
            assert (tmp_path / name / file).read_text().isascii()
        index(kitchen, [served])  # what was made before stays listed
    listed = (tmp_path / "README.md").read_text()
    assert "synthetic/README.md" in listed
    assert "complexity/README.md" in listed
    rows = list(csv.reader((tmp_path / "synthetic" / "table.csv").read_text().splitlines()))
    x, f = map(float, rows[3][3].split(", "))  # H = 4, EPISODE
    assert x == pytest.approx(2.598, abs=0.01)
    assert f == pytest.approx(-17.95, abs=0.01)


def made_results(accuracies: dict[Cell, float]) -> Results:
    def run(accuracy: float) -> StoredRun:
        figures = {"test_accuracy": accuracy / 100, "train_loss": 1 - accuracy / 100}
        rounds = [{"round": 9, "seconds": 1.0, "metrics": figures}]
        return StoredRun(
            Path("x"),
            {"budget": {"local_steps": 1}},
            rounds,
            {"status": "finished", "metrics": figures},
        )

    return Results({cell: [run(a)] for cell, a in accuracies.items()})


def papers_results() -> dict[Cell, float]:
    found = {cell: accuracy for cell, (_, accuracy) in paper.SNLI_ABLATION.items()}
    return {("naive_parallel_clip", 1, 30): 82.4, **found}


def test_judged_by_the_papers_own_numbers_claims_fare_as_its_table_says(tmp_path: Path) -> None:
    """The first claim does not hold in the paper's own table; the others do."""
    kitchen = Kitchen("laptop", tmp_path)
    results = made_results(papers_results())
    cell = ("naive_parallel_clip", 1, 30)
    claims = ablation_claims(kitchen, results, paper.SNLI_SETTINGS, cell, 35.0)
    assert [c.verdict for c in claims] == ["does not hold", *["holds"] * 4]
    assert claims[0].figures.startswith("in 4 of 6 settings; not at I = 8, s = 30: 77.1% and 78.0%")
    effects = SnliEffects()._claims(kitchen, results)
    verdicts = {c.text: c.verdict for c in effects}
    nearly = "EPISODE nearly matches NaiveParallelClip's test accuracy for I ≤ 8"
    assert verdicts[nearly] == "holds"
    assert list(verdicts.values()).count("not testable at this scale") == 1
    assert verdicts["CELGC worsens drastically with more heterogeneity"] == "holds"
    found = {cell: accuracy for cell, (_, accuracy) in paper.IMAGENET.items()}
    ahead = [c for c in _imagenet_claims(kitchen, made_results(found)) if "most where" in c.text]
    assert [c.verdict for c in ahead] == ["does not hold"], "it is 0.28 points at both"
    better = found | {("episode", 64, 50): 75.0}
    ahead = [c for c in _imagenet_claims(kitchen, made_results(better)) if "most where" in c.text]
    assert [c.verdict for c in ahead] == ["holds"]


def test_what_a_recipe_sets_itself_cannot_be_set(tmp_path: Path) -> None:
    for override in ("budget.rounds=2", "algorithm=celgc", "seed=3"):
        with pytest.raises(EpisodeError, match="a recipe sets"):
            RECIPES["digits"].experiments(Kitchen("smoke", tmp_path, overrides=[override]))


def test_a_mean_over_some_of_the_runs_says_so() -> None:
    cell = ("episode", 4, 30.0)
    (run,) = made_results({cell: 80.0}).runs[cell]
    diverged = StoredRun(Path("y"), {}, [], {"status": "diverged", "metrics": {}})
    assert Results({cell: [run, run]}).text(cell)[1] == "80.0 ± 0.0%"
    assert Results({cell: [run, diverged]}).text(cell)[1] == "80.0% (1 of 2 runs)"


def test_verdicts_can_fail(tmp_path: Path) -> None:
    kitchen = Kitchen("laptop", tmp_path)
    accuracies = papers_results() | {
        ("episode", 4, 30): 50.0,
        ("fedavg", 4, 30): 60.0,
        ("episode_unclipped", 2, 30): 90.0,
    }
    cell = ("naive_parallel_clip", 1, 30)
    claims = ablation_claims(kitchen, made_results(accuracies), paper.SNLI_SETTINGS, cell, 35.0)
    assert {c.verdict for c in claims} == {"does not hold"}
    effects = SnliEffects()._claims(kitchen, made_results(accuracies))
    assert effects[0].verdict == "does not hold"


@pytest.mark.slow
def test_a_recipe_at_scale_smoke_shows_its_runs_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    kitchen = Kitchen("smoke", tmp_path / "out")
    chosen = RECIPES["sentiment140-steps"]
    assert chosen.missing(kitchen) == ""
    outcomes = sweep(chosen.experiments(kitchen), SweepOptions(kitchen.runs, jobs=1))
    assert {o.status for o in outcomes} == {"finished"}
    served = serve(chosen, kitchen)
    assert {c.verdict for c in served.claims} == {"not testable at this scale"}
    table = (kitchen.folder / chosen.name / "table.csv").read_text()
    rows = list(csv.reader(table.splitlines()))[1:]
    for row, experiment in zip(rows, chosen.experiments(kitchen), strict=True):
        summary = json.loads((kitchen.runs / experiment.name / "summary.json").read_text())
        assert row[3] == f"{summary['metrics']['train_loss']:.3f}"
        assert row[4] == f"{100 * summary['metrics']['test_accuracy']:.1f}%"
