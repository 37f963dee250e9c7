"""Runs with lost, late, restarted or faulty sites give what the simulation gives without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import at, crash, label, relabel, silence, spoil
from flwr.app import Array, Message

from episode import Algorithm
from episode.errors import ClusterError
from episode.flower import EpisodeStrategy
from episode.results.store import read_json, read_rounds
from fault_matrix import DIVERGED, GOES_ON, error_within
from federation import SETTINGS, Without, arrays, assert_same, grid, in_simulation, on_flower

REMEMBERING = [
    "scaffold",
    "episode_plus_plus",
    Algorithm.named("episode", momentum=0.9),
    Algorithm.named("scaffold_clipped", momentum=0.9),
    "diloco",
]
FOUR = [*REMEMBERING[:2], "episode", "fedavg"]


def at_a_site(fault: str, outcome: str, **more: str) -> pytest.MarkDecorator:
    return pytest.mark.fault(engine="Flower", fault=fault, outcome=outcome, **more)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*FOUR, *REMEMBERING[2:]], ids=str)
@pytest.mark.parametrize(
    "act",
    [
        pytest.param(silence, marks=at_a_site("SIGSTOP", GOES_ON, phase="local")),
        pytest.param(crash, marks=at_a_site("SIGKILL", GOES_ON, phase="local")),
    ],
)
def test_who_is_lost_in_the_local_phase_is_left_out_of_both_means(
    algorithm: Any, act: Callable[[Message], Message | None]
) -> None:
    fault = at(1, "local", 2, act)
    ended = on_flower(algorithm, fault, min_replies=2, deadline=0.1)
    assert_same(ended.model, in_simulation(algorithm, Without(((2, 1),))))
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1, 2]]
    assert "in the local phase" in ended.history[2]["missing"]["1"]
    assert "missing" not in ended.history[3]


@pytest.mark.slow
@at_a_site("SIGKILL", GOES_ON, phase="probe")
@at_a_site("SIGSTOP", GOES_ON, phase="probe")
@pytest.mark.parametrize("algorithm", ["episode", "parallel_sgd", REMEMBERING[2]], ids=str)
def test_who_is_lost_in_the_probe_sits_the_round_out(algorithm: Any) -> None:
    for act in (silence, crash):
        ended = on_flower(algorithm, at(2, "probe", 1, act), min_replies=2, deadline=0.1)
        assert_same(ended.model, in_simulation(algorithm, Without(((1, 2),))))
    asked = [label(m) for m in ended.grid.sent if m.metadata.dst_node_id == 1000]
    assert ("local", 1) not in asked  # node 1000 is site 2
    assert "in the probe phase" in ended.history[1]["missing"]["2"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*REMEMBERING, "episode"], ids=str)
@pytest.mark.parametrize("phase", ["probe", "local"])
def test_who_comes_back_without_its_memory_is_given_it(algorithm: Any, phase: str) -> None:
    network = grid()

    def restart(reply: Message) -> Message:
        network.forget(1)
        return reply

    ended = on_flower(algorithm, at(1, phase, 1, restart), grid=network)
    assert_same(ended.model, in_simulation(algorithm))
    given = [m for m in network.sent if "episode.state" in m.content.array_records]
    used = Algorithm.named(algorithm) if isinstance(algorithm, str) else algorithm
    lost = used.correction.probes if phase == "probe" else used != Algorithm.named("episode")
    assert len(given) == int(lost)


@pytest.mark.parametrize("algorithm", ["scaffold", "episode_plus_plus"])
def test_a_restarted_site_with_another_node_takes_its_place(algorithm: str) -> None:
    network = grid()

    def replaced(reply: Message) -> Message:
        del network.contexts[1001]  # site 1
        network.connect(2001, 1)
        return reply

    ended = on_flower(algorithm, at(0, "local", 1, replaced), grid=network, allow_takeover=True)
    assert_same(ended.model, in_simulation(algorithm))


def test_a_node_with_the_number_of_one_that_is_silent_takes_its_place() -> None:
    """The SuperLink lists a killed node until it misses its heartbeat."""
    network = grid()
    dead: set[int] = set()

    def fault(client: int, reply: Message) -> Message | None:
        if client == 1 and label(reply) == ("probe", 1) and not dead:
            dead.add(1001)
            network.connect(2001, 1)
        return None if reply.metadata.src_node_id in dead else reply

    options = {"min_replies": 2, "deadline": 0.1, "allow_takeover": True}
    ended = on_flower("episode", fault, grid=network, **options)
    assert [r["cohort"] for r in ended.history][-1] == [0, 1, 2]
    assert_same(ended.model, in_simulation("episode", Without(((1, 1),))))


def test_a_site_that_missed_the_first_memories_starts_from_the_others_mean() -> None:
    def fault(client: int, reply: Message) -> Message | None:
        return None if client == 1 and label(reply)[0] == "probe" else reply

    ended = on_flower("episode_plus_plus", fault, min_replies=2, deadline=0.1, folder=None)
    assert [r["cohort"] for r in ended.history][1:] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("algorithm", ["episode_plus_plus", "scaffold"])
def test_the_servers_memory_stays_the_mean_of_all(algorithm: str, tmp_path: Path) -> None:
    from episode.federation import checkpoint
    from episode.results.store import CHECKPOINT

    def fault(client: int, reply: Message) -> Message | None:
        lost = label(reply) in {("probe", 0), ("local", 1)} and client == 1
        return None if lost or (client == 2 and label(reply) == ("local", 2)) else reply

    on_flower(algorithm, fault, min_replies=2, deadline=0.1, folder=tmp_path)
    identity = read_json(tmp_path / "config.json")["id"]
    server, clients = checkpoint.load(tmp_path / CHECKPOINT, identity, "cpu")
    mean = torch.stack([clients[c].memory for c in range(3)]).mean(0)  # type: ignore[misc]
    assert server.memory is not None
    assert torch.allclose(server.memory, mean, rtol=0, atol=1e-14)


def pickled(reply: Message) -> Message:
    record = reply.content.array_records["episode.arrays"]
    for name in list(record):
        old = record[name]
        record[name] = Array(old.dtype, old.shape, old.stype, b"\x80\x05pickle" + old.data)
    return reply


nan, short = spoil(lambda t: t * float("nan")), spoil(lambda t: t[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["probe", "local"])
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        pytest.param(nan, "that is not finite", marks=at_a_site("NaN", GOES_ON)),
        pytest.param(short, "instead of float64 [33]", marks=at_a_site("wrong shape", GOES_ON)),
        (spoil(lambda t: t.float()), "of float32"),
        pytest.param(
            relabel(round=0), "about round 0 instead of 1", marks=at_a_site("stale round", GOES_ON)
        ),
        (relabel(tag="old"), "about tag 'old'"),
        (relabel(client=0), "about client 0 instead of 2"),
        (pickled, "cannot be read"),
    ],
    ids=["nan", "shape", "dtype", "round", "stale", "impostor", "pickle"],
)
def test_a_faulty_reply_is_rejected_by_name_and_the_rest_goes_on(
    phase: str, act: Callable[[Message], Message], reason: str
) -> None:
    ended = on_flower("episode", at(2, phase, 1, act), min_replies=2)
    assert reason in ended.history[1]["missing"]["2"]
    assert_same(ended.model, in_simulation("episode", Without(((1, 2),))))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["probe", "local"])
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        pytest.param(
            short, r"instead of float64 \[33\]", marks=at_a_site("wrong shape", error_within(20))
        ),
        pytest.param(
            relabel(round=0),
            "about round 0 instead of 1",
            marks=at_a_site("stale round", error_within(20)),
        ),
        pytest.param(silence, "did not reply", marks=at_a_site("SIGSTOP", error_within(20))),
        pytest.param(crash, "ClientApp crashed", marks=at_a_site("SIGKILL", error_within(20))),
    ],
    ids=["shape", "stale", "silence", "crash"],
)
@pytest.mark.timeout(20)
def test_where_every_site_is_needed_a_faulty_one_stops_the_run_which_resumes(
    phase: str, act: Callable[[Message], Message], reason: str, tmp_path: Path
) -> None:
    fault = at(2, phase, 1, act)
    with pytest.raises(ClusterError, match=f"Round 1 .*site 2 .*{reason}.* in the {phase} phase"):
        on_flower("episode", fault, retries=0, deadline=0.1, folder=tmp_path)
    assert_same(on_flower("episode", folder=tmp_path).model, in_simulation("episode"))


@at_a_site("NaN", DIVERGED)
@pytest.mark.parametrize("phase", ["probe", "local"])
def test_where_every_site_is_needed_a_nan_of_one_is_the_result(phase: str) -> None:
    ended = on_flower("episode", at(2, phase, 1, nan))
    assert ended.strategy.run is not None
    assert ended.strategy.run.status == "diverged"
    assert all(bool(torch.isfinite(t.double()).all()) for t in ended.model.values())


def test_an_enormous_gradient_is_rejected_where_a_limit_is_set() -> None:
    huge = at(2, "probe", 1, spoil(lambda t: t * 1e9))
    ended = on_flower("episode", huge, min_replies=2, max_norm=1e3)
    assert "above max_norm = 1000" in ended.history[1]["missing"]["2"]
    assert_same(ended.model, in_simulation("episode", Without(((1, 2),))))
    unlimited = on_flower("episode", huge, min_replies=2)
    assert unlimited.history[1]["cohort"] == [0, 1, 2]


@pytest.mark.slow
def test_too_few_replies_are_tried_again_and_then_the_run_stops(tmp_path: Path) -> None:
    tries: list[int] = []

    def twice(client: int, reply: Message) -> Message | None:
        if client == 1 and label(reply) == ("local", 2):
            tries.append(client)
            return None if len(tries) <= 2 else reply
        return reply

    ended = on_flower("episode", twice, deadline=0.1)
    assert ended.history[2]["attempts"] == 3
    assert_same(ended.model, in_simulation("episode"))

    never = at(1, "local", 2, silence)
    who = r"Round 2 was tried 2 times, and 2 of 3 sites .* site 1 did not reply within .* local"
    with pytest.raises(ClusterError, match=who):
        on_flower("episode", never, deadline=0.1, retries=1, folder=tmp_path)
    assert read_json(tmp_path / "summary.json")["status"] == "failed"
    assert len(read_rounds(tmp_path / "rounds.jsonl")) == 2
    resumed = on_flower("episode", folder=tmp_path)
    assert_same(resumed.model, in_simulation("episode"))


def test_a_site_that_fails_says_why() -> None:
    def fails(client: int, reply: Message) -> Message:
        if client == 1 and label(reply)[0] == "probe":
            reply.content.config_records["episode.answer"].update(
                {"status": "failed", "error": "ZeroDivisionError: division by zero"}
            )
        return reply

    with pytest.raises(
        ClusterError, match=r"site 1 failed: ZeroDivisionError.* in the probe phase"
    ):
        on_flower("episode", fails, retries=0)


def test_a_site_whose_own_code_fails_is_heard() -> None:
    from local_grid import LocalGrid

    from federation import app, loss

    calls: list[int] = []

    def breaking(model: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) > 10:
            raise RuntimeError("the disk is gone")
        return loss(model, batch)

    with pytest.raises(ClusterError, match="RuntimeError: the disk is gone"):
        on_flower("episode", grid=LocalGrid(app(loss=breaking), [0, 1, 2]), retries=0)


@pytest.mark.slow
def test_a_superlink_that_is_gone_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a limit of ours, Flower's calls never give up."""
    monkeypatch.setattr("episode.flower.exchange.SUPERLINK_SECONDS", 1.0)
    network, gone = grid(), threading.Event()
    pull = network.pull_messages

    def pull_for_ever(message_ids: Iterable[str]) -> Iterable[Message]:
        if any(m.metadata.message_type == "train.local" for m in network.sent):
            gone.wait(60)
        return pull(message_ids)

    monkeypatch.setattr(network, "pull_messages", pull_for_ever)
    strategy = EpisodeStrategy(**SETTINGS, deadline=2.0)
    with pytest.raises(ClusterError, match="The SuperLink did not answer within 2 s"):
        strategy.start(grid=network, initial_arrays=arrays(), num_rounds=2)
    gone.set()
    for thread in threading.enumerate():
        if thread.name == "episode-superlink":
            thread.join(timeout=30)
