"""Recipes: what they need, what they write, and that their verdicts can go either way."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from episode.errors import EpisodeError
from episode.paper import RECIPES, RecipeContext, make, published as paper, recipe, write_index
from episode.paper.published import Case
from episode.paper.recipe import JudgedClaim
from episode.paper.run_recipe import RunRecipe
from episode.paper.run_results import RunResults
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


@pytest.mark.parametrize(
    "name", [n for n, r in RECIPES.items() if isinstance(r, RunRecipe) and r.task.datasets]
)
def test_without_their_data_recipes_say_what_to_fetch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path))
    missing = RECIPES[name].missing(RecipeContext("laptop", tmp_path / "out"))
    assert "episode data fetch" in missing
    assert missing.count(".") <= 3


def test_at_the_papers_scale_runs_have_the_papers_settings(tmp_path: Path) -> None:
    context = RecipeContext("paper", tmp_path)
    snli = RECIPES["snli-ablation"].experiments(context)
    assert len(snli) == 37
    for e in snli:
        assert (e.schedule.eta, e.schedule.gamma) == (0.3, 0.03)
        assert e.budget.rounds * e.budget.local_steps >= 26_825
        assert e.schedule.milestones == (0.6, 0.8)
    assert {e.budget.local_steps for e in snli} == {1, 2, 4, 8, 16}
    imagenet = RECIPES["imagenet"].experiments(context)
    assert {e.budget.local_steps for e in imagenet} == {64, 128}
    assert {(e.algorithm.momentum, e.algorithm.weight_decay) for e in imagenet} == {(0.9, 5e-5)}
    cifar = RECIPES["cifar10"].experiments(context)
    assert {(e.schedule.eta, e.schedule.gamma) for e in cifar} == {(1.0, 0.5)}


def test_recipes_share_their_runs(tmp_path: Path) -> None:
    context = RecipeContext("paper", tmp_path)
    effects = {e.id for e in RECIPES["snli"].experiments(context)}
    assert effects == {e.id for e in RECIPES["snli-time"].experiments(context)}
    assert effects < {e.id for e in RECIPES["snli-ablation"].experiments(context)}


def test_synthetic_and_complexity_are_made_at_full_scale(tmp_path: Path) -> None:
    context = RecipeContext("smoke", tmp_path)
    for name in ("synthetic", "complexity"):
        served = make(RECIPES[name], context)
        assert {c.verdict for c in served.claims} == {"holds"}
        for file in ("figure.png", "figure.pdf", "table.md", "table.tex", "table.csv",
                     "claims.md", "claims.json", "README.md"):  # fmt: skip
            assert (tmp_path / name / file).stat().st_size > 0
        for file in ("table.tex", "claims.tex"):
            assert (tmp_path / name / file).read_text().isascii()
        write_index(context, [served])  # what was made before stays listed
    listed = (tmp_path / "README.md").read_text()
    assert "synthetic/README.md" in listed
    assert "complexity/README.md" in listed
    rows = list(csv.reader((tmp_path / "synthetic" / "table.csv").read_text().splitlines()))
    x, f = map(float, rows[3][3].split(", "))  # H = 4, EPISODE
    assert x == pytest.approx(2.598, abs=0.01)
    assert f == pytest.approx(-17.95, abs=0.01)


def made_results(accuracies: dict[Case, float]) -> RunResults:
    def run(accuracy: float) -> StoredRun:
        figures = {"test_accuracy": accuracy / 100, "train_loss": 1 - accuracy / 100}
        rounds = [{"round": 9, "seconds": 1.0, "metrics": figures}]
        return StoredRun(
            Path("x"),
            {"budget": {"local_steps": 1}},
            rounds,
            {"status": "finished", "metrics": figures},
        )

    return RunResults({cell: [run(a)] for cell, a in accuracies.items()})


def judged(name: str, context: RecipeContext, results: RunResults) -> list[JudgedClaim]:
    chosen = RECIPES[name]
    assert isinstance(chosen, RunRecipe)
    return chosen.judge(context, results)


def papers_results() -> dict[Case, float]:
    found = {cell: accuracy for cell, (_, accuracy) in paper.SNLI_ABLATION.items()}
    return {Case("naive_parallel_clip", 1, 30): 82.4, **found}


def test_judged_by_the_papers_own_numbers_claims_fare_as_its_table_says(tmp_path: Path) -> None:
    """The first claim does not hold in the paper's own table; the others do."""
    context = RecipeContext("laptop", tmp_path)
    results = made_results(papers_results())
    claims = judged("snli-ablation", context, results)[:5]
    assert [c.verdict for c in claims] == ["does not hold", *["holds"] * 4]
    assert claims[0].evidence.startswith("in 4 of 6 settings: ")
    assert "; I = 8, s = 30%: SCAFFOLD (clipped) 77.1%, CELGC 78.0%" in claims[0].evidence
    effects = judged("snli", context, results)
    verdicts = {c.text: c.verdict for c in effects}
    nearly = "EPISODE nearly matches NaiveParallelClip's test accuracy for I ≤ 8"
    assert verdicts[nearly] == "holds"
    assert list(verdicts.values()).count("not testable at this scale") == 1
    assert (
        verdicts["CELGC worsens drastically as the clients' data become more different"] == "holds"
    )
    found = {cell: accuracy for cell, (_, accuracy) in paper.IMAGENET.items()}
    ahead = [c for c in judged("imagenet", context, made_results(found)) if "most where" in c.text]
    assert [c.verdict for c in ahead] == ["does not hold"], "it is 0.28 points at both"
    better = found | {Case("episode", 64, 50): 75.0}
    ahead = [c for c in judged("imagenet", context, made_results(better)) if "most where" in c.text]
    assert [c.verdict for c in ahead] == ["holds"]


