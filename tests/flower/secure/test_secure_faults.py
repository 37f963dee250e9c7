"""Sites that are lost in any phase, and servers that ask for more than they may."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from faults import crash, silence
from flwr.app import Array, ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, serialised
from masked_grid import (
    SITES,
    assert_close,
    at,
    fresh_batches,
    momentum,
    openly,
    securely,
    sites,
    step_of,
)

from episode import Algorithm
from episode.errors import ClusterError
from episode.flower.messages import ASK
from episode.flower.secure.messages import SECURE, MaskedAsk, read_share
from federation import Without, app, data, on_flower

ALGORITHMS = ["episode", "fedavg", "scaffold", "episode_plus_plus", momentum("episode")]
OTHERS = [0, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("act", [silence, crash])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: str(a)[:40])
def test_a_round_goes_on_without_a_site_that_is_lost_in_its_local_steps(
    algorithm: Any, act: Callable[[Message], Message | None]
) -> None:
    network = sites()
    fault = at(network, 1, "local", 2, act)
    ended = securely(algorithm, fault=fault, grid=network, min_replies=3, deadline=0.3)
    with fresh_batches({2}):
        assert_close(ended.model, openly(algorithm, Without(((2, 1),))))
    everyone = list(range(SITES))
    assert [r["cohort"] for r in ended.history] == [everyone, everyone, OTHERS, everyone]
    assert "in the local phase" in ended.history[2]["missing"]["1"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["episode", "parallel_sgd", momentum("episode")], ids=str)
def test_a_round_goes_on_without_a_site_that_is_lost_in_the_probe(algorithm: Any) -> None:
    network = sites()
    ended = securely(
        algorithm, fault=at(network, 1, "probe", 1, crash), grid=network, min_replies=3
    )
    with fresh_batches({1}):
        assert_close(ended.model, openly(algorithm, Without(((1, 1),))))
    assert "in the probe phase" in ended.history[1]["missing"]["1"]


def test_first_memories_are_the_mean_of_those_who_answered_and_the_other_starts_from_it() -> None:
    network = sites()
    fault = at(network, 1, "memorise", 0, crash)
    ended = securely("episode_plus_plus", fault=fault, grid=network, min_replies=3)
    everyone = list(range(SITES))
    assert [r["cohort"] for r in ended.history] == [OTHERS, everyone, everyone, everyone]
    given = [m for m in network.sent if "episode.state" in m.content.array_records]
    assert len(given) == 1
    assert given[0].metadata.dst_node_id == 1001


def test_sizes_are_agreed_on_without_a_site_that_is_lost() -> None:
    network = sites()
    fault = at(network, 1, "scale", 0, crash)
    ended = securely("episode", fault=fault, grid=network, min_replies=3)
    assert ended.history[0]["cohort"] == OTHERS
    assert ended.history[1]["cohort"] == list(range(SITES))


def test_a_site_that_gives_no_key_is_left_out() -> None:
    network, asked = sites(), [0]

    def fault(client: int, reply: Message) -> Message | None:
        if client == 1 and network.sent[-1].metadata.message_type == "query.keys":
            asked[0] += 1
            return None if asked[0] == 1 else reply
        return reply

    ended = securely("episode", fault=fault, grid=network, min_replies=3, deadline=0.3)
    assert "when it was asked for a key" in ended.history[0]["missing"]["1"]
    assert ended.history[1]["cohort"] == list(range(SITES))


def test_no_round_is_played_with_fewer_than_three() -> None:
    network = sites()

    def fault(client: int, reply: Message) -> Message | None:
        gone = client in (1, 2) and step_of(network.sent[-1]) == ("local", 1)
        return crash(reply) if gone else reply

    with pytest.raises(ClusterError, match="sites took part where 3 are needed"):
        securely(fault=fault, grid=network, min_replies=3, retries=1, start_seconds=0.3)


def test_a_site_whose_fresh_batches_are_the_same_ones_does_not_answer_for_another_cohort() -> None:
    """With one batch of examples, all of them are in every batch, in another order."""

    def few(context: Any) -> Any:
        inputs, labels = data(int(context.node_config["partition-id"]))
        return inputs[:8], labels[:8]

    network = LocalGrid(app(data_fn=few, model_fn=Plain), list(range(SITES)))
    fault = at(network, 1, "probe", 1, crash)
    with pytest.raises(ClusterError, match=r"in vain: site \d: .* for another cohort"):
        plain(network, fault)


class Plain(torch.nn.Linear):
    """A model without dropout, whose gradient depends on the batch alone."""

    def __init__(self) -> None:
        super().__init__(4, 3, dtype=torch.float64)
        torch.nn.init.constant_(self.weight, 0.1)
        torch.nn.init.zeros_(self.bias)


def plain(network: LocalGrid, fault: Any) -> None:
    from flwr.app import ArrayRecord

    from episode.flower import EpisodeStrategy

    network.fault = fault
    strategy = EpisodeStrategy(
        eta=0.1, gamma=0.1, local_steps=2, secure=True, min_replies=3, start_seconds=0.3
    )
    strategy.start(network, ArrayRecord(Plain().state_dict()), 3)


class Liar:
    """A server that has played a round, and now asks what it must not be told."""

    def __init__(self) -> None:
        self.grid = sites()
        securely("episode", grid=self.grid, rounds=2)
        self.asked = {step_of(m): m for m in self.grid.sent if m.metadata.dst_node_id == 1000}

    def keys(self) -> dict[int, Any]:
        """Return fresh keys of all sites."""
        found = {}
        for client in range(SITES):
            message = Message(RecordDict(), 1000 + client, "query.keys")
            reply = self.grid.app(serialised(message), self.grid.contexts[1000 + client])
            found[client] = read_share(dict(reply.content.config_records["episode.answer"]))
        return found

    def ask(
        self,
        about: tuple[str, int],
        fresh: bool = True,
        chosen: Callable[[dict[int, Any]], dict[int, Any]] = dict,
        **changes: Any,
    ) -> tuple[str, str]:
        """Ask site 0 once more; return its status and what it says.

        `chosen` makes the cohort from fresh keys of all sites.
        """
        old = self.asked[about]
        asked = dict(old.content.config_records[ASK])
        masked = MaskedAsk.of(old.content)
        if fresh:
            masked = replace(masked, cohort=chosen(self.keys()), number=masked.number + 1000)
        own = {n: v for n, v in changes.items() if n in asked}
        masked = replace(masked, **{n: v for n, v in changes.items() if n not in asked})
        records = {**old.content, ASK: ConfigRecord({**asked, **own}), SECURE: masked.record()}
        message = Message(RecordDict(records), 1000, "train.masked")
        reply = self.grid.app(serialised(message), self.grid.contexts[1000])
        label = reply.content.config_records["episode.answer"]
        if label["status"] != "done":
            assert not reply.content.array_records.get("episode.arrays")
        return str(label["status"]), str(label.get("error", ""))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("flwr")
    before, logger.propagate = logger.propagate, True
    yield caplog
    logger.propagate = before


def test_a_lying_server_is_refused_and_named_in_the_sites_log(
    log: pytest.LogCaptureFixture,
) -> None:
    liar = Liar()
    last = MaskedAsk.of(liar.asked["local", 1].content).number

    def first(count: int) -> Callable[[dict[int, Any]], dict[int, Any]]:
        return lambda keys: dict(list(keys.items())[:count])

    lies: list[tuple[str, dict[str, Any], str]] = [
        ("replays a message", {"fresh": False}, "a key that it does not hold, or has used"),
        ("asks twice", {"number": last}, "is not after the last one"),
        ("asks for less", {"chosen": first(3)}, "was answered for another cohort"),
        ("shrinks to two", {"chosen": first(2)}, "cohort has 2 sites"),
        ("shrinks to one", {"chosen": first(1)}, "cohort has 1 sites"),
        ("goes back", {"round": 0}, "Round 0 was asked for after round 1"),
        ("leaves it out", {"chosen": lambda k: {1: k[0], 2: k[1], 3: k[2]}}, "not in the cohort"),
        ("has one key twice", {"chosen": lambda k: dict.fromkeys(k, k[0])}, "the same key"),
        ("mixes rounds", {"round": 7}, "does not have this round's probe"),
        ("renames it", {"step": "probe"}, "asks for a local phase as a 'probe' step"),
        ("invents a step", {"step": "sum"}, "asks for a local phase as a 'sum' step"),
        ("counts otherwise", {"repeat": False, "chosen": first(3)}, "repeat is False, as in no"),
        ("counts in floats", {"round": 1.0, "chosen": first(3)}, "round is 1.0, as in no run"),
        ("renames the seed", {"seed": False, "chosen": first(3)}, "seed is False, as in no run"),
        ("counts too far", {"round": 2**40, "chosen": first(3)}, "as in no run"),
        ("begins anew", {"session": "new", "chosen": first(3)}, "answered for another cohort"),
    ]
    for what, changes, reason in lies:
        log.clear()
        status, said = liar.ask(("local", 1), **changes)
        assert status != "done", what
        assert reason in said, (what, said)
        assert reason in log.text, what


def test_a_probe_is_not_told_to_another_cohort_as_a_first_memory() -> None:
    def smaller(keys: dict[int, Any]) -> dict[int, Any]:
        return {client: keys[client] for client in (0, 1, 2)}

    changes: dict[str, Any] = {"session": "new", "chosen": smaller}
    status, said = Liar().ask(("probe", 1), step="memorise", memorise=True, **changes)
    assert status == "needs batches", said
    assert "was answered for another cohort" in said


def test_keys_that_everybody_can_compute_with_are_refused() -> None:
    def weak(keys: dict[int, Any]) -> dict[int, Any]:
        return {**keys, 2: replace(keys[2], public=bytes(32))}

    status, said = Liar().ask(("probe", 1), chosen=weak, round=2)
    assert (status, said) == ("failed", "A key of the cohort is not a key.")


def test_the_limit_on_gradients_is_checked_by_the_site_itself() -> None:
    network = sites()
    with pytest.raises(ClusterError, match=r"it would have sent a gradient of norm .* max_norm"):
        securely("episode", grid=network, max_norm=1e-6, retries=0)
    with pytest.raises(ClusterError, match="above max_norm"):
        on_flower("episode", grid=sites(), max_norm=1e-6, retries=0)


def test_replies_that_are_no_words_leave_a_site_out() -> None:
    network = sites()

    def shorten(reply: Message) -> Message:
        record = reply.content.array_records["episode.arrays"]
        record["words"] = Array(record["words"].numpy()[:-1])
        return reply

    fault = at(network, 1, "probe", 1, shorten)
    ended = securely("episode", fault=fault, grid=network, min_replies=3)
    assert "sent a words of int64" in ended.history[1]["missing"]["1"]


def test_a_lost_reply_never_makes_a_site_answer_two_cohorts_alike() -> None:
    """The server believes site 1 lost; all others have sent what they may not send again."""
    network = sites()
    seen: dict[tuple[int, str], set[str]] = {}

    def watch(client: int, reply: Message) -> Message | None:
        message = network.sent[-1]
        if SECURE in message.content.config_records:
            masked = MaskedAsk.of(message.content)
            if reply.content.config_records["episode.answer"]["status"] == "done":
                about = json.dumps([step_of(message), masked.repeat])
                seen.setdefault((client, about), set()).add(masked.members.hex())
        gone = client == 1 and step_of(message) in {("local", 1), ("probe", 2)}
        return None if gone else reply

    securely("episode", fault=watch, grid=network, min_replies=3, deadline=0.3)
    assert max(len(cohorts) for cohorts in seen.values()) == 1
    assert Algorithm.named("episode").correction.probes
