"""The demo's sentences are computed from the runs that it shows."""

from __future__ import annotations

from typing import Any

from episode import ALGORITHMS, Algorithm
from episode.studies.demo import BEST, SHARED, conclusion


def row(name: str, accuracy: float | None, shared: float | None, exchanges: int) -> dict[str, Any]:
    status = "diverged" if accuracy is None else "finished"
    return {
        "algorithm": name, "accuracy": accuracy, "shared": shared, "exchanges": exchanges,
        "status": status,
    }  # fmt: skip


def test_every_algorithm_of_the_grid_has_a_setting_of_its_own() -> None:
    """Correction, clipping and trust; rows that differ from these otherwise are not in the demo."""
    cells = {n: Algorithm(a.correction, a.clipping, trust=a.trust) for n, a in ALGORITHMS.items()}
    assert list(BEST) == [n for n, a in ALGORITHMS.items() if a == cells[n]]
    assert BEST["celgc"] == SHARED


def test_the_conclusion_names_who_is_best_who_is_level_and_who_needs_its_own_setting() -> None:
    rows = [
        row("a", 0.98, 0.97, 480), row("b", 0.97, 0.30, 120), row("c", 0.90, 0.95, 60),
        row("d", None, None, 60),
    ]  # fmt: skip
    text = conclusion(rows)
    assert "a reaches 0.980 with 480 exchanges; within 2 points of it: b (120 exchanges)." in text
    assert "a 0.970, c 0.950, b 0.300 come first; more than 10 points lost there: b." in text


def test_nothing_is_concluded_from_runs_that_all_diverged() -> None:
    assert conclusion([row("a", None, None, 1)]) == "No run finished."
