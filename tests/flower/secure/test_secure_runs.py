"""Secure runs give the numbers of open ones, repeat and resume exactly, and show sums only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from local_grid import LocalGrid
from masked_grid import (
    SITES,
    assert_close,
    momentum,
    openly,
    securely,
    sites,
    step_of,
    with_folders,
    words_of,
)

from episode import ALGORITHMS, Algorithm, EpisodeError, Uniform
from episode.errors import ClusterError
from episode.flower import EpisodeStrategy
from episode.flower.secure import scale
from episode.results.store import read_rounds
from federation import SETTINGS, app, arrays, assert_same

STATEFUL = ["scaffold", "episode_plus_plus", momentum("episode"), momentum("scaffold_clipped")]


@pytest.mark.parametrize("name", ["episode", "episode_plus_plus"])
def test_a_secure_run_gives_the_numbers_of_the_simulation_up_to_rounding(name: str) -> None:
    assert_close(securely(name).model, openly(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_so_does_every_algorithm(name: str) -> None:
    assert_close(securely(name).model, openly(name))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*STATEFUL[2:], Algorithm.named("episode", reuse_probe=True)])
def test_so_do_momentum_and_reused_probes(algorithm: Algorithm) -> None:
    assert_close(securely(algorithm).model, openly(algorithm))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episode", "fedavg", "parallel_sgd"])
def test_sites_weigh_themselves_by_their_examples(name: str) -> None:
    weighted = Algorithm.named(name, weighting="examples")
    model = securely(weighted).model
    assert_close(model, openly(weighted))
    uniform = openly(name)
    assert float((model["head.weight"] - uniform["head.weight"]).abs().max()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "episode", "episode_plus_plus"])
def test_cohorts_of_some_sites_give_the_numbers_of_the_simulation(name: str) -> None:
    assert_close(securely(name, cohorts=Uniform(3)).model, openly(name, Uniform(3)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["episode", *STATEFUL], ids=str)
def test_a_run_repeats_and_resumes_bit_for_bit(algorithm: Any, tmp_path: Path) -> None:
    whole = securely(algorithm, folder=tmp_path / "whole")
    assert_same(securely(algorithm).model, whole.model)

    class StopError(Exception):
        pass

    network = with_folders(sites(), tmp_path / "sites")

    def die(client: int, reply: Message) -> Message:
        if step_of(network.sent[-1]) == ("local", 2) and client == 3:
            raise StopError
        return reply

    with pytest.raises(StopError):
        securely(algorithm, fault=die, grid=network, folder=tmp_path / "cut")
    # A run that is started again has another number, and its sites have nothing but their folders.
    network = with_folders(sites(), tmp_path / "sites")
    resumed = securely(algorithm, grid=network, folder=tmp_path / "cut")
    assert_same(resumed.model, whole.model)
    first, second = (read_rounds(tmp_path / f / "rounds.jsonl") for f in ("whole", "cut"))
    assert [{**r, "seconds": 0} for r in first] == [{**r, "seconds": 0} for r in second]


def test_a_site_that_lost_its_memory_is_named() -> None:
    network = sites()

    def forget(client: int, reply: Message) -> Message:
        if client == 3 and step_of(network.sent[-1]) == ("local", 1):
            network.forget(3)
        return reply

    with pytest.raises(ClusterError, match=r"site 3 .*lost its memory .* start .* --state"):
        securely("scaffold", fault=forget, grid=network, start_seconds=0.3)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, Path.touch])
def test_a_state_that_cannot_be_read_is_named_and_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "site-2.safetensors")
    network = with_folders(sites(), tmp_path)
    with pytest.raises(ClusterError, match=r"site-2.safetensors, this site's state, is damaged"):
        securely(grid=network, retries=0, start_seconds=0.3)


def test_a_site_that_lost_its_key_or_its_probe_is_asked_again() -> None:
    network = sites()
    lost = {("probe", 1), ("local", 2)}

    def forget(client: int, reply: Message) -> Message:
        if client == 3 and step_of(network.sent[-1]) in lost:
            lost.remove(step_of(network.sent[-1]))
            network.forget(3)
        return reply

    ended = securely("episode", fault=forget, grid=network)
    assert_close(ended.model, openly("episode"))
    assert [r["cohort"] for r in ended.history] == [list(range(SITES))] * 4


def test_the_server_receives_masked_words_and_nothing_that_is_measured() -> None:
    network, replies = sites(), list[Message]()

    def watch(client: int, reply: Message) -> Message:
        replies.append(reply)
        return reply

    securely("episode_plus_plus", fault=watch, grid=network)
    allowed = {"status", "client", "round", "tag", "public", "signer", "signature"}
    seen = 0
    for reply in replies:
        label = dict(reply.content.config_records["episode.answer"])
        assert not reply.content.metric_records["episode.metrics"]
        if "examples" in label:  # the introduction
            assert label["examples"] == 1
            continue
        assert set(label) <= allowed
        for name, array in reply.content.array_records["episode.arrays"].items():
            assert (name, array.dtype) == ("words", "int64")
            small = (words_of(reply).abs() < 2**56).double().mean()
            assert float(small) < 0.2, "uniform words are rarely small"
            seen += 1
    assert seen == SITES * (1 + 1 + 4)  # sizes, first memories, and four rounds


def test_records_have_means_and_no_single_sites(tmp_path: Path) -> None:
    ended = securely("episode", folder=tmp_path)
    assert not (tmp_path / "clients.jsonl").exists()
    assert ended.strategy.run is not None
    assert not ended.strategy.run.history.client_lines
    plain = securely("episode", folder=None).history
    assert plain[0]["loss"] == ended.history[0]["loss"]
    numbers = sum(p.numel() for n, p in arrays().to_torch_state_dict().items() if "head" in n)
    assert ended.history[0]["bytes_up"] > 2 * SITES * 8 * numbers


def test_values_that_do_not_fit_widen_the_range_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def narrow(self: scale.Scale, *args: Any) -> scale.Scale:
        return scale.Scale({"gradient": -34, "x": -30, "floats": -50})

    monkeypatch.setattr(scale.Scale, "of", narrow)
    ended = securely("episode")
    assert_close(ended.model, openly("episode"))


def test_divergence_is_a_result() -> None:
    ended = securely("fedavg", eta=1e200, rounds=6)
    assert ended.strategy.run is not None
    assert ended.strategy.run.status == "diverged"


def test_buffers_that_are_infinite_stay_so_and_integers_are_exact() -> None:
    from test_strategy import TypedNet

    class Masked(TypedNet):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += int(self.training)
            return super().forward(x)

    results = []
    for secure in (False, True):
        network = LocalGrid(app(model_fn=Masked), [0, 1, 2])
        strategy = EpisodeStrategy(**SETTINGS, start_seconds=3.0, secure=secure)
        start = ArrayRecord(Masked().state_dict())
        results.append(strategy.start(network, start, 2).arrays.to_torch_state_dict())
    for name, value in results[0].items():
        assert torch.allclose(value, results[1][name], atol=1e-6), name
    assert int(results[1]["steps"]) == 6


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (sites(2), {}, "needs 3 or more sites, but there are 2"),
        (sites(), {"num_sites": 2}, "needs 3 or more sites, but there are 2"),
        (sites(), {"min_replies": 2}, "min_replies is 2, but a secure sum needs 3"),
        (sites(), {"cohorts": Uniform(2)}, "cohort of a round has 2 sites"),
        (sites(), {"per_client": True}, "per_client is true, but a secure run sees no single"),
        (
            sites(),
            {"algorithm": Algorithm.named("scaffold", weighting="examples")},
            "weighting='examples' with the correction remembered needs the weight of each site",
        ),
        (sites(**{"min-cohort": 2}), {}, "site . .*min-cohort is 2: it must be 3 or more"),
        (sites(**{"node-key": "/nowhere"}), {}, "node key /nowhere cannot be read"),
        (sites(fingerprints="/nowhere"), {}, "list of fingerprints /nowhere cannot be read"),
        (sites(**{"node-key": "/dev/zero"}), {}, "/dev/zero cannot be read: It is not a regular"),
        (sites(fingerprints="/dev/zero"), {}, "/dev/zero cannot be read: It is not a regular file"),
        (sites(**{"min-cohort": 5}), {"retries": 0}, "cohort has 4 sites, and this site answers"),
    ],
)
def test_mistakes_are_one_sentence(
    network: LocalGrid, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        securely(**{"grid": network, "start_seconds": 0.5, **options})


def test_a_site_that_was_started_with_secure_answers_nothing_in_the_open() -> None:
    from federation import on_flower

    with pytest.raises(EpisodeError, match="started with --secure and answers only in sums"):
        on_flower(grid=sites(secure=True), start_seconds=0.5)
    assert len(securely(grid=sites(secure=True)).history) == 4


def test_a_sum_that_no_honest_sites_can_have_sent_is_not_used() -> None:
    network = sites()
    spoiled = []

    def lie(client: int, reply: Message) -> Message:
        if client == 2 and step_of(network.sent[-1]) == ("local", 1) and not spoiled:
            spoiled.append(1)
            record = reply.content.array_records["episode.arrays"]
            record["words"] = Array((words_of(reply) + 2**40 * 10**6).numpy())
        return reply

    ended = securely("episode", fault=lie, grid=network)
    assert spoiled
    assert_close(ended.model, openly("episode"))
