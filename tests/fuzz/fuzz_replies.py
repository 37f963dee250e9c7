"""Replies and introductions of a Flower site that lies: it is left out, and the run goes on."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from fuzzing import Case, Kind, as_bytes, as_text, is_one_sentence, odd_text, quiet
from hypothesis import strategies as st
from local_grid import LocalGrid

from episode.flower.messages import ANSWER, ARRAYS, METRICS
from federation import Without, app, in_simulation, on_flower

REPLIES = {
    "episode": (1, 4),
    "fedavg": (1, 2),
    "scaffold": (1, 2),
    "episode_plus_plus": (1, 3),
    "naive_parallel_clip": (1, 4),
}
"""Which of a site's replies come first and last, after its introduction."""
LIAR, ROUNDS = 2, 2
FAR = 5.0
"""A lie moves the model less than this; γ·I is 0.15."""
RECORDS = (ANSWER, ARRAYS, METRICS)
MAKERS = {"arrays": ArrayRecord, "config": ConfigRecord, "metrics": MetricRecord}
NAMES = ("x", "gradient", "memory", "velocity", "floats", "integers")
FIELDS = (
    "status", "client", "round", "tag", "error", "examples", "partitions", "size", "dtype",
    "layout", "evaluates",
)  # fmt: skip
places = st.floats(0, 1, exclude_max=True)
scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 40),
    st.floats(),
    st.sampled_from([0.0, -1.0, 1e300, 1e308, float("nan"), float("inf"), 2**62]),
)
long_texts = st.sampled_from(["x" * 100_000, "line\n" * 10_000, "\x1b[2J\x1b]0;t\x07"])
labels = st.one_of(
    scalars,
    st.booleans(),
    odd_text,
    st.sampled_from(["done", "failed", "torch.float32", "torch.float64", "{}", "[]", "[" * 999]),
    st.lists(st.integers(-9, 9), max_size=3),
    st.lists(odd_text, min_size=1, max_size=2),
    long_texts,
)
shapes = st.lists(st.sampled_from([0, 1, 3, 12, 33, 34, -1, 2**31, 2**63, 2**70]), max_size=3)
kinds = st.sampled_from(["float64", "float32", "int64", "float16", "complex64", "O", "", "x" * 999])


def lie(what: str, **details: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"lie": st.just(what), **details})


few_bytes = st.binary(max_size=8).map(as_text)
codes, lengths = st.sampled_from(["f8", "f4", "i8", "c8"]), st.sampled_from([0, 1, 12, 33])
floats = st.lists(st.floats(), max_size=2)
METRIC_NAMES = ("loss", "clipped", "largest_norm", "drift", "gradient_norm")
lies = st.one_of(
    lie("bytes", array=places, at=places, to=few_bytes, drop=st.integers(0, 300)),
    lie("claim", array=places, dtype=kinds, shape=shapes),
    lie("values", array=places, at=places, to=scalars, all=st.booleans()),
    lie("forget", array=places),
    lie("add", name=st.sampled_from(NAMES) | odd_text, dtype=codes, length=lengths),
    lie("label", field=st.sampled_from(FIELDS) | odd_text, to=labels),
    lie("unlabel", field=st.sampled_from(FIELDS)),
    lie("metric", field=st.sampled_from(METRIC_NAMES) | odd_text, to=scalars | floats),
    lie("unmetric", field=st.sampled_from(METRIC_NAMES)),
    lie("record", record=st.sampled_from(RECORDS), kind=st.sampled_from([*MAKERS, "none"])),
    lie("error", code=st.sampled_from([0, 2, 3, 5, 8, -1, 2**31 - 1]), text=odd_text | long_texts),
)  # fmt: skip
cases = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(sorted(REPLIES)),
        "when": st.sampled_from(["introduction", "first reply", "last reply", "last reply"]),
        "lies": st.lists(lies, min_size=1, max_size=2),
    }
)


