"""The maths at both ends of a round, on flat vectors and on lists of blocks alike."""

from __future__ import annotations

import pytest
import torch

from episode import ALGORITHMS, Algorithm
from episode.federation.corrections import (
    first_memory_is_probed,
    mean_memory,
    new_memory,
    write_shift,
)


def blocks(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([value]) for value in values]


def numbers(vector: list[torch.Tensor]) -> list[float]:
    return [block.item() for block in vector]


def test_a_memory_is_the_mean_gradient_and_its_change_is_against_the_old_one() -> None:
    memory, change = new_memory(blocks(4, 8), 4, blocks(3, 1))
    assert (numbers(memory), numbers(change)) == ([1, 2], [-2, 1])
    memory, change = new_memory(blocks(4, 8), 4, None)
    assert numbers(memory) == numbers(change) == [1, 2]


def test_the_mean_of_all_memories_moves_by_the_share_of_those_that_changed() -> None:
    assert numbers(mean_memory(blocks(1, 2), blocks(4, 8), 0.25)) == [2, 4]
    assert numbers(mean_memory(blocks(1, 2), blocks(4, 8))) == [5, 10]


def test_a_correction_is_global_minus_local_which_may_be_zero() -> None:
    out = blocks(0, 0)
    write_shift(out, blocks(5, 6), blocks(1, 4))
    assert numbers(out) == [4, 2]
    write_shift(out, blocks(5, 6), None)
    assert numbers(out) == [5, 6]


def test_vectors_of_other_blocks_do_not_go_together() -> None:
    long, short = blocks(1, 2), blocks(1)
    for given in ((long, short, None), (long, short, long), (long, long, short)):
        with pytest.raises(ValueError, match="is shorter than"):
            write_shift(*given)
    with pytest.raises(ValueError, match="is shorter than"):
        mean_memory(long, short)


def test_a_first_memory_is_probed_if_it_decides_about_clipping_or_on_request() -> None:
    probed = [name for name, a in ALGORITHMS.items() if first_memory_is_probed(a)]
    assert probed == ["episode_plus_plus"]
    assert first_memory_is_probed(Algorithm.named("scaffold", probe_first=True))
