"""A site that introduces itself with nonsense is refused in words, before and during a run."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from faults import label
from flwr.app import Array, ArrayRecord, Message
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given, settings, strategies as st
from local_grid import Fault, LocalGrid

from episode import Algorithm, EpisodeError
from episode.errors import ClusterError
from episode.flower.checks import Rejected
from episode.flower.introductions import MOST_SITES, Agreement, Introduction, example_of
from episode.flower.layout import Layout
from episode.flower.messages import labelled
from federation import (
    Net,
    Without,
    app,
    assert_same,
    grid,
    in_simulation,
    on_flower,
)

LAYOUT = asdict(Layout.of(Net()))
GOOD = {
    "status": "done",
    "client": 1,
    "partitions": 3,
    "examples": 20,
    "size": 33,
    "dtype": "torch.float64",
    "layout": json.dumps(LAYOUT),
    "evaluates": False,
}


def layout(**changes: Any) -> str:
    return json.dumps({**LAYOUT, **changes})


ATTACKS: list[tuple[dict[str, Any], str]] = [
    ({"examples": 0}, "examples 0: it must be a whole number from 1 to 1000000000000, which is"),
    ({"examples": -5}, "examples -5"),
    ({"examples": float("inf")}, "examples inf"),
    ({"examples": float("nan")}, "examples nan"),
    ({"examples": 10**15}, "examples 1000000000000000"),
    ({"examples": True}, "examples True"),
    ({"examples": "20"}, "examples '20'"),
    ({"examples": [20]}, "examples [20]"),
    ({"client": -1}, "partition-id -1"),
    ({"client": 1.0}, "partition-id 1.0"),
    ({"client": 10**9}, "partition-id 1000000000"),
    ({"partitions": 10**9}, "partitions 1000000000: it must be a whole number from 0 to 100000"),
    ({"partitions": -3}, "partitions -3"),
    ({"size": 0}, "size 0"),
    ({"size": -33}, "size -33"),
    ({"dtype": "torch.load"}, "trains 'torch.load', which is not one of torch.float64"),
    ({"dtype": "torch.complex64"}, "trains 'torch.complex64'"),
    ({"dtype": "__class__"}, "trains '__class__'"),
    ({"dtype": 7}, "trains 7"),
    ({"dtype": "x\x1b[31m\n" * 10**6}, "trains 'x"),
    ({"status": "fine"}, "about status 'fine'"),
    ({"status": "failed", "error": "\x1b[31mred\n\x00ink" * 10**5}, "failed: red ink"),
    ({"evaluates": 1}, "does not say whether it evaluates"),
    ({"layout": 3}, "without a layout"),
    ({"layout": "[" * 100_000}, "a layout that cannot be read"),
    ({"layout": "{" * 100}, "a layout that cannot be read"),
    ({"layout": "[]"}, "a layout of another version"),
    ({"layout": "{}"}, "a layout of another version"),
    ({"layout": layout(trained=[1])}, "a layout whose trained make no sense"),
    ({"layout": layout(trained={"head.weight": [3, -6]})}, "a layout whose trained make no sense"),
    ({"layout": layout(trained={"head.weight": [[3], 6]})}, "a layout whose trained make no sense"),
    ({"layout": layout(trained={"a": [2] * 100})}, "a layout whose trained make no sense"),
    ({"layout": layout(aliases={"a": "nowhere"})}, "a layout whose aliases make no sense"),
    ({"layout": layout(frozen={"a": 1.5})}, "a layout whose frozen make no sense"),
    ({"layout": layout(floats={"a": [2**40]})}, "with floats that its layout does not have"),
    ({"layout": layout(extra={})}, "a layout of another version"),
]


def introduced(**changes: Any) -> Introduction:
    """Return the introduction of a site with the model of `federation`, read as a server does."""
    floats = changes.pop("floats", torch.zeros(12, dtype=torch.float64))
    arrays = {"floats": floats, "integers": torch.zeros(1, dtype=torch.int64)}
    return Introduction.of(1000, labelled({**GOOD, **changes}, arrays), 10**12)


@pytest.mark.parametrize(
    ("changes", "reason"), [a for a in ATTACKS if "error" not in a[0]], ids=itertools.count()
)
def test_nonsense_is_refused_where_it_is_read(changes: dict[str, Any], reason: str) -> None:
    assert introduced().client == 1
    with pytest.raises(Rejected, match=re.escape(reason)):
        introduced(**changes)


def test_every_parameter_may_have_a_second_name() -> None:
    aliases = {f"{name}.tied": name for name in LAYOUT["trained"]}
    assert introduced(layout=layout(aliases=aliases)).layout == Layout(
        **LAYOUT | {"aliases": aliases}
    )


def test_the_agreement_of_sites_that_do_not_know_their_number() -> None:
    assert Agreement.of([introduced(partitions=0)] * 2).partitions == 0
    sites = [introduced(partitions=n) for n in (0, 2, 2, 3)]
    assert Agreement.of(sites).partitions == 2


def test_what_sites_do_not_agree_on_is_named() -> None:
    ours = introduced()
    agreed = Agreement.of([ours])
    assert agreed.objection(ours, in_number=True) is None
    base = introduced(layout=layout(frozen=dict.fromkeys(LAYOUT["frozen"], 7)))
    assert "other values in the frozen base" in str(agreed.objection(base, in_number=True))
    turned = introduced(layout=layout(trained=dict(reversed(LAYOUT["trained"].items()))))
    unknown = introduced(layout="")
    for site in (turned, unknown):
        assert "trains other parameters, or in" in str(agreed.objection(site, in_number=True))


def test_the_example_has_the_buffers_of_most_sites() -> None:
    ones = torch.ones(12, dtype=torch.float64)
    sites = [introduced(client=0), introduced(client=1, floats=ones)]
    assert example_of([*sites, introduced(client=2, floats=ones)]).client == 1
    assert example_of([introduced(client=0, floats=ones * torch.nan), sites[1]]).client == 1


LIMITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"client": 0}, {"client": -1}),
    ({"client": MOST_SITES - 1}, {"client": MOST_SITES}),
    ({"partitions": 0}, {"partitions": -1}),
    ({"partitions": MOST_SITES}, {"partitions": MOST_SITES + 1}),
    ({"examples": 1}, {"examples": 0}),
    ({"examples": 10**12}, {"examples": 10**12 + 1}),
    ({"size": 1}, {"size": 0}),
    ({"size": 2**48}, {"size": 2**48 + 1}),
    ({"layout": layout(trained={"a": [1] * 64})}, {"layout": layout(trained={"a": [1] * 65})}),
    ({"layout": layout(trained={"a": [0]})}, {"layout": layout(trained={"a": [-1]})}),
    ({"layout": layout(trained={"a": [2**48]})}, {"layout": layout(trained={"a": [2**48 + 1]})}),
]


@pytest.mark.parametrize(("allowed", "too_much"), LIMITS, ids=itertools.count())
def test_a_limit_itself_is_believed_and_no_more(
    allowed: dict[str, Any], too_much: dict[str, Any]
) -> None:
    found = vars(introduced(**allowed))
    assert all(found[name] == value for name, value in allowed.items() if name != "layout")
    with pytest.raises(Rejected):
        introduced(**too_much)


def test_a_layout_may_be_as_long_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episode.flower.introductions._LONGEST_LAYOUT", len(layout()))
    assert introduced().layout == Layout(**LAYOUT)
    with pytest.raises(Rejected, match="without a layout"):
        introduced(layout=layout() + " ")


def test_only_the_number_of_examples_is_the_operators_limit() -> None:
    with pytest.raises(
        Rejected, match=r"^introduced itself with size 0: it .* to 281474976710656$"
    ):
        introduced(size=0)


def test_an_introduction_is_read_with_its_buffers() -> None:
    found = introduced(evaluates=True, floats=torch.arange(12.0, dtype=torch.float64))
    assert (found.node, found.client, found.partitions, found.examples) == (1000, 1, 3, 20)
    assert (found.size, found.dtype, found.evaluates) == (33, "torch.float64", True)
    assert found.buffers.floats.tolist() == list(range(12))
    assert found.buffers.integers.tolist() == [0]
    assert json.loads(found.form) == [33, "torch.float64", "torch.float64", LAYOUT]
    bare = Introduction.of(7, labelled({**GOOD, "layout": "", "dtype": "torch.float16"}), 100)
    assert json.loads(bare.form) == [33, "torch.float16", None, None]
    content = labelled({**GOOD, "layout": ""})
    del content["episode.arrays"]
    assert Introduction.of(7, content, 100).form == introduced(layout="", floats=None).form


def test_floats_of_no_type_that_travels_are_rejected_as_the_models_type() -> None:
    with pytest.raises(
        Rejected, match=r"^sent a floats of int32 \[12\] instead of float64 \[12\]$"
    ):
        introduced(floats=torch.zeros(12, dtype=torch.int32))


@pytest.mark.parametrize("names", [["gradient"], ["b", "a"]])
def test_an_array_that_no_introduction_has_is_named(names: list[str]) -> None:
    content = labelled(GOOD, {name: torch.zeros(3) for name in names})
    with pytest.raises(Rejected, match=f"^introduced itself with the array '{min(names)}'$"):
        Introduction.of(7, content, 100)


def test_of_equally_many_the_lowest_site_and_the_largest_number_decide() -> None:
    low, high = introduced(client=0, layout=""), introduced(client=1)
    assert Agreement.of([high, low]).form == low.form
    assert Agreement.of([high, low, introduced(client=2)]).form == high.form
    sites = [introduced(client=c, partitions=n) for c, n in enumerate((4, 9, 4, 9, 1))]
    assert Agreement.of(sites).partitions == 9
    assert Agreement.of([introduced(partitions=1)]).partitions == 1
    other = [introduced(client=c, partitions=7, layout="") for c in (8, 9)]
    assert Agreement.of([*sites, *other]).partitions == 9


def test_a_site_may_not_know_the_number_of_sites() -> None:
    agreed = Agreement.of([introduced(partitions=3)])
    assert agreed.objection(introduced(partitions=0), in_number=True) is None
    assert agreed.objection(introduced(partitions=4), in_number=False) is None
    assert agreed.objection(introduced(partitions=4), in_number=True) == (
        "was started with num-partitions=4, but others with 3: give all sites the same number"
    )
    unknown = Agreement.of([introduced(partitions=0)])
    assert unknown.objection(introduced(partitions=4), in_number=True) is None


def test_of_equal_buffers_those_of_the_lowest_site_are_the_example() -> None:
    ones, nan = torch.ones(12, dtype=torch.float64), torch.full((12,), torch.nan).double()
    sites = [introduced(client=c) for c in (2, 1)]
    assert example_of(sites).client == 1
    assert example_of([introduced(client=0, floats=nan), *sites[:1]]).client == 2
    liars = [introduced(client=c, floats=nan) for c in (0, 3)]
    assert example_of([introduced(client=2, floats=ones), *liars]).client == 0


ARRAYS: list[tuple[Callable[[ArrayRecord], Any], str]] = [
    (lambda r: r.update(gradient=Array(np.zeros(3))), "with the array 'gradient'"),
    (lambda r: r.update(floats=Array(np.zeros(3))), "with floats that its layout does not have"),
    (lambda r: r.update(floats=Array(np.zeros((12, 1)))), "with floats that its layout"),
    (lambda r: r.update(floats=Array(np.zeros(12, np.float32))), "trains other parameters, or in"),
    (lambda r: r.pop("floats"), "with floats that its layout does not have"),
    (
        lambda r: r.update(floats=Array("float64", (2**70,), "numpy.ndarray", b"PK\x03\x04")),
        "cannot be read",
    ),
    (
        lambda r: r.update(floats=Array("float64", (0, 2**70), "numpy.ndarray", b"")),
        "cannot be read",
    ),
]
ALL: list[tuple[Callable[[Message], Any], str]] = [
    *(
        (lambda m, new=new: m.content.config_records["episode.answer"].update(new), reason)
        for new, reason in ATTACKS
    ),
    *(
        (lambda m, act=act: act(m.content.array_records["episode.arrays"]), reason)
        for act, reason in ARRAYS
    ),
    (lambda m: m.content.pop("episode.answer"), "about status None"),
    (lambda m: m.content.pop("episode.arrays"), "with floats that its layout does not have"),
]


def is_introduction(reply: Message) -> bool:
    return reply.metadata.message_type == "query.episode"


def lying(node: int, act: Callable[[Message], Any]) -> Fault:
    """Return a fault that spoils a node's introduction."""

    def fault(client: int, reply: Message) -> Message:
        if is_introduction(reply) and reply.metadata.src_node_id == node:
            act(reply)
        return reply

    return fault


