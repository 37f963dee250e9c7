"""One site of three lies: it is named and left out, and the others' run goes on unharmed."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from faults import Act, at, label, one_per_round, relabel
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings, strategies as st
from local_grid import LocalGrid

from episode.errors import ClusterError
from episode.flower.checks import Rejected, read_array
from episode.flower.texts import last_line, one_line
from fault_matrix import LEFT_OUT
from federation import Without, app, assert_same, grid, in_simulation, on_flower

ESCAPES = "\x1b[2J\x1b[31mred\x1b[0m\x1b]0;title\x07"


def arrays_of(reply: Message) -> ArrayRecord:
    return reply.content.array_records["episode.arrays"]


def recoded(change: Callable[[Array], bytes], **claims: Any) -> Act:
    """Return an act that changes the bytes of all arrays, and what they claim to be."""

    def act(reply: Message) -> Message:
        record = arrays_of(reply)
        for name, array in list(record.items()):
            values = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, **claims}
            record[name] = Array(**values, data=change(array))
        return reply

    return act


def archive(array: Array) -> bytes:
    """Return a zip archive of about the expected size."""
    file = io.BytesIO()
    np.savez(file, array=array.numpy())
    return file.getvalue()


def with_header(text: str | bytes) -> Callable[[Array], bytes]:
    """Return a function that puts another header before the same numbers."""
    header = text if isinstance(text, bytes) else text.encode()
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    return lambda array: start + array.numpy().tobytes()


def described(shape: object, order: str = "False", kind: str = "'<f8'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"


def measuring(change: Callable[[MetricRecord], Any]) -> Act:
    def act(reply: Message) -> Message:
        change(reply.content.metric_records["episode.metrics"])
        return reply

    return act


def without(name: str) -> Act:
    def act(reply: Message) -> Message:
        del reply.content[name]
        return reply

    return act


def renamed(reply: Message) -> Message:
    arrays_of(reply)[ESCAPES + "\n" * 1000] = Array(np.zeros(3))
    return reply


def confused(reply: Message) -> Message:
    """Return a reply whose label is a record of metrics."""
    del reply.content["episode.answer"]
    reply.content["episode.answer"] = MetricRecord({"client": 2})
    return reply


def failed(text: str) -> Act:
    return relabel(status="failed", error=text)


def lost(text: str) -> Act:
    return lambda reply: Message(Error(2, text), reply_to=reply)


ATTACKS: list[tuple[Act, str]] = [
    (recoded(archive), "cannot be read"),
    (recoded(lambda a: a.data, shape=(2**70,)), "instead of float64 [33]"),
    (recoded(lambda a: a.data, shape=(-33,)), "instead of float64 [33]"),
    (recoded(with_header(described((2**70,)))), "cannot be read"),
    (recoded(with_header(described((33,), "True"))), "cannot be read"),
    (recoded(with_header(described((33,), kind="'|O'"))), "cannot be read"),
    (recoded(with_header(described((33,), kind="[('a', '<f8')]"))), "cannot be read"),
    (recoded(with_header(described("(" * 5000))), "cannot be read"),
    (recoded(with_header("{'descr': " + "-" * 5000)), "cannot be read"),
    (recoded(with_header(b"\xff\xfe\x00'''")), "cannot be read"),
    (recoded(with_header("")), "cannot be read"),
    (recoded(lambda a: a.data[:9]), "cannot be read"),
    (recoded(lambda a: b""), "cannot be read"),
    (recoded(lambda a: a.data[:-1]), "cannot be read"),
    (recoded(lambda a: a.data + b"\x00" * 8), "cannot be read"),
    (recoded(lambda a: a.data, stype="pickle"), "cannot be read"),
    (recoded(lambda a: a.data, dtype=ESCAPES), "sent a"),
    (renamed, "sent the arrays"),
    (without("episode.arrays"), "sent the arrays []"),
    (without("episode.answer"), "about status None"),
    (confused, "about status None"),
    (without("episode.metrics"), "sent no loss"),
    (measuring(lambda m: m.pop("loss")), "sent no loss"),
    (measuring(lambda m: m.update(loss=[1.0, 2.0])), "a loss that is not a number"),
    (measuring(lambda m: m.update(loss=float("nan"))), "sent a loss of nan"),
    (measuring(lambda m: m.update(loss=1.7e308)), "sent a loss of 1.7e+308"),
    (relabel(client=2.0), "about client 2.0 instead of 2"),
    (relabel(client=[2, 2]), "about client [2, 2] instead of 2"),
    (relabel(status=b"done"), "about status b'done'"),
    (relabel(tag="x" * 10_000_000), "about tag 'xxx"),
    (failed("boom\n" * 2_000_000), "failed: boom boom"),
    (failed(ESCAPES + "\r\n\x00\u202eevil"), "failed: red evil"),
    (relabel(status="failed", error=[ESCAPES] * 9), "failed: ['"),
    (lost("Traceback\n" * 1_000_000 + ESCAPES + "the end\n\n"), "2: redthe end)"),
]
LOCAL_ATTACKS = [
    (measuring(lambda m: m.update(clipped=7.0)), "a clipped of 7, which is not from 0 to 1"),
    (measuring(lambda m: m.update(drift=-1.0)), "a drift of -1"),
    (measuring(lambda m: m.pop("drift")), "sent no drift"),
]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["probe", "local"])
def test_no_reply_of_a_site_ends_the_run_of_the_others(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    attacks = ATTACKS + (LOCAL_ATTACKS if phase == "local" else [])
    rounds = 1 + len(attacks)
    fault = one_per_round(2, phase, [act for act, _ in attacks])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower("episode", fault, min_replies=2, rounds=rounds)
    for record, (_, reason) in zip(ended.history[1:], attacks, strict=True):
        said = record["missing"]["2"]
        assert reason in said
        assert said.isprintable()
        assert len(said) < 500
        assert record["cohort"] == [0, 1]
    assert "missing" not in ended.history[0]
    assert len(caplog.messages) == len(attacks)
    assert all(message.isprintable() and len(message) < 500 for message in caplog.messages)
    gone = Without(tuple((k, 2) for k in range(1, rounds)))
    assert_same(ended.model, in_simulation("episode", gone, rounds=rounds))


def test_a_site_whose_clipping_needs_norms_must_send_them() -> None:
    forget = at(2, "local", 1, measuring(lambda m: m.pop("largest_norm")))
    ended = on_flower("celgc", forget, min_replies=2)
    assert "sent no largest_norm" in ended.history[1]["missing"]["2"]
    assert "missing" not in on_flower("fedavg", forget_nothing, min_replies=2).history[1]


def forget_nothing(client: int, reply: Message) -> Message:
    return reply


class Wire(LocalGrid):
    """A grid whose replies Flower reads from bytes, as it does those of a SuperLink."""

    hostile: bytes = b""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(super().pull_messages(message_ids))
        for reply in found:
            if label(reply) == ("local", 1) and reply.metadata.src_node_id == 1000:
                inflate_object_from_contents("x", {"x": self.hostile}).metadata  # type: ignore[attr-defined] # noqa: B018
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"no divider",
        b"Array  2\x00{}",
        b"os.system  2\x00{}",
        b"ConfigRecord  2\x00{}",
        b"Array  9\x00" + b"[" * 100_000,
        b'Array  9\x00{"dtype": "f", "shape": [1], "stype": "s", "arraychunk_ids": [7]}',
        b"Array " + b"y," * 10 + b" 2\x00{}",
    ],
)
def test_bytes_that_flower_cannot_read_are_the_failure_of_their_sender(hostile: bytes) -> None:
    """Replies are pulled one by one, so that one of them cannot take the others with it."""
    network = Wire(app(), [2, 1, 0])
    network.hostile = hostile
    ended = on_flower("episode", grid=network, min_replies=2)
    assert "sent a reply that cannot be read (" in ended.history[1]["missing"]["2"]
    assert_same(ended.model, in_simulation("episode", Without(((1, 2),))))


def test_a_reply_that_claims_to_answer_another_message_is_its_senders() -> None:
    """Flower leaves what a reply says about itself to the site that sent it."""
    network, pull = grid(), LocalGrid.pull_messages

    def forged(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(pull(network, message_ids))
        for reply in found:
            reply.metadata.__dict__["_reply_to_message_id"] = "message-0"
        return found

    network.pull_messages = forged  # type: ignore[method-assign]
    assert_same(on_flower("episode", grid=network).model, in_simulation("episode"))


def test_not_finite_replies_of_a_minority_do_not_end_a_run_as_diverged() -> None:
    """Site 1 is gone and site 2 sends NaN: too few are left, but nothing has diverged."""
    network = grid()

    def fault(client: int, reply: Message) -> Message:
        if label(reply) == ("local", 0) and client == 0:
            network.contexts.pop(1001, None)
        if label(reply) == ("local", 1) and client == 2:
            arrays_of(reply)["x"] = Array(arrays_of(reply)["x"].numpy() * np.nan)
        return reply

    who = r"Round 1 .* site 1 is not connected; site 2 sent a x that is not finite"
    with pytest.raises(ClusterError, match=who):
        on_flower("celgc", fault, grid=network, min_replies=2, retries=0)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), cut=st.integers(0, 200), shape=st.integers(-1, 40))
def test_any_bytes_are_an_array_or_rejected(data: bytes, cut: int, shape: int) -> None:
    good = Array(np.arange(4.0))
    for bytes_ in (data, good.data[:cut] + data, data + good.data[cut:]):
        array = Array(dtype="float64", shape=(shape,), stype=good.stype, data=bytes_)
        try:
            tensor = read_array("x", array, (shape,), torch.float64)
        except Rejected:
            continue
        assert tensor.shape == (shape,)
        assert tensor.dtype == torch.float64


@pytest.mark.parametrize("change", [lambda d: d[:-8], lambda d: d[:-1], lambda d: d + b"1234567+"])
def test_an_array_of_another_length_than_its_header_says_is_rejected(
    change: Callable[[bytes], bytes],
) -> None:
    good = Array(np.arange(4.0))
    array = Array(dtype="float64", shape=(4,), stype=good.stype, data=change(good.data))
    with pytest.raises(Rejected, match=r"cannot be read: \d+ bytes, not 32"):
        read_array("x", array, (4,), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_arrays_of_every_type_come_back_as_they_were(dtype: torch.dtype) -> None:
    from episode.flower.messages import pack

    values = torch.arange(5).to(dtype)
    array = pack({"x": values})["x"]
    assert torch.equal(read_array("x", array, (5,), dtype), values)


@given(st.text())
def test_texts_of_sites_become_one_printable_line(text: str) -> None:
    for line in (one_line(text, 40), last_line(text, 40)):
        assert line.isprintable()
        assert len(line) <= 43


def test_a_short_text_is_kept_and_the_last_line_of_a_traceback_found() -> None:
    assert one_line("Client 1 has no examples: give it some.") == (
        "Client 1 has no examples: give it some."
    )
    assert last_line("Traceback:\n  File x\nValueError: no\n\n") == "ValueError: no"
    assert one_line(ESCAPES) == "red"
    assert one_line(b"\n") == "b'\\n'"


EVALUATIONS: list[tuple[Callable[[MetricRecord], Any] | None, str]] = [
    (lambda m: m.update({"num-examples": float("nan")}), "a num-examples of nan"),
    (lambda m: m.update({"num-examples": float("inf")}), "a num-examples of inf"),
    (lambda m: m.update({"num-examples": -1}), "a num-examples of -1"),
    (lambda m: m.update({"num-examples": 10**18}), "which is not a number from 0 to 1e+12"),
    (lambda m: m.update({"num-examples": [1]}), "a num-examples of [1]"),
    (lambda m: m.pop("num-examples"), "sent no metrics with 'num-examples'"),
    (lambda m: m.update({f"m{k}": 0.0 for k in range(2000)}), "metrics, more than 1000"),
    (lambda m: m.update(accuracy=float("nan")), "accuracy is not finite"),
    (lambda m: m.update(accuracy=[1.0]), "accuracy is not of the form that other sites send"),
    (lambda m: m.update(curve=[1.0]), "curve is not of the form that other sites send"),
    (lambda m: m.update({ESCAPES + "\n": 1.0}), "red has a name that is too long or cannot"),
    (None, "sent no metrics with 'num-examples'"),
]


@pytest.mark.fault(
    engine="Flower", phase="evaluate", fault=("NaN", "wrong shape"), outcome=LEFT_OUT
)
def test_no_evaluation_of_a_site_ends_the_run_or_spoils_the_mean(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = app()

    @client.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        number = float(context.node_config["partition-id"])
        values = {"accuracy": 0.1 * number, "num-examples": 1 + number, "curve": [1.0, number]}
        metrics = MetricRecord(values)  # type: ignore[arg-type]
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    played = iter(range(99))

    def fault(who: int, reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate" and who == 2:
            change = EVALUATIONS[next(played)][0]
            if change is None:
                reply.content["more"] = MetricRecord()
            else:
                change(reply.content.metric_records["metrics"])
        return reply

    network = LocalGrid(client, [0, 1, 2], fault=fault)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower("fedavg", grid=network, rounds=len(EVALUATIONS))
    others = (0.0 * 1 + 0.1 * 2) / 3
    for record, (_, reason) in zip(ended.history, EVALUATIONS, strict=True):
        metrics = record["metrics"]
        honest = "curve" in reason or "red has a name" in reason
        mean = (0.0 * 1 + 0.1 * 2 + 0.2 * 3) / 6 if honest else others
        assert metrics == {"sites_accuracy": pytest.approx(mean)}
        assert any(reason in message for message in caplog.messages), reason
    assert all(message.isprintable() for message in caplog.messages)
