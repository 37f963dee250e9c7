"""Evaluations as sums: losses, right answers and sizes of all of a site's blocks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from episode.errors import EpisodeError
from episode.flower.secure.fixed_point import Words
from episode.flower.secure.form import Segment, write_values

_BITS = 24
_COLUMNS = 3
"""Loss, right answers and size, at the end of a block's row (see `tasks/evaluation.py`)."""


def write_part(part: Mapping[str, Any] | None, sites: int) -> tuple[list[str], Words]:
    """Return the names of a site's splits, and their sums as words.

    Raises:
        EpisodeError: The task's parts are not rows that can be added up.
    """
    try:
        assert part is not None
        sums = {
            name: torch.tensor(
                [sum(float(row[k]) for row in rows) for k in range(-_COLUMNS, 0)],
                dtype=torch.float64,
            )
            for name, rows in sorted(part.items())
        }
    except (AssertionError, AttributeError, TypeError, ValueError, IndexError):
        raise EpisodeError(
            "This task is not evaluated in blocks of examples, which is what a sum over sites can "
            "hold: evaluate the model elsewhere."
        ) from None
    return list(sums), write_values(sums, evaluation_form(list(sums)), sites)


def evaluation_form(names: Sequence[str]) -> list[Segment]:
    """Return the form of an evaluation of these splits."""
    return [Segment(name, _COLUMNS, _BITS) for name in names]


def read_part(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the sums of all sites as the one part of a task."""
    found = {}
    for name, values in sums.items():
        loss, right, size = values.tolist()
        found[name] = [[0, 0, 0, loss, round(right), round(size)]]
    return found