@pytest.mark.slow
def test_a_node_that_connects_in_mid_run_is_refused_in_words_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node with another lie connects in each round; each claims a number that is not taken."""
    network = grid(num_partitions=4)
    joined: dict[int, int] = {}

    def fault(client: int, reply: Message) -> Message:
        node, (phase, number) = reply.metadata.src_node_id, label(reply)
        if is_introduction(reply) and node >= 3000:
            joined[node] = client
            ALL[node - 3000][0](reply)
        elif phase == "local" and client == 0 and number is not None and number < len(ALL):
            network.connect(3000 + number, 3)
        return reply

    rounds = 1 + len(ALL)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        options = {"min_replies": 2, "start_seconds": 0.5, "rounds": rounds}
        ended = on_flower("fedavg", fault, grid=network, **options)
    assert len(joined) == len(ALL)
    for k, (_, reason) in enumerate(ALL):
        said = [m for m in caplog.messages if m.startswith(f"Node {3000 + k} is not admitted: it ")]
        assert len(said) == 1
        assert reason in said[0]
        assert said[0].isprintable()
        assert len(said[0]) < 500
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2]] * rounds
    assert_same(ended.model, in_simulation("fedavg", rounds=rounds))


@pytest.mark.slow
@pytest.mark.parametrize(("act", "reason"), [ALL[0], ALL[3], ALL[8], ALL[15], ALL[-3]])
def test_at_the_start_a_liar_is_left_out_if_enough_others_are_there(
    act: Callable[[Message], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 1000 is site 2."""
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower("fedavg", lying(1000, act), min_replies=2, num_sites=3, start_seconds=0.6)
    gone = Without(tuple((k, 2) for k in range(4)))
    assert_same(ended.model, in_simulation("fedavg", gone))
    assert ended.history[0]["missing"]["2"].startswith("is not connected")
    start = [m for m in caplog.messages if m.startswith("At the start, before round 0: ")]
    assert len(start) == 1
    assert "(node 1000) is left out: it" in start[0] or "node 1000 is left out: it" in start[0]
    assert reason in start[0]


