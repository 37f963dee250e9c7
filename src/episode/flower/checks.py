"""What a site sends becomes numbers here, or is rejected with a reason.

Bytes are not handed to a parser that could be led astray: an array must begin with the very header
that numpy writes for the shape and type that are expected, so archives, pickles and claims about
other shapes are never looked into.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, MetricRecord
from torch import Tensor

from episode.flower.texts import one_line

_NUMPY = "numpy.ndarray"
"""Flower's name for an array in numpy's format."""
_START = b"\x93NUMPY\x01\x00"
_LARGEST_METRIC = 1e300
"""Metrics are added up over sites; larger ones might overflow."""
_RANGES = {
    "clipped": (0.0, 1.0),
    "largest_norm": (0.0, math.inf),
    "drift": (0.0, math.inf),
    "correction_norm": (0.0, math.inf),
    "gradient_norm": (0.0, math.inf),
}


class Rejected(Exception):  # noqa: N818 - the message is rejected; the run has not failed
    """A message must not be used; the reason continues a sentence about its sender."""

    def __init__(self, reason: str, not_finite: Any = None) -> None:
        super().__init__(one_line(reason))
        self.not_finite = not_finite
        """The answer, if all that is wrong with it is that it has left the finite numbers."""


def read_array(name: str, array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the tensor that an array holds; reject one of another shape, type or format.

    Args:
        name: What the array is, for the reason.
        array: What was sent.
        shape: The shape that it must have.
        dtype: The type that it must have; bfloat16 travels as its bits, in int16.
    """
    stored = torch.int16 if dtype == torch.bfloat16 else dtype
    seen = view_array(name, array, shape, str(stored).removeprefix("torch."))
    return torch.from_numpy(seen.copy()).view(dtype)


def view_array(name: str, array: Array, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
    """Return what an array holds, to be read only; reject one of another shape, type or format.

    Args:
        name: What the array is, for the reason.
        array: What was sent.
        shape: The shape that it must have.
        kind: Numpy's name of the type that it must have.
    """
    if array.dtype != kind or tuple(array.shape) != shape:
        raise Rejected(
            f"sent a {name} of {array.dtype} {list(array.shape)} instead of {kind} {list(shape)}"
        )
    wanted = np.dtype(kind)
    header = f"{{'descr': {wanted.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    start = 10 + int.from_bytes(array.data[8:10], "little")
    if (
        array.stype != _NUMPY
        or array.data[:8] != _START
        or array.data[10:start].rstrip() != header.encode()
    ):
        raise Rejected(f"sent a {name} that cannot be read: it is not in numpy's format")
    size = math.prod(shape) * wanted.itemsize
    if len(array.data) - start != size:
        raise Rejected(
            f"sent a {name} that cannot be read: {len(array.data) - start} bytes, not {size}"
        )
    return np.frombuffer(array.data, wanted, offset=start).reshape(shape)


def read_metrics(
    record: MetricRecord, names: Collection[str], required: Collection[str]
) -> dict[str, float | None]:
    """Return metrics by name; reject a record that lacks a required one or holds nonsense.

    Args:
        record: What was sent.
        names: The metrics of such a reply; what else was sent is ignored.
        required: Those that a site always measures for such a reply. The others are None.
    """
    metrics: dict[str, float | None] = dict.fromkeys(names)
    for name in names:
        if name not in required:
            continue
        value: Any = record.get(name)
        if value is None:
            raise Rejected(f"sent no {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Rejected(f"sent a {name} that is not a number")
        least, most = _RANGES.get(name, (-math.inf, math.inf))
        if value < least or value > most:
            raise Rejected(f"sent a {name} of {value:g}, which is not from {least:g} to {most:g}")
        metrics[name] = float(value)
    return metrics


def metric_is_finite(value: float | None) -> bool:
    """Whether a metric is a number that can be added up; one that was not measured is."""
    return value is None or abs(value) < _LARGEST_METRIC


def check_label(label: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Reject a reply whose label says something else than is expected, or in another type."""
    for name, value in expected.items():
        given = label.get(name)
        if type(given) is not type(value) or given != value:
            raise Rejected(f"replied about {name} {one_line(repr(given), 60)} instead of {value!r}")
