"""A partition belongs to the node key that it was first seen with, and so does its memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from faults import at, label, silence
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from local_grid import LocalGrid

from episode import EpisodeError
from episode.errors import ClusterError
from episode.federation.job import EngineSettings
from episode.flower.exchange import nodes_of
from episode.flower.owners import FILE, Owners
from episode.flower.sites import Limits
from federation import Without, app, assert_same, grid, in_simulation, on_flower

KEYS = {1000: b"key of 2", 1001: b"key of 1", 1002: b"key of 0"}


def trained(network: LocalGrid, node: int) -> list[Message]:
    """Return what a node was sent, other than the question who it is."""
    return [
        m
        for m in network.sent
        if m.metadata.dst_node_id == node and m.metadata.message_type != "query.episode"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {**KEYS, 2001: b"another key"}], ids=["bare", "keys"])
@pytest.mark.parametrize("algorithm", ["scaffold", "episode_plus_plus"])
def test_who_claims_the_partition_of_a_site_that_missed_a_deadline_is_refused(
    algorithm: str, keys: dict[int, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """The site itself, which is still connected, takes part again in the next round."""
    network = grid(keys=keys)

    def fault(client: int, reply: Message) -> Message | None:
        if label(reply) == ("local", 1) and reply.metadata.src_node_id == 1001:
            if 2001 not in network.contexts:
                network.connect(2001, 1)
            return None
        return reply

    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower(algorithm, fault, grid=network, min_replies=2, deadline=0.1)
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert not trained(network, 2001)
    assert_same(ended.model, in_simulation(algorithm, Without(((1, 1),))))
    assert any("Node 2001 is not admitted" in m for m in caplog.messages)


def gone_and_claimed(network: LocalGrid, key: bytes | None = None) -> Any:
    """Return a fault by which site 1 is gone in round 1, and node 2001 has its number."""

    def act(reply: Message) -> Message:
        if 1001 in network.contexts:
            del network.contexts[1001]
            network.connect(2001, 1)
            if key is not None:
                network.keys[2001] = key
        return reply

    return at(0, "local", 1, act)


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["bare", "keys"])
def test_nobody_inherits_the_place_of_a_site_that_is_gone(
    keys: dict[int, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    network = grid(keys=dict(keys))
    fault = gone_and_claimed(network, b"another key" if keys else None)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ended = on_flower("scaffold", fault, grid=network, min_replies=2)
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2], [0, 2], [0, 2], [0, 2]]
    assert not trained(network, 2001)
    said = "claims partition-id 1, which belongs to another node: start that site with the node key"
    assert any(f"Node 2001 is not admitted: it {said}" in m for m in caplog.messages)


def test_who_came_second_at_the_start_does_not_wait_in_line() -> None:
    network = LocalGrid(app(), [2, 1, 0, 1], num_partitions=3)
    silent = at(1, "local", 1, silence)
    ended = on_flower("scaffold", silent, grid=network, min_replies=2, deadline=0.1)
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert bool(trained(network, 1001)) != bool(trained(network, 1003))


def test_if_every_site_is_needed_the_error_says_how_to_let_another_node_in() -> None:
    network = grid()
    who = r"site 1 is not connected, and node 2001 claims partition-id 1, .* with allow_takeover"
    with pytest.raises(ClusterError, match=who):
        on_flower("scaffold", gone_and_claimed(network), grid=network, retries=1, start_seconds=0.3)


def test_a_site_with_its_own_key_is_given_its_memory_whatever_its_nodes_number() -> None:
    """A key identifies a site even if Flower has numbered its node anew."""
    network = grid(keys=dict(KEYS))
    ended = on_flower("scaffold", gone_and_claimed(network, KEYS[1001]), grid=network)
    assert_same(ended.model, in_simulation("scaffold"))
    assert any("episode.state" in m.content.array_records for m in trained(network, 2001))


def test_the_operator_may_let_other_nodes_take_over() -> None:
    network = grid(keys=dict(KEYS))
    fault = gone_and_claimed(network, b"another key")
    ended = on_flower("scaffold", fault, grid=network, allow_takeover=True)
    assert_same(ended.model, in_simulation("scaffold"))


def test_a_site_that_is_restarted_before_the_first_round_needs_no_key() -> None:
    """Nothing has been learnt yet that could be given to the wrong node."""
    network = LocalGrid(app(), [0, 1], num_partitions=3)
    looks, get_nodes = iter(range(99)), network.get_nodes

    def and_then() -> Iterable[NodeInfo]:
        if next(looks) == 2:  # the server has met two sites, and waits for the third
            del network.contexts[1001]
            network.connect(2001, 1)
            network.connect(2002, 2)
        return get_nodes()

    network.get_nodes = and_then  # type: ignore[method-assign]
    assert_same(on_flower("scaffold", grid=network).model, in_simulation("scaffold"))


def stopped(folder: Path, keys: dict[int, bytes]) -> None:
    """Play two rounds of a run that stops because site 1 is silent."""
    never = at(1, "local", 2, silence)
    with pytest.raises(ClusterError):
        on_flower("scaffold", never, grid=grid(keys=keys), deadline=0.1, retries=0, folder=folder)


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["bare", "keys"])
def test_a_run_that_is_started_again_knows_its_sites(
    keys: dict[int, bytes], tmp_path: Path
) -> None:
    """Another node has the number of site 1, whose memory is in the checkpoint."""
    stopped(tmp_path, keys)
    other = grid(keys={**keys, 2001: b"another key"})
    del other.contexts[1001]
    other.connect(2001, 1)
    with pytest.raises(EpisodeError, match=r"site 1 \(node 2001\) .* belongs to another node"):
        on_flower("scaffold", grid=other, folder=tmp_path)
    assert not trained(other, 2001)
    owners = json.loads((tmp_path / FILE).read_text())
    assert sorted(owners) == ["0", "1", "2"]
    ended = on_flower("scaffold", grid=grid(keys=keys), folder=tmp_path)
    assert_same(ended.model, in_simulation("scaffold"))


def test_a_run_that_is_started_again_may_be_told_to_take_other_nodes(tmp_path: Path) -> None:
    stopped(tmp_path, {})
    before = json.loads((tmp_path / FILE).read_text())
    new = LocalGrid(app(), [])
    for partition in range(3):
        new.connect(2000 + partition, partition)
    options = {"grid": new, "folder": tmp_path, "num_sites": 3}
    ended = on_flower("scaffold", **options, allow_takeover=True)
    assert_same(ended.model, in_simulation("scaffold"))
    assert json.loads((tmp_path / FILE).read_text()) != before


@pytest.mark.parametrize("text", ["", "[]", '{"one": "a"}', '{"1": 7}', "[" * 10**5, "\x00"])
def test_a_damaged_list_of_owners_is_an_error_in_words(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(EpisodeError, match=r"sites.json is damaged: put back a copy of it"):
        Owners.of(tmp_path, allow_takeover=False)


def test_nodes_are_identified_by_their_keys_and_simulated_ones_are_all_ours() -> None:
    network = grid(keys={1000: b"a", 1001: b"a", 1002: b"b"})
    found = nodes_of(network)
    assert found[1000] == found[1001] != found[1002]
    assert len(set(nodes_of(grid()).values())) == 3
    simulated = [
        NodeInfo(node_id=n, heartbeat_interval=1e300, public_key=b"%d" % n) for n in (1, 2)
    ]
    network.get_nodes = lambda: simulated  # type: ignore[method-assign]
    assert len(set(nodes_of(network).values())) == 1


def test_a_config_says_whether_nodes_may_take_over() -> None:
    assert not Limits.of(EngineSettings()).allow_takeover
    limits = Limits.of(EngineSettings(allow_takeover=True, max_examples=7))
    assert (limits.allow_takeover, limits.max_examples) == (True, 7)
    with pytest.raises(EpisodeError, match=r"engine.max_examples is 0: it must be 1 or more"):
        EngineSettings(max_examples=0)