@pytest.mark.parametrize(("act", "reason"), [ALL[0], ALL[8], ALL[-3]])
def test_at_the_start_a_liar_is_named_if_every_site_is_needed(
    act: Callable[[Message], Any], reason: str
) -> None:
    with pytest.raises(EpisodeError, match=r"before round 0: .*node 1000.* cannot take part") as e:
        on_flower("fedavg", lying(1000, act))
    assert reason in str(e.value)


def test_if_too_few_are_left_the_error_says_who_was_refused() -> None:
    who = r"3 sites are needed, but 2 came .*; node 1000 introduced itself with examples 0"
    with pytest.raises(ClusterError, match=who):
        on_flower("fedavg", lying(1000, ALL[0][0]), min_replies=3, start_seconds=0.5)


def relabelled(**values: Any) -> Callable[[Message], Any]:
    return lambda m: m.content.config_records["episode.answer"].update(values)


OTHER_ORDER = layout(trained=dict(reversed(LAYOUT["trained"].items())))


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (relabelled(partitions=2), "num-partitions=2, but others with 3"),
        (relabelled(partitions=1), "num-partitions=1, but others with 3"),
        (relabelled(partitions=99_999), "num-partitions=99999, but others with 3"),
        (relabelled(layout=OTHER_ORDER), "in another order, than the other sites"),
        (relabelled(client=7), "has partition-id 7, but there are 3 sites"),
    ],
)
def test_the_majority_decides_what_sites_agree_on(
    act: Callable[[Message], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The liar answers first, and the number of sites is known by the sites' word alone."""
    network = LocalGrid(app(), [2, 0, 1])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower(
            "fedavg", lying(1000, act), grid=network, min_replies=2, start_seconds=0.6
        )
    assert [r["cohort"] for r in ended.history] == [[0, 1]] * 4
    assert any("(node 1000) is left out" in m and reason in m for m in caplog.messages)
    gone = Without(tuple((k, 2) for k in range(4)))
    assert_same(ended.model, in_simulation("fedavg", gone))


def test_disagreement_is_an_error_if_every_site_is_needed() -> None:
    with pytest.raises(EpisodeError, match=r"num-partitions=.*: give all sites the same number"):
        on_flower("fedavg", lying(1000, relabelled(partitions=4)))
    with pytest.raises(EpisodeError, match="trains other parameters, or in another order"):
        on_flower("fedavg", lying(1000, relabelled(layout=OTHER_ORDER)))


def arriving_later(network: LocalGrid, look: int, nodes: dict[int, int]) -> None:
    """Connect nodes when the server looks for the `look`-th time."""
    looks, get_nodes = itertools.count(), network.get_nodes

    def and_then() -> Iterable[NodeInfo]:
        if next(looks) == look:
            for node, partition in nodes.items():
                network.connect(node, partition)
        return get_nodes()

    network.get_nodes = and_then  # type: ignore[method-assign]


def test_a_liar_that_is_there_first_cannot_say_that_it_is_the_only_site() -> None:
    network = LocalGrid(app(), [2], num_partitions=3)
    arriving_later(network, 4, {1001: 1, 1002: 0})
    lie = lying(1000, relabelled(partitions=1))
    ended = on_flower("fedavg", lie, grid=network, min_replies=2)
    assert [r["cohort"] for r in ended.history] == [[0, 1]] * 4


@pytest.mark.timeout(60)
def test_if_every_site_is_needed_disagreement_is_said_before_all_are_there() -> None:
    network = LocalGrid(app(), [0, 1], num_partitions=3)
    lie = lying(1001, relabelled(layout=OTHER_ORDER))
    with pytest.raises(EpisodeError, match="trains other parameters, or in another order"):
        on_flower("fedavg", lie, grid=network, start_seconds=600.0)


def test_buffers_start_from_what_most_sites_have() -> None:
    """The liar is site 0, and lies about a buffer that the initial arrays do not have."""

    def act(reply: Message, value: float = np.nan) -> None:
        record = reply.content.array_records["episode.arrays"]
        record["floats"] = Array(record["floats"].numpy() * value)

    for value in (np.nan, 1e5):
        ended = on_flower("fedavg", lying(1002, partial(act, value=value)))
        assert_same(ended.model, in_simulation("fedavg"))
    two = LocalGrid(app(), [0, 1])
    assert on_flower("fedavg", lying(1000, act), grid=two).strategy.run is not None


def test_the_operator_says_how_many_examples_are_believed() -> None:
    weighted = Algorithm.named("fedavg", weighting="examples")
    lie = lying(1000, relabelled(examples=10**9))
    with pytest.raises(EpisodeError, match=r"examples 1000000000: .* to 1000, which is max_ex"):
        on_flower(weighted, lie, max_examples=1000)
    assert on_flower(weighted, max_examples=30).strategy.run is not None
    with pytest.raises(EpisodeError, match="max_examples is 0"):
        on_flower(weighted, max_examples=0)


def test_a_node_is_one_site_only(caplog: pytest.LogCaptureFixture) -> None:
    """Site 2 comes back with a number that nobody has: it would count twice."""
    network = grid(num_partitions=4)

    def fault(client: int, reply: Message) -> Message:
        if label(reply) == ("local", 0) and client == 2:
            network.leave_and_return(1000, 3)
        return reply

    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower("fedavg", fault, grid=network, min_replies=2, start_seconds=0.5)
    said = "Node 1000 is not admitted: it is site 2 already, and cannot be site 3 as well"
    assert said in caplog.messages
    asked = {m.metadata.dst_node_id for m in network.sent if label(m)[0] == "local"}
    assert asked == {1000, 1001, 1002}
    assert all(3 not in r["cohort"] for r in ended.history)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
config_values = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.lists(st.integers(-9, 9), max_size=3)
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from(sorted(GOOD)), config_values, max_size=4),
    missing=st.sets(st.sampled_from(sorted(GOOD)), max_size=2),
    tables=st.dictionaries(st.sampled_from(sorted(LAYOUT)), json_values, max_size=2),
)
def test_any_label_is_an_introduction_or_rejected(
    changes: dict[str, Any], missing: set[str], tables: dict[str, Any]
) -> None:
    values = {**GOOD, "layout": layout(**tables), **changes}
    content = labelled({name: v for name, v in values.items() if name not in missing})
    try:
        found = Introduction.of(7, content, 1000)
    except Rejected:
        return
    assert 1 <= found.examples <= 1000
    assert found.client >= 0
