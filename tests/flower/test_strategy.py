"""EpisodeStrategy and attach give the simulation's numbers, and behave like Flower's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid
from torch import Tensor, nn

import episode
from episode import ALGORITHMS, Algorithm, Clipping, EpisodeError, Resampled, Uniform
from episode.errors import ClusterError
from episode.federation.protocols import Task
from episode.flower import EpisodeStrategy, layout, serving
from episode.flower.client import Site, add_actions
from episode.flower.server import FlowerEngine
from episode.flower.sites import Limits, Sites
from episode.results.per_client import read_lines
from episode.results.store import read_rounds
from episode.tasks import trial
from episode.testing import check_engine
from federation import (
    SETTINGS,
    SITES,
    Net,
    app,
    arrays,
    assert_same,
    data,
    data_of,
    grid,
    in_simulation,
    loss,
    on_flower,
)


def engine(task: Task, algorithm: Algorithm) -> FlowerEngine:
    client = ClientApp()
    add_actions(client, lambda context, number, seed, told: Site(task, number), threads=1)
    network = LocalGrid(client, list(reversed(range(task.num_clients))))
    sites = Sites(network, Limits(deadline=20, start_seconds=20), 0)
    sites.meet()
    return FlowerEngine(sites, algorithm)


@pytest.mark.slow
def test_the_flower_engine_is_sound() -> None:
    check_engine(engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_numbers_of_the_simulation(name: str) -> None:
    assert_same(on_flower(name).model, in_simulation(name))


class TypedNet(nn.Module):
    """A float32 model with buffers of other types, some of which follow the data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        nn.init.constant_(self.head.weight, 0.1)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("scale", torch.tensor([1 / 3]))
        self.register_buffer("rotary", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("wide", torch.tensor([1 / 3], dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.complex64))
        self.register_buffer("brain", torch.ones(2, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(torch.complex(x, -x).mean(0))
            self.wide.copy_(x.mean() / 3)
        return self.head(x.float())


@pytest.mark.parametrize("name", ["episode", "fedavg", "parallel_sgd"])
def test_buffers_of_other_types_give_the_numbers_of_the_simulation(
    name: str, tmp_path: Path
) -> None:
    model, start = TypedNet(), TypedNet().state_dict()
    clients = [data(c) for c in range(SITES)]
    options: dict[str, Any] = {**SETTINGS, "algorithm": name}
    episode.fit(model, clients, loss, rounds=3, batch_size=8, **options)
    strategy = EpisodeStrategy(**options, deadline=5.0, start_seconds=3.0, folder=tmp_path)
    network = LocalGrid(app(model_fn=TypedNet), [0, 1, 2])
    result = strategy.start(network, ArrayRecord(start), num_rounds=3)
    ours, theirs = model.state_dict(), result.arrays.to_torch_state_dict()
    assert_same(ours, theirs)
    assert {n: t.dtype for n, t in theirs.items()} == {n: t.dtype for n, t in start.items()}
    assert torch.equal(theirs["rotary"], start["rotary"])
    assert theirs["mean"].abs().min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm.named("episode", momentum=0.9, weight_decay=0.01, reuse_probe=True),
        Algorithm.named("scaffold_clipped", momentum=0.5, nesterov=True),
        Algorithm.named("episode_plus_plus", weighting="examples"),
        Algorithm.named("parallel_sgd", momentum=0.9),
        Algorithm.named("scaffold", probe_first=True, probe_batches="local_steps"),
        Algorithm.named("episode", descent={"name": "adamw", "moments": "reset"}, server="yogi"),
        Algorithm.named("diloco", correction="remembered", clipping="per_step"),
    ],
    ids=str,
)
def test_options_too(algorithm: Algorithm) -> None:
    assert_same(on_flower(algorithm).model, in_simulation(algorithm))


@dataclass(frozen=True)
class Soft(Clipping):
    """A clipping that the sites can import."""

    scale: float = 1.0

    def step_size(self, g_norm: Any, G_norm: Any, eta: Any, gamma: Any) -> Any:
        return eta / (1 + eta * g_norm / (self.scale * gamma))


@pytest.mark.slow
def test_a_clipping_of_ones_own_gives_the_numbers_of_the_simulation() -> None:
    one, fifty = (Algorithm(Resampled(), Soft(scale)) for scale in (1.0, 50.0))
    assert_same(on_flower(one).model, in_simulation(one))
    assert_same(on_flower(fifty).model, in_simulation(fifty))


def test_a_site_that_lacks_a_piece_says_so_before_the_first_round() -> None:
    @dataclass(frozen=True)
    class Unknown(Soft):
        """A class inside a function, which cannot be found by its name."""

    network = grid()
    message = r"before round 0: site \d .* failed: There is no clipping '.*Unknown'"
    with pytest.raises(EpisodeError, match=message):
        on_flower(Algorithm(Resampled(), Unknown()), grid=network)
    assert {m.metadata.message_type for m in network.sent} == {"query.episode"}


@pytest.mark.parametrize("name", ["episode", "scaffold", "episode_plus_plus"])
def test_cohorts_of_some_sites_give_the_numbers_of_the_simulation(name: str) -> None:
    some = Uniform(2)
    assert_same(on_flower(name, cohorts=some).model, in_simulation(name, some))


def test_only_the_global_gradient_goes_down_after_a_probe() -> None:
    """The counted bytes assume this: the sites hold x̄_r already."""
    ended = on_flower("episode")
    for message in ended.grid.sent:
        records = message.content.array_records
        if message.metadata.message_type == "train.local":
            assert list(records["episode.arrays"]) == ["G"]
        assert "episode.state" not in records
        for record in message.content.values():
            assert type(record).__name__ in ("ArrayRecord", "ConfigRecord", "MetricRecord")
        for record in records.values():
            assert all(a.stype == "numpy.ndarray" for a in record.values())


def test_it_evaluates_as_flower_does() -> None:
    client = app()

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        number = int(context.node_config["partition-id"])
        assert message.content.config_records["config"]["extra"] == 7
        metrics = MetricRecord({"number": number, "num-examples": 1 + number})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    seen: list[int] = []

    def on_server(server_round: int, found: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        Net().load_state_dict(found.to_torch_state_dict())
        return MetricRecord({"accuracy": 0.5})

    from flwr.app import ConfigRecord

    from episode.flower import EpisodeStrategy

    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=2)
    result = strategy.start(
        grid=LocalGrid(client, [0, 1, 2]),
        initial_arrays=arrays(),
        num_rounds=2,
        evaluate_config=ConfigRecord({"extra": 7}),
        evaluate_fn=on_server,
    )
    assert seen == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == 0.5
    weighted = (0 * 1 + 1 * 2 + 2 * 3) / 6
    assert result.evaluate_metrics_clientapp[1]["number"] == pytest.approx(weighted)
    assert result.train_metrics_clientapp[1]["sites"] == 3
    assert strategy.run is not None
    assert strategy.run.summary["metrics"]["sites_number"] == pytest.approx(weighted)
    found = strategy.run.summary["per_client"]
    assert found["sites_number"]["each"] == {"site 0": 0.0, "site 1": 1.0, "site 2": 2.0}
    assert set(found) == {"sites_number", "loss"}, "how many examples is no metric"
    for line in strategy.run.history.client_lines:
        assert line["metrics"] == {"sites_number": [0.0, 1.0, 2.0]}
        assert len(line["drift"]) == 3


@pytest.mark.parametrize("per_client", [None, False])
def test_sites_are_asked_once_after_a_round_whether_their_records_are_kept_or_not(
    per_client: bool | None, tmp_path: Path
) -> None:
    client = app()

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) == 1:
            raise ValueError("out of memory")
        metrics = MetricRecord({"loss": 0.5, "num-examples": 3, "curve": [0.1, 0.2]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    network = LocalGrid(client, [0, 1, 2])
    ended = on_flower(
        grid=network, rounds=2, evaluate_every=2, per_client=per_client, folder=tmp_path
    )
    asked = [m for m in network.sent if m.metadata.message_type == "evaluate"]
    assert len(asked) == 3
    assert ended.strategy.run is not None
    assert (tmp_path / "clients.jsonl").exists() is (per_client is None)
    if per_client is None:
        line = read_lines(tmp_path)[-1]
        assert line["evaluated"] == [0, 2], "site 1 failed"
        assert line["metrics"] == {"sites_loss": [0.5, 0.5]}
        assert len(line["loss"]) == 3
    assert ended.history[-1]["metrics"] == {"sites_loss": 0.5}


def test_a_run_has_a_folder_and_goes_on_from_it(tmp_path: Path) -> None:
    whole = on_flower("scaffold_clipped", folder=tmp_path / "whole", rounds=4)

    class StopError(Exception):
        pass

    def die_in_round_two(client: int, reply: Message) -> Message:
        label = reply.content.config_records.get("episode.answer", {})
        if label.get("round") == 2 and client == 1:
            raise StopError
        return reply

    with pytest.raises(StopError):
        on_flower("scaffold_clipped", die_in_round_two, folder=tmp_path / "cut", rounds=4)
    resumed = on_flower("scaffold_clipped", folder=tmp_path / "cut", rounds=4)
    assert_same(resumed.model, whole.model)
    first, second = (read_rounds(tmp_path / f / "rounds.jsonl") for f in ("whole", "cut"))
    assert [{**r, "seconds": 0} for r in first] == [{**r, "seconds": 0} for r in second]
    again = on_flower("scaffold_clipped", folder=tmp_path / "cut", rounds=4)  # read back
    assert_same(again.model, whole.model)


def test_divergence_is_a_result() -> None:
    ended = on_flower("fedavg", eta=1e200, rounds=6)
    assert ended.strategy.run is not None
    assert ended.strategy.run.status == "diverged"


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 7, bias=False)


class ThawedNet(Net):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.embed.weight.add_(1)


def no_data(context: Context) -> Any:
    inputs, labels = data_of(context)
    return (
        (inputs[:0], labels[:0]) if context.node_config["partition-id"] == 1 else (inputs, labels)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (
            LocalGrid(app(), [0, 1, 1]),
            {},
            r"before round 0: site 1 \(node 100[12]\) .* partition-id of node 100",
        ),
        (LocalGrid(app(), [0, 1, 3]), {"num_sites": 3}, "partition-id 3, but there are 3 sites"),
        (LocalGrid(app(data_fn=no_data), [0, 1, 2]), {}, "site 1 .* Client 1 has no examples"),
        (LocalGrid(app(model_fn=ThawedNet), [0, 1, 2]), {}, "other values in embed.weight, which"),
        (LocalGrid(app(batch_size=None), [0, 1, 2]), {}, "batch size is None: give attach"),
        (LocalGrid(ClientApp(), [0, 1, 2]), {"start_seconds": 0.5}, r"call attach\(app"),
        (
            grid(),
            {"num_sites": 5, "start_seconds": 0.5},
            "5 sites are needed, but 3 .*site 3, site",
        ),
        (grid(), {"min_replies": 4}, "min_replies is 4, but there are 3 sites"),
        (grid(), {"cohorts": Uniform(4)}, "cohort_size is 4, but there are 3"),
        (grid(), {"min_replies": 0}, "min_replies is 0"),
        (grid(), {"algorithm": "epsode"}, "did you mean 'episode'"),
        (grid(), {"fraction_evaluate": 2}, "fraction_evaluate is 2"),
        (grid(), {"deadline": -1.0}, "deadline is -1"),
        (grid(), {"deadline": 0}, "deadline is 0: it must be a number above 0"),
        (grid(), {"eta": "0.1"}, "eta is '0.1': it must be a number"),
        (grid(), {"gamma": True}, "gamma is True: it must be a number"),
        (grid(), {"local_steps": 2.0}, "local_steps is 2.0: it must be a whole number"),
        (grid(), {"local_steps": 0}, "local_steps is 0: it must be 1 or more"),
        (grid(), {"seed": None}, "seed is None: it must be a whole number"),
        (grid(), {"schedule": "cosinus"}, "There is no schedule 'cosinus': did you mean 'cosine'"),
        (grid(), {"cohorts": 2}, "cohorts is 2: give Full"),
        (grid(), {"num_sites": "3"}, "num_sites is '3': it must be a whole number"),
        (grid(), {"num_sites": 0}, "num_sites is 0: it must be 1 or more"),
        (grid(), {"min_replies": True}, "min_replies is True: it must be a whole number"),
        (grid(), {"retries": 1.5}, "retries is 1.5: it must be a whole number"),
        (grid(), {"start_seconds": float("nan")}, "start_seconds is nan"),
        (grid(), {"max_norm": "1"}, "max_norm is '1': it must be a number"),
        (grid(), {"folder": 3}, "folder is 3: give the path of a folder"),
        (grid(), {"fraction_evaluate": "all"}, "fraction_evaluate is 'all'"),
        (grid(), {"fraction_evaluate": True}, "fraction_evaluate is True"),
        (grid(), {"evaluate_every": -1}, "evaluate_every is -1: it must be 0 or more"),
        (grid(), {"weighted_by_key": 3}, "weighted_by_key is 3: give a name"),
        (grid(), {"rounds": "3"}, "num_rounds is '3': it must be a whole number"),
    ],
)
def test_mistakes_are_named(network: LocalGrid, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        on_flower(grid=network, **options)


def test_a_model_that_is_not_that_of_the_initial_arrays_is_named() -> None:
    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=2, start_seconds=1.0)
    other = ArrayRecord({**Net().state_dict(), "head.weight": torch.zeros(3, 9)})
    with pytest.raises(EpisodeError, match=r"site \d .*head.weight of \[3, 6\], but .* \[3, 9\]"):
        strategy.start(grid=grid(), initial_arrays=other)
    less = {k: v for k, v in Net().state_dict().items() if k != "head.bias"}
    with pytest.raises(EpisodeError, match=r"trains head.bias, which the initial arrays do not"):
        strategy.start(grid=grid(), initial_arrays=ArrayRecord(less))
    more = ArrayRecord({**Net().state_dict(), "tail": torch.zeros(2)})
    with pytest.raises(EpisodeError, match="has no tail, which is among the initial arrays"):
        strategy.start(grid=grid(), initial_arrays=more)
    single = ArrayRecord({n: t.float() for n, t in Net().state_dict().items()})
    with pytest.raises(EpisodeError, match=r"frozen|float64, but the initial arrays are"):
        strategy.start(grid=grid(), initial_arrays=single)