def told(reply: Message, lie: Case) -> Message:
    """Return a reply with a lie in it."""
    content = reply.content
    if lie["lie"] == "error":
        return Message(Error(lie["code"], lie["text"]), reply_to=reply)
    if lie["lie"] == "record":
        content.pop(lie["record"], None)
        if lie["kind"] != "none":
            content[lie["record"]] = MAKERS[lie["kind"]]()
    elif "field" in lie:
        records: Any = content.metric_records if "metric" in lie["lie"] else content.config_records
        record = records.get(METRICS if "metric" in lie["lie"] else ANSWER, {})
        record.pop(lie["field"], None)
        if "to" in lie:
            record[lie["field"]] = lie["to"]
    else:
        change_arrays(content.array_records.get(ARRAYS, ArrayRecord()), lie)
    return reply


def change_arrays(arrays: ArrayRecord, lie: Case) -> None:
    if lie["lie"] == "add":
        arrays[lie["name"]] = Array(np.ones(lie["length"], np.dtype(lie["dtype"])))
        return
    if not arrays:
        return
    name = sorted(arrays)[int(lie["array"] * len(arrays))]
    found = arrays.pop(name)
    if lie["lie"] == "claim":
        arrays[name] = Array(lie["dtype"], tuple(lie["shape"]), found.stype, found.data)
    elif lie["lie"] == "bytes":
        at = int(lie["at"] * len(found.data))
        data = found.data[:at] + as_bytes(lie["to"]) + found.data[at + lie["drop"] :]
        arrays[name] = Array(found.dtype, found.shape, found.stype, data)
    elif lie["lie"] == "values":
        arrays[name] = found
        with contextlib.suppress(ValueError):  # another lie has made it unreadable
            arrays[name] = Array(with_values(found.numpy().copy(), lie))


def with_values(values: np.ndarray[Any, Any], lie: Case) -> np.ndarray[Any, Any]:
    at = slice(None) if lie["all"] or not values.size else int(lie["at"] * values.size)
    whole = values.dtype.kind != "f"
    to = int(np.clip(np.nan_to_num(lie["to"]), -(2.0**62), 2.0**62)) if whole else float(lie["to"])
    values.reshape(-1)[at] = to
    return values


@functools.cache
def honest(algorithm: str, missing: tuple[tuple[int, int], ...]) -> dict[str, torch.Tensor]:
    """Return the model of the sites that tell the truth, without the liar in some rounds."""
    with quiet():
        return in_simulation(algorithm, Without(missing), rounds=ROUNDS)


def check(case: Case) -> str:
    """Play a run in which one site of three lies once."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    replies: list[Message] = []
    first, last = REPLIES[case["algorithm"]]
    turn = {"introduction": 0, "first reply": first, "last reply": last}[case["when"]]

    def fault(client: int, reply: Message) -> Message:
        if client != LIAR:
            return reply
        replies.append(reply)
        for lie in case["lies"] if len(replies) == turn + 1 else []:
            reply = reply if reply.has_error() else told(reply, lie)
        return reply

    network = LocalGrid(app(), [2, 1, 0])
    options = {"min_replies": 2, "num_sites": 3, "start_seconds": 0.3, "deadline": 0.5}
    with quiet():
        ended = on_flower(case["algorithm"], fault, grid=network, rounds=ROUNDS, **options)
    for name, values in ended.model.items():
        assert torch.isfinite(values).all(), name
    missing = []
    for record in ended.history:
        for client, reason in record.get("missing", {}).items():
            assert int(client) == LIAR
            is_one_sentence(reason)
            assert len(reason) < 500
            missing.append((record["round"], LIAR))
    assert len(ended.history) >= ROUNDS
    assert len(replies) > turn
    expected = honest(case["algorithm"], tuple(missing))
    if missing and case["algorithm"] in ("episode", "fedavg"):
        assert all(torch.equal(ended.model[name], t) for name, t in expected.items())
    if case["algorithm"] == "episode":  # whose clipping limits what a lie can do
        for name in ("head.weight", "norm.weight"):
            assert (ended.model[name] - expected[name]).norm() < FAR, name
    return "left out" if missing else "believed"


KIND = Kind("replies", cases, check)
