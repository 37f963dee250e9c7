"""Answers that differ only by rounding are the same answer."""

from __future__ import annotations

import torch

from episode.flower.secure.sketches import Sketches, sketch_of

ABOUT, OTHER = b"subject1", b"subject2"
FOUR, THREE = b"cohort-4", b"cohort-3"


def test_the_same_values_in_another_order_of_addition_are_noticed() -> None:
    rows = torch.randn(8, 1000, generator=torch.Generator().manual_seed(1))
    forward, backward = (sum(r, torch.zeros(1000)) for r in (rows, rows.flip(0)))
    assert not torch.equal(forward, backward)
    sketches = Sketches()
    sketches.add(ABOUT, FOUR, sketch_of(forward))
    sketches = Sketches.read(sketches.blob())
    again = sketch_of(backward)
    assert sketches.other_cohort_has(ABOUT, THREE, again)
    assert not sketches.other_cohort_has(ABOUT, FOUR, again), "the same cohort may have it again"
    assert not sketches.other_cohort_has(OTHER, THREE, again)
    fresh = sketch_of(forward + 0.01 * torch.randn(1000, generator=torch.Generator()))
    assert not sketches.other_cohort_has(ABOUT, THREE, fresh)


def test_old_sketches_are_forgotten() -> None:
    sketches = Sketches()
    for k in range(40):
        sketches.add(ABOUT, FOUR, sketch_of(torch.full((3,), float(k + 1))))
    assert len(Sketches.read(sketches.blob()).entries) == 16