class OtherBase(Net):
    """The model of a site that has taken another file for its frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed.weight.data += 0.1


@pytest.mark.parametrize(
    ("holds_base", "sentence"),
    [
        (True, "has other values in embed.weight, which is frozen, than the initial arrays"),
        (False, "has other values in the frozen base of its model than the other sites"),
    ],
)
def test_a_site_with_another_base_is_named(holds_base: bool, sentence: str) -> None:
    models = iter([Net, OtherBase, Net])
    network = LocalGrid(app(model_fn=lambda: next(models)()), [0, 1, 2])
    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=2, start_seconds=1.0)
    given = {n: t for n, t in Net().state_dict().items() if holds_base or n != "embed.weight"}
    with pytest.raises(EpisodeError, match=sentence):
        strategy.start(grid=network, initial_arrays=ArrayRecord(given))


@pytest.mark.parametrize("processes", ["one", "one for each message"])
def test_a_base_is_loaded_once_per_process_and_read_and_tried_once_per_run(
    processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            calls[name] += 1
            return function(*args)

        return counted

    monkeypatch.setattr(layout, "_checksum", counting("read", layout._checksum))
    monkeypatch.setattr(trial, "_check_value", counting("tried", trial._check_value))
    expected = on_flower(rounds=2).model
    calls.clear()
    if processes != "one":
        monkeypatch.setattr(serving, "_SITES", {})
        monkeypatch.setattr(serving, "_MOST_SITES", 0)
    network = LocalGrid(app(model_fn=counting("loaded", Net)), [0, 1, 2])
    ended = on_flower(grid=network, rounds=2)
    assert_same(ended.model, expected)
    # Each introduction reads the one frozen layer, and the server compares it with its own.
    assert (calls["read"], calls["tried"]) == (2 * SITES, SITES)
    messages = 1 + 2 * 2
    assert calls["loaded"] == (SITES if processes == "one" else SITES * messages)


def test_a_start_with_wrong_arguments_is_a_sentence() -> None:
    strategy = EpisodeStrategy(eta=np.float32(0.1), gamma=0.1, local_steps=np.int64(2))
    for wrong, message in (
        ({"timeout": float("nan")}, "timeout is nan: it must be a number above 0"),
        ({"evaluate_fn": 3}, "evaluate_fn is 3: give a function"),
        ({"initial_arrays": {}}, "initial_arrays is {}: give ArrayRecord"),
    ):
        with pytest.raises(EpisodeError, match=message):
            strategy.start(**{"grid": grid(), "initial_arrays": arrays(), **wrong})


def test_it_is_not_to_be_wrapped() -> None:
    from episode.flower import EpisodeStrategy

    strategy = EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=2)
    with pytest.raises(EpisodeError, match="plays its own rounds"):
        strategy.aggregate_train(1, [])
    with pytest.raises(ClusterError, match="1 sites are needed, but 0 came"):
        EpisodeStrategy(eta=0.1, gamma=0.1, local_steps=1, start_seconds=0.2).start(
            grid=LocalGrid(app(), []), initial_arrays=arrays()
        )
    assert SITES == 3
