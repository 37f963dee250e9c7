"""What a site is asked, what it must measure for that, and how its reply is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from episode import ALGORITHMS, Algorithm
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import CORRECTION_METRICS, TRUST_METRICS
from episode.flower.checks import Rejected, read_metrics
from episode.flower.messages import Answer, Ask, buffers_of, label_of, labelled, pack, unpack

ASK = Ask(
    tag="",
    seed=0,
    algorithm="",
    phase="local",
    round=3,
    local_steps=1,
    eta=0.5,
    gamma=1.0,
    G_norm=1.0,
)
ALWAYS = {"clipped", "drift"}


def test_a_loss_is_missing_only_if_the_probe_was_the_only_batch() -> None:
    reusing = Algorithm.named("episode", reuse_probe=True)
    assert ASK.measured(ALGORITHMS["fedavg"], 0, False) == ALWAYS | {"loss"}
    assert ASK.measured(reusing, 0, True) == ALWAYS
    assert replace(ASK, local_steps=2).measured(reusing, 0, True) == ALWAYS | {"loss"}


def test_norms_are_measured_where_the_clipping_needs_them() -> None:
    episode = ALGORITHMS["episode"]
    assert "largest_norm" in ASK.measured(ALGORITHMS["celgc"], 0, False)
    assert "largest_norm" not in ASK.measured(episode, 0, True)
    assert "largest_norm" in replace(ASK, G_norm=3.0).measured(episode, 0, True)


def test_one_client_in_so_many_measures_its_correction() -> None:
    ask, episode = replace(ASK, measure_every=4), ALGORITHMS["episode"]
    assert [CORRECTION_METRICS[0] in ask.measured(episode, c, True) for c in range(4)] == [
        0,
        1,
        0,
        0,
    ]
    assert not ask.measured(episode, 1, False) & {*CORRECTION_METRICS}


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_a_share_is_from_0_to_1(value: float) -> None:
    assert read_metrics(MetricRecord({"clipped": 1.0}), ["clipped"], ["clipped"]) == {"clipped": 1}
    with pytest.raises(Rejected, match="which is not from 0 to 1"):
        read_metrics(MetricRecord({"clipped": value}), ["clipped"], ["clipped"])


def ask(phase: Any, algorithm: Algorithm, **more: Any) -> Ask:
    return Ask(phase, "t1", 0, json.dumps(algorithm.to_dict()), round=3, **more)


SENT = {"x": torch.zeros(2, dtype=torch.float64), "buffers": Buffers()}
ABOUT = {"status": "done", "client": 5, "round": 3, "tag": "t1"}
NUMBERS = {"loss": 2.0, "clipped": 0.5, "drift": 1.0, "largest_norm": 4.0}


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_an_ask_arrives_as_it_was_sent() -> None:
    sent = replace(ASK, tag="t1", batches=2, memorise=True, told="{}")
    content = RecordDict({"episode.ask": sent.record("t0")})
    assert Ask.of(content) == replace(sent, expects="t0")
    content.config_records["episode.ask"]["protocol"] = 2
    with pytest.raises(Rejected, match=r"^speaks version 2 of our messages, not 4: install the"):
        Ask.of(content)
    del content.config_records["episode.ask"]["protocol"]
    with pytest.raises(Rejected, match=r"^speaks version None of our messages, not 4"):
        Ask.of(content)


def test_an_ask_takes_its_scalars_from_a_broadcast() -> None:
    sent = {"eta": torch.tensor(0.25), "local_steps": torch.tensor(7), "memorise": 1, "x": None}
    found = ASK.about(sent)
    assert found == replace(ASK, eta=0.25, local_steps=7, memorise=True)
    assert (type(found.eta), type(found.local_steps), type(found.memorise)) == (float, int, bool)


def test_the_form_of_a_reply_follows_from_the_ask() -> None:
    episode, scaffold = ALGORITHMS["episode"], ALGORITHMS["scaffold"]
    assert ask("probe", episode).form(episode).metrics == ("loss",)
    assert (
        not ask("probe", ALGORITHMS["parallel_sgd"], memorise=True)
        .form(ALGORITHMS["parallel_sgd"])
        .has_buffers
    )
    form = ask("local", scaffold, measure_every=2).form(scaffold)
    assert form.vectors == ("x", "change")
    assert set(CORRECTION_METRICS) < set(form.metrics)
    assert ask("local", scaffold).built() == scaffold


def test_a_client_measures_trust_where_the_algorithm_does() -> None:
    assert ASK.measured(ALGORITHMS["episode"], 0, False).isdisjoint(TRUST_METRICS)
    trusting = next(a for a in ALGORITHMS.values() if a.trust.measures)
    assert ASK.measured(trusting, 0, False) > set(TRUST_METRICS)
    assert replace(ASK, phase="probe").measured(trusting, 0, True) == {"loss"}


@pytest.mark.parametrize("memorise", [False, True])
def test_a_probe_is_kept_as_the_anchor_or_as_the_memory(memorise: bool) -> None:
    asked = ask("probe", ALGORITHMS["episode"], memorise=memorise)
    before = ClientState(memory=vector(7, 7), velocity=vector(1, 1))
    content = labelled(ABOUT, {"gradient": vector(3, 4)}, {"loss": 2.0})
    found = Answer.read(content, asked, 5, before, SENT)
    assert found.tag == "t1"
    assert found.reply.metrics == {"loss": 2.0}
    assert found.reply.buffers is None
    assert list(found.reply.vectors) == ["gradient"]
    assert found.reply.vectors["gradient"].tolist() == [3, 4]
    kept, other = (
        (found.state.memory, found.state.anchor)
        if memorise
        else (found.state.anchor, found.state.memory)
    )
    assert kept is not None
    assert kept.tolist() == [3, 4]
    assert other is (None if memorise else before.memory)
    assert found.state.velocity is before.velocity


@pytest.mark.parametrize(("old", "change"), [(None, [3, 4]), (vector(1, 1), [2, 3])])
def test_the_change_of_a_memory_is_computed_from_the_one_before(
    old: Tensor | None, change: list[float]
) -> None:
    scaffold = Algorithm.named("scaffold", momentum=0.5)
    asked = ask("local", scaffold, local_steps=2, eta=0.1, gamma=1.0)
    arrays = {"x": vector(1, 2), "memory": vector(3, 4), "velocity": vector(5, 6)}
    content = labelled(ABOUT, arrays, NUMBERS)
    found = Answer.read(content, asked, 5, ClientState(memory=old), SENT)
    assert {name: v.tolist() for name, v in found.reply.vectors.items()} == {
        "x": [1, 2],
        "change": change,
    }
    state = {name: held.tolist() for name, held in found.state.tensors().items()}
    assert state == {"memory": [3, 4], "velocity": [5, 6]}
    assert found.tag == "t1"
    assert found.reply.metrics == {**NUMBERS, "largest_norm": None}
    assert found.reply.buffers is not None


def test_buffers_and_counts_are_read_in_their_own_types() -> None:
    diloco = ALGORITHMS["diloco"]
    asked = ask("local", diloco, local_steps=2, eta=0.1, gamma=1.0)
    buffers = Buffers(torch.zeros(3, dtype=torch.float32), torch.zeros(1, dtype=torch.int64))
    arrays = {"x": vector(1, 2), "velocity": vector(5, 6), "second": vector(7, 8)}
    arrays |= {"steps": torch.tensor([9]), "floats": torch.ones(3), "integers": torch.tensor([4])}
    content = labelled(ABOUT, arrays, NUMBERS)
    found = Answer.read(content, asked, 5, ClientState(), {**SENT, "buffers": buffers})
    assert found.state.steps is not None
    assert found.state.steps.tolist() == [9]
    assert found.reply.buffers is not None
    assert found.reply.buffers.floats.tolist() == [1, 1, 1]
    assert found.reply.buffers.integers.tolist() == [4]


@pytest.mark.parametrize("name", ABOUT)
def test_a_reply_to_another_message_is_rejected(name: str) -> None:
    asked = ask("probe", ALGORITHMS["episode"])
    content = labelled({**ABOUT, name: "other"}, {"gradient": vector(3, 4)}, {"loss": 2.0})
    with pytest.raises(Rejected, match=f"^replied about {name} 'other' instead of "):
        Answer.read(content, asked, 5, ClientState(), SENT)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, r"^sent the arrays \[\] instead of \['gradient'\]$"),
        ({"gradient": vector(1)}, r"^sent a gradient of float64 \[1\] instead of float64 \[2\]$"),
        ({"b": vector(1), "a": vector(1)}, r"^sent the arrays \['a', 'b'\] instead of"),
    ],
)
def test_a_reply_with_other_arrays_is_rejected(arrays: dict[str, Tensor], reason: str) -> None:
    asked = ask("probe", ALGORITHMS["episode"])
    with pytest.raises(Rejected, match=reason):
        Answer.read(labelled(ABOUT, arrays, {"loss": 2.0}), asked, 5, ClientState(), SENT)


def test_a_reply_that_lacks_a_record_is_rejected() -> None:
    asked = ask("probe", ALGORITHMS["episode"])
    content = labelled(ABOUT, {"gradient": vector(3, 4)})
    missing = {"": "no loss", "episode.metrics": "no loss", "episode.arrays": r"the arrays \[\] i"}
    for record, reason in missing.items():
        content.pop(record, None)
        with pytest.raises(Rejected, match=f"^sent {reason}"):
            Answer.read(content, asked, 5, ClientState(), SENT)


def test_corrections_are_asked_for_where_there_is_a_global_gradient() -> None:
    episode = ALGORITHMS["episode"]
    asked = ask("local", episode, local_steps=2, eta=0.1, gamma=1.0, measure_every=1)
    content = labelled(ABOUT, {"x": vector(1, 2)}, NUMBERS)
    found = Answer.read(content, asked, 5, ClientState(), SENT)
    assert found.reply.metrics["correction_norm"] is None
    with pytest.raises(Rejected, match=r"^sent no correction_norm$"):
        Answer.read(content, asked, 5, ClientState(), {**SENT, "G": vector(1, 1)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_any_float_type_are_packed_and_unpacked(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -2.0], dtype=dtype, requires_grad=True)
    sent = {"x": x, "none": None, "empty": torch.zeros(0), "steps": torch.tensor([3])}
    sent |= {"floats": torch.ones(2, dtype=torch.float16), "integers": torch.tensor([4])}
    record = pack(sent)
    assert sorted(record) == ["floats", "integers", "steps", "x"]
    found = unpack(record, dtype)
    assert {name: t.dtype for name, t in found.items()} == {
        "x": dtype,
        "steps": torch.int64,
        "floats": torch.float16,
        "integers": torch.int64,
    }
    assert all(torch.equal(t, sent[name]) for name, t in found.items())  # type: ignore[arg-type]
    buffers = buffers_of(found)
    assert buffers.floats is found["floats"]
    assert buffers.integers is found["integers"]
    assert buffers_of({"floats": found["floats"]}).integers.numel() == 0


def test_floats_of_a_type_that_does_not_travel_are_rejected() -> None:
    record = pack({"floats": torch.ones(2, dtype=torch.int32)})
    with pytest.raises(Rejected, match=r"^sent a floats of int32 \[2\] instead of float32 \[2\]$"):
        unpack(record, torch.float32)


def test_a_reply_says_what_it_is_about() -> None:
    content = labelled({"status": "done"}, {"x": vector(1)}, {"loss": 2.0})
    assert label_of(content) == {"status": "done"}
    assert content.metric_records["episode.metrics"] == {"loss": 2.0}
    assert list(content.array_records["episode.arrays"]) == ["x"]
    bare = labelled({})
    assert label_of(bare) == label_of(RecordDict({})) == {}
    assert set(bare) == {"episode.answer", "episode.arrays", "episode.metrics"}


def test_a_probe_that_is_the_whole_round_brings_its_buffers() -> None:
    asked = ask("probe", ALGORITHMS["parallel_sgd"])
    buffers = Buffers(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    arrays = {"gradient": vector(3, 4), "floats": torch.ones(1), "integers": torch.tensor([4])}
    content = labelled(ABOUT, arrays, {"loss": 2.0})
    found = Answer.read(content, asked, 5, ClientState(), {**SENT, "buffers": buffers})
    assert found.reply.buffers is not None
    assert found.reply.buffers.integers.tolist() == [4]
