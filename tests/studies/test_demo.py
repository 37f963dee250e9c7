"""The demo's sentences are computed from the runs that it shows."""

from __future__ import annotations

from typing import Any

from episode import ALGORITHMS, Algorithm, Unclipped
from episode.studies.demo import (
    BEST,
    BEST_BY_PIXEL,
    BY_PIXEL,
    DIGITS,
    SHARED,
    WITHOUT_CLIPPING,
    what_clipping_gains,
    who_is_first,
    who_needs_an_own_setting,
)


def row(name: str, accuracy: float | None, shared: float | None, exchanges: int) -> dict[str, Any]:
    status = "diverged" if accuracy is None else "finished"
    return {
        "algorithm": name, "accuracy": accuracy, "shared": shared, "exchanges": exchanges,
        "status": status,
    }  # fmt: skip


ROWS = [
    row("a", 0.98, 0.97, 480), row("b", 0.97, 0.30, 120), row("c", 0.90, 0.95, 60),
    row("d", None, None, 60),
]  # fmt: skip


def test_every_algorithm_of_the_grid_has_a_setting_of_its_own() -> None:
    """Correction, clipping and trust; rows that differ from these otherwise are not in the demo."""
    cells = {n: Algorithm(a.correction, a.clipping, trust=a.trust) for n, a in ALGORITHMS.items()}
    assert list(BEST) == [n for n, a in ALGORITHMS.items() if a == cells[n]]
    assert BEST["celgc"] == SHARED


def test_pairs_differ_in_their_clipping_alone() -> None:
    for clipped, plain in WITHOUT_CLIPPING.items():
        a, b = ALGORITHMS[clipped], ALGORITHMS[plain]
        assert b == Algorithm(a.correction, Unclipped(), trust=a.trust)
        assert a.clipping != Unclipped()
        assert {clipped, plain} <= set(BEST_BY_PIXEL)


def test_who_is_first_and_who_is_level() -> None:
    text = who_is_first(DIGITS, ROWS)
    assert "a reaches 0.980 with 480 exchanges; within 2 points of it: b (120 exchanges)." in text
    assert text.endswith("these come first: b 0.970.")
    wider = who_is_first(BY_PIXEL, [row("a", 0.98, None, 480), *ROWS[2:], row("b", 0.86, None, 9)])
    assert wider.endswith("these come first: c 0.900, b 0.860.")


def test_who_needs_an_own_setting() -> None:
    text = who_needs_an_own_setting(ROWS)
    assert "a 0.970, c 0.950, b 0.300 come first; more than 10 points lost there: b." in text


def test_what_clipping_gains_may_be_negative_and_counts_a_diverged_run_as_nothing() -> None:
    accuracies = {
        "naive_parallel_clip": 0.7, "parallel_sgd": None, "episode": 0.6,
        "episode_unclipped": 0.62, "episode_trust": 0.7,
    }  # fmt: skip
    text = what_clipping_gains([row(name, value, None, 1) for name, value in accuracies.items()])
    assert "naive_parallel_clip 0.700, parallel_sgd 0.000 (+70 points);" in text
    assert text.endswith("episode 0.600, episode_unclipped 0.620 (-2 points).")


def test_nothing_is_concluded_from_runs_that_all_diverged() -> None:
    assert who_is_first(DIGITS, [row("a", None, None, 1)]) == "No run finished."
    assert who_needs_an_own_setting([row("a", None, None, 1)]).endswith("no run finished.")