def test_what_a_recipe_sets_itself_cannot_be_set(tmp_path: Path) -> None:
    for override in ("budget.rounds=2", "algorithm=celgc", "seed=3"):
        with pytest.raises(EpisodeError, match="a recipe sets"):
            RECIPES["digits"].experiments(RecipeContext("smoke", tmp_path, overrides=[override]))


def test_a_mean_over_some_of_the_runs_says_so() -> None:
    cell = Case("episode", 4, 30.0)
    (run,) = made_results({cell: 80.0}).runs[cell]
    diverged = StoredRun(Path("y"), {}, [], {"status": "diverged", "metrics": {}})
    assert RunResults({cell: [run, run]}).texts(cell)[1] == "80.0 ± 0.0%"
    assert RunResults({cell: [run, diverged]}).texts(cell)[1] == "80.0% (1 of 2 runs)"


def test_verdicts_can_fail(tmp_path: Path) -> None:
    context = RecipeContext("laptop", tmp_path)
    accuracies = papers_results() | {
        ("episode", 4, 30): 50.0,
        ("fedavg", 4, 30): 60.0,
        ("episode_unclipped", 2, 30): 90.0,
    }
    claims = judged("snli-ablation", context, made_results(accuracies))[:5]
    assert {c.verdict for c in claims} == {"does not hold"}
    effects = judged("snli", context, made_results(accuracies))
    assert effects[0].verdict == "does not hold"


@pytest.mark.slow
def test_a_recipe_at_scale_smoke_shows_its_runs_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    context = RecipeContext("smoke", tmp_path / "out")
    chosen = RECIPES["sentiment140-steps"]
    assert chosen.missing(context) == ""
    outcomes = sweep(chosen.experiments(context), SweepOptions(context.runs, jobs=1))
    assert {o.status for o in outcomes} == {"finished"}
    served = make(chosen, context)
    assert {c.verdict for c in served.claims} == {"not testable at this scale"}
    table = (context.folder / chosen.name / "table.csv").read_text()
    rows = list(csv.reader(table.splitlines()))[1:]
    for row, experiment in zip(rows, chosen.experiments(context), strict=True):
        summary = json.loads((context.runs / experiment.name / "summary.json").read_text())
        assert row[3] == f"{summary['metrics']['train_loss']:.3f}"
        assert row[4] == f"{100 * summary['metrics']['test_accuracy']:.1f}%"
