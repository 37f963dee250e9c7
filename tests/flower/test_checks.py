"""Arrays, metrics and labels as they are read: what is accepted, and the words for what is not."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, MetricRecord

from episode.flower.checks import (
    Rejected,
    check_label,
    metric_is_finite,
    read_array,
    read_metrics,
    view_array,
)
from episode.flower.messages import pack

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def stored(values: Any = VALUES, **changes: Any) -> Array:
    """Return an array as Flower sends it, with some of its fields changed."""
    given = Array(values)
    fields = {name: getattr(given, name) for name in ("dtype", "shape", "stype", "data")}
    return Array(**{**fields, **changes})


def test_an_array_of_the_right_form_is_read() -> None:
    seen = view_array("x", stored(), (2, 3), "float32")
    assert seen.tolist() == VALUES.tolist()
    assert seen.dtype == np.float32
    read = read_array("x", stored(), (2, 3), torch.float32)
    assert read.tolist() == VALUES.tolist()
    read += 1  # it is a copy, and not a view of the message
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert torch.equal(read_array("x", pack({"x": half})["x"], (2,), torch.bfloat16), half)


def padded(values: Any, spaces: int) -> bytes:
    """Return an array in numpy's format, with more padding than numpy writes."""
    data = stored(values).data
    start = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:start].rstrip() + b" " * spaces + b"\n"
    return data[:8] + len(header).to_bytes(2, "little") + header + data[start:]


def test_a_header_may_be_of_any_length() -> None:
    for spaces in (0, 7, 300):
        array = stored(data=padded(VALUES, spaces))
        assert view_array("x", array, (2, 3), "float32").tolist() == VALUES.tolist()


def in_version_2(values: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=(2, 0))
    return file.getvalue()


OTHER = "^sent a velocity of {} instead of float32 \\[2, 3\\]$"
NO_NUMPY = "^sent a velocity that cannot be read: it is not in numpy's format$"


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (stored(VALUES.astype(np.float64)), OTHER.format(r"float64 \[2, 3\]")),
        (stored(VALUES.reshape(3, 2)), OTHER.format(r"float32 \[3, 2\]")),
        (stored(VALUES.reshape(3, 2), shape=(2, 3)), NO_NUMPY),
        (stored(VALUES.astype(np.int32), dtype="float32"), NO_NUMPY),
        (stored(stype="pickle"), NO_NUMPY),
        (stored(data=in_version_2(VALUES)), NO_NUMPY),
        (stored(data=b"\x80" + stored().data[1:]), NO_NUMPY),
        (stored(data=b""), NO_NUMPY),
        (stored(data=stored().data[:-1]), "^sent a velocity that .*: 23 bytes, not 24$"),
        (stored(data=stored().data + b"\0"), "^sent a velocity that .*: 25 bytes, not 24$"),
    ],
)
def test_an_array_of_another_form_is_rejected_in_words(array: Array, reason: str) -> None:
    for read in (
        lambda: view_array("velocity", array, (2, 3), "float32"),
        lambda: read_array("velocity", array, (2, 3), torch.float32),
    ):
        with pytest.raises(Rejected, match=reason):
            read()


class Anything(dict[str, Any]):
    """A record with values that Flower would not let pass."""


def test_required_metrics_are_read_and_others_ignored() -> None:
    record = MetricRecord({"loss": 2, "drift": 0.0, "clipped": 0.5, "extra": 1.0})
    read = read_metrics(record, ["largest_norm", "loss", "drift"], {"loss", "drift", "clipped"})
    assert read == {"largest_norm": None, "loss": 2.0, "drift": 0.0}
    assert list(read) == ["largest_norm", "loss", "drift"]
    assert type(read["loss"]) is float


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("loss", None, "^sent no loss$"),
        ("loss", True, "^sent a loss that is not a number$"),
        ("loss", "3", "^sent a loss that is not a number$"),
        ("loss", [3.0], "^sent a loss that is not a number$"),
        ("clipped", -1e-9, "^sent a clipped of -1e-09, which is not from 0 to 1$"),
        ("clipped", 1.5, "^sent a clipped of 1.5, which is not from 0 to 1$"),
        ("drift", -2.0, "^sent a drift of -2, which is not from 0 to inf$"),
    ],
)
def test_a_metric_that_is_missing_or_nonsense_is_rejected(
    name: str, value: Any, reason: str
) -> None:
    record: Any = Anything({name: value})
    with pytest.raises(Rejected, match=reason):
        read_metrics(record, [name], [name])


@pytest.mark.parametrize(
    ("name", "value"),
    [("clipped", 0.0), ("clipped", 1.0), ("drift", 0.0), ("loss", -math.inf), ("loss", math.inf)],
)
def test_the_ends_of_a_range_belong_to_it(name: str, value: float) -> None:
    assert read_metrics(MetricRecord({name: value}), [name], [name]) == {name: value}


def test_a_metric_is_finite_below_its_largest_value() -> None:
    found = [metric_is_finite(v) for v in (None, 0.0, -9.99e299, 1e300, -1e300, math.nan)]
    assert found == [True, True, True, False, False, False]


def test_a_label_must_say_the_same_in_the_same_type() -> None:
    check_label({"round": 3, "more": 1}, {"round": 3})
    for given, words in ((4, "4"), (True, "True"), (None, "None"), ("3", "'3'")):
        with pytest.raises(Rejected, match=f"^replied about round {words} instead of 3$"):
            check_label({"status": "done", "round": given}, {"status": "done", "round": 3})
    with pytest.raises(Rejected, match=r"^replied about round None instead of 3$"):
        check_label({}, {"round": 3})
    with pytest.raises(Rejected, match=r"^replied about tag 'a{59}\.\.\. instead of 'b'$"):
        check_label({"tag": "a" * 100}, {"tag": "b"})


def test_a_reason_is_one_line_and_keeps_the_answer() -> None:
    answer = object()
    rejected = Rejected("sent\n\x1b[31mred ink", answer)
    assert str(rejected) == "sent red ink"
    assert rejected.not_finite is answer
    assert Rejected("late").not_finite is None
