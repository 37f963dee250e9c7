"""Replies larger than the algorithm allows are rejected, and honest ones never are."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from faults import at, one_per_round
from flwr.app import Array, Message
from hypothesis import given, settings, strategies as st
from local_grid import LocalGrid
from torch import Tensor

from episode import ALGORITHMS, Algorithm, Clipping
from episode.core.clipping import CLIPPINGS
from episode.errors import ClusterError
from episode.federation.protocols import Draw, Objective, Reply
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import Worker
from episode.flower.bounds import FAR_FOR_BUFFERS, Bounds, _change
from episode.flower.checks import Rejected
from episode.flower.messages import Answer
from federation import Net, Without, app, assert_same, in_simulation, on_flower

DESCENTS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.3},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.5, "momentum_of": "raw"},
]
CELLS = [
    (name, descent)
    for name, descent in itertools.product(ALGORITHMS, DESCENTS)
    if "momentum" not in descent or not ALGORITHMS[name].descent.adapts
]


def replacing(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Message], Message]:
    """Return an act that changes one array of a reply."""

    def act(reply: Message) -> Message:
        record = reply.content.array_records["episode.arrays"]
        record[name] = Array(change(torch.from_numpy(record[name].numpy())).numpy())
        return reply

    return act


def far(length: float) -> Callable[[Tensor], Tensor]:
    return lambda t: t + length / math.sqrt(t.numel())


class Rough(Objective):
    """A quadratic of any scale with noise, in any type."""

    def __init__(self, scale: float, noise: float, dtype: torch.dtype, d: int = 7) -> None:
        generator = torch.Generator().manual_seed(d)
        self.x = self.blocks = torch.zeros(d, dtype=dtype)
        self._slope = scale * torch.randn(d, generator=generator)
        self._curvature = scale * torch.rand(d, generator=generator)
        self._noise = noise

    def gradient(self, draw: Draw) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(97 * draw.index + draw.client)
        noise = self._noise * torch.randn(self.x.numel(), generator=generator)
        sign = 1 - 2 * (draw.client % 2)
        found = (self._curvature * self.x.float() + sign * self._slope + noise).to(self.x.dtype)
        return found.square().sum(), found


def played(
    algorithm: Algorithm, sizes: tuple[float, float], steps: int, objective: Rough, rounds: int
) -> list[tuple[Bounds, ClientState, Answer]]:
    """Return what three honest clients answered in each phase, with what is known to the server."""
    eta, gamma = sizes
    found = []
    states = {c: ClientState() for c in range(3)}
    worker = Worker(objective, algorithm)
    x = 3 * torch.randn(objective.x.numel(), generator=torch.Generator().manual_seed(1))
    x = x.to(objective.x.dtype)
    memory = torch.zeros_like(x) if algorithm.correction.remembers else None

    def asked(phase: Any, serve: Callable[[int, ClientState], Reply], **more: Any) -> list[Reply]:
        G, G_norm = more.get("G"), more.get("G_norm", math.nan)
        bounds = Bounds(algorithm, phase, x, Buffers(), G, G_norm, eta, gamma, steps)
        replies = []
        for client, state in states.items():
            before = copy.deepcopy(state)
            reply = serve(client, state)
            reply.vectors = {n: v.clone() for n, v in reply.vectors.items()}
            reply.metrics = {n: None if v is None else float(v) for n, v in reply.metrics.items()}
            found.append((bounds, before, Answer(copy.deepcopy(state), "", reply)))
            replies.append(reply)
        return replies

    for r in range(rounds):
        at_x = {"round": r, "x": x, "buffers": Buffers()}
        G = memory
        if algorithm.correction.probes:
            probes = asked("probe", lambda c, s, at_x=at_x: worker.probe(c, s, **at_x))
            G = torch.stack([p.vectors["gradient"] for p in probes]).mean(0)
        if not algorithm.correction.steps_locally:
            continue
        norm = math.nan if G is None else float(torch.linalg.vector_norm(G))
        ask = {"G": G, "G_norm": norm, "eta": eta, "gamma": gamma, "local_steps": steps}
        ends = asked("local", lambda c, s, a={**at_x, **ask}: worker.local(c, s, **a), **ask)
        x = torch.stack([e.vectors["x"] for e in ends]).mean(0)
        if memory is not None:
            memory = memory + torch.stack([e.vectors["change"] for e in ends]).mean(0)
    return found


def rejection(bounds: Bounds, before: ClientState, answer: Answer) -> Rejected | None:
    try:
        bounds.check(before, answer)
    except Rejected as rejected:
        return rejected
    return None


@settings(max_examples=150, deadline=None)
@given(
    cell=st.sampled_from(CELLS),
    powers=st.tuples(st.integers(-6, 4), st.integers(-6, 4)),
    steps=st.integers(1, 12),
    scale=st.integers(-12, 12),
    noise=st.integers(-12, 6),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_what_honest_sites_send_is_never_beyond_a_proven_limit(
    cell: tuple[str, dict[str, Any]],
    powers: tuple[int, int],
    steps: int,
    scale: int,
    noise: int,
    dtype: torch.dtype,
) -> None:
    """Over the whole grid, with gradients, step sizes and noise of any size; if finite."""
    name, descent = cell
    algorithm = Algorithm.named(name, **descent)
    objective = Rough(10.0**scale, 10.0**noise, dtype)
    sizes = (10.0 ** powers[0], 10.0 ** powers[1])
    for bounds, before, answer in played(algorithm, sizes, steps, objective, 3):
        if (reason := rejection(bounds, before, answer)) is not None:
            assert reason.not_finite, reason
            break


@pytest.mark.parametrize(("name", "descent"), CELLS, ids=str)
def test_honest_sites_are_not_unusual_and_may_have_a_limit_on_their_gradients(
    name: str, descent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits that follow from a limit on gradients hold without any room."""
    monkeypatch.setattr("episode.flower.bounds._ROOM", 1 + 1e-9)
    algorithm = Algorithm.named(name, **descent)
    objective = Rough(2.0, 1.0, torch.float64)
    largest = 0.0
    gradient = objective.gradient

    def recording(draw: Draw) -> tuple[Tensor, Tensor]:
        nonlocal largest
        loss, vector = gradient(draw)
        decay = descent.get("weight_decay", 0.0) * objective.x
        largest = max(largest, float((vector + decay).norm()))
        return loss, vector

    objective.gradient = recording  # type: ignore[method-assign]
    found = played(algorithm, (0.1, 0.05), 5, objective, 4)
    for k, (bounds, before, answer) in enumerate(found):
        limited = Bounds(**{**vars(bounds), "max_norm": largest})
        limited.check(before, answer)
        if k % 3 == 2:
            assert not bounds.outliers({c: found[k - 2 + c][2] for c in range(3)})


def test_a_step_is_never_longer_than_its_clipping_says() -> None:
    for name in CLIPPINGS:
        clipping = CLIPPINGS[name]()
        for g, G, eta, gamma in itertools.product([0.0, 1e-3, 1.0, 1e6], [0.5, 30.0], [0.1], [1.0]):
            length = clipping.step_size(g, G, eta, gamma) * g
            assert length <= clipping.longest_step(g, G, eta, gamma) * (1 + 1e-12)
            assert length <= clipping.longest_step(math.inf, G, eta, gamma)

    class Own(Clipping):
        def step_size(self, g_norm: Any, G_norm: Any, eta: Any, gamma: Any) -> Any:
            return eta

    assert Own().longest_step(1.0, 1.0, 1.0, 1.0) == math.inf


class Ones(Rough):
    """A gradient of ones."""

    def gradient(self, draw: Draw) -> tuple[Tensor, Tensor]:
        return torch.zeros(()), torch.ones_like(self.x)


def test_rounding_is_no_fault() -> None:
    """Each number of x moves by a whole ulp, twice the step, and ‖g‖ = √5 is rounded down."""
    objective = Ones(1.0, 0.0, torch.bfloat16, d=5)
    gamma = 2.234375 * 2**-9
    worker, x = Worker(objective, ALGORITHMS["celgc"]), torch.full_like(objective.x, 1 - 2**-8)
    at_x: dict[str, Any] = {"round": 0, "x": x, "buffers": Buffers(), "G": None, "local_steps": 1}
    reply = worker.local(0, ClientState(), **at_x, G_norm=math.nan, eta=1.0, gamma=gamma)
    assert float((reply.vectors["x"] - x).double().norm()) > 2 * gamma
    reply.metrics = {}
    bounds = Bounds(worker.algorithm, "local", x, Buffers(), None, math.nan, 1.0, gamma, 1)
    bounds.check(ClientState(), Answer(ClientState(), "", reply))


def answer(x: Tensor, velocity: Tensor | None = None) -> Answer:
    return Answer(ClientState(None, None, velocity), "", Reply({"x": x}))


def bounds_of(algorithm: Algorithm, **more: Any) -> Bounds:
    """Return bounds at x̄ = 0 with η = 0.5, γ = 0.001 and I = 4."""
    given = {"G": None, "G_norm": math.nan, "max_norm": None, **more}
    limits = (given["G"], given["G_norm"], 0.5, 1e-3, 4, given["max_norm"])
    return Bounds(algorithm, "local", torch.zeros(3, dtype=torch.float64), Buffers(), *limits)


def test_a_correction_adds_to_the_length_of_a_step() -> None:
    """The gradient is 3 and G_r - G_r^i is 6, so four steps of 0.5 lead as far as 18."""
    unit = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    algorithm = ALGORITHMS["episode_unclipped"]
    bounds = bounds_of(algorithm, G=3 * unit, G_norm=3.0, max_norm=3.0)
    before = ClientState(anchor=-3 * unit)
    bounds.check(before, answer(18 * unit))
    with pytest.raises(Rejected, match="lead no further than 18"):
        bounds.check(before, answer(37 * unit))


def test_a_clipping_does_not_bound_the_steps_of_adamw() -> None:
    unit = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for descent, rejected in (("sgd", True), ("adamw", False)):
        bounds = bounds_of(Algorithm.named("celgc", descent=descent))
        found = rejection(bounds, ClientState(), answer(0.5 * unit))
        assert (found is not None) is rejected


@pytest.mark.parametrize("steps", [0, -1, 2**60])
def test_moments_of_an_impossible_number_of_steps_are_rejected(steps: int) -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    sent = answer(zero)
    sent.state = ClientState(velocity=zero, second=zero, steps=torch.tensor([steps]))
    with pytest.raises(Rejected, match=f"sent moments of {steps} steps"):
        bounds_of(ALGORITHMS["diloco"]).check(ClientState(), sent)


def test_a_velocity_from_earlier_rounds_adds_to_the_length_of_a_step() -> None:
    unit = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    bounds = bounds_of(Algorithm.named("fedavg", momentum=0.9), max_norm=1.0)
    before = ClientState(velocity=100 * unit)
    bounds.check(before, answer(160 * unit, 69 * unit))
    with pytest.raises(Rejected, match="lead no further than 220"):
        bounds.check(before, answer(441 * unit, 69 * unit))
    with pytest.raises(Rejected, match="above what max_norm allows = 220"):
        bounds.check(before, answer(160 * unit, 221 * unit))


def test_who_moves_alone_is_not_unusual_while_the_model_is_as_large() -> None:
    """Two clients are at their minimum, and the median is 0."""
    x = torch.ones(3, dtype=torch.float64)
    bounds = Bounds(**{**vars(bounds_of(ALGORITHMS["fedavg"])), "x": x})
    assert not bounds.outliers({0: answer(x), 1: answer(x), 2: answer(500 * x)})
    assert list(bounds.outliers({0: answer(x), 1: answer(x), 2: answer(1500 * x)})) == [2]


def test_sites_that_move_far_together_are_not_unusual() -> None:
    ended = on_flower("fedavg", eta=1e7, rounds=2, min_replies=2)
    assert ended.history[0]["drift"] > 1e5
    assert not any({"missing", "unusual"} & record.keys() for record in ended.history)


CLIPPED = ["celgc", "scaffold_clipped", "episode", "episode_guarded", "episode_plus_plus"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", CLIPPED)
def test_nobody_moves_further_than_clipped_steps_lead(algorithm: str) -> None:
    """γ·I is 0.03 here; three times as far is rejected even if every site is needed."""
    options = {"gamma": 0.01, "eta": 0.1, "local_steps": 3, "min_replies": 2}
    lie = at(2, "local", 1, replacing("x", far(0.09)))
    ended = on_flower(algorithm, lie, **options)
    said = ended.history[1]["missing"]["2"]
    assert "away from the server's, but the 3 steps of this round lead no further than 0.03" in said
    with pytest.raises(ClusterError, match=r"site 2 sent an x that is .* in the local phase"):
        on_flower(algorithm, lie, **{**options, "min_replies": None, "retries": 0})


def test_a_model_of_a_million_is_left_out_where_nothing_clips() -> None:
    lie = at(2, "local", 1, replacing("x", lambda t: t * 0 + 1e6))
    ended = on_flower("fedavg", lie, min_replies=2)
    said = ended.history[1]["missing"]["2"]
    assert "of norm 5.74e+06, more than 1000 times what is usual in this round" in said
    assert_same(ended.model, in_simulation("fedavg", Without(((1, 2),))))


def test_if_every_site_is_needed_what_is_unusual_is_used_and_said() -> None:
    """Honest numbers may be of any size, and a run is the same on every engine."""
    lie = at(2, "local", 1, replacing("x", lambda t: t * 0 + 1e6))
    ended = on_flower("fedavg", lie)
    assert ended.history[1]["cohort"] == [0, 1, 2]
    assert "more than 1000 times what is usual" in ended.history[1]["unusual"]["2"]
    assert "unusual" not in ended.history[0] | ended.history[2]


def test_the_operators_limit_on_gradients_limits_all_that_comes_of_them() -> None:
    """In FedAvg x moves by at most η·I·max_norm, here 3, with room for rounding 6."""
    options = {"max_norm": 10.0, "min_replies": 2}
    ended = on_flower("fedavg", at(2, "local", 1, replacing("x", far(7.0))), **options)
    assert "lead no further than 3 in the local phase" in ended.history[1]["missing"]["2"]
    momentum = Algorithm.named("fedavg", momentum=0.5)
    lie = at(2, "local", 1, replacing("velocity", far(200.0)))
    ended = on_flower(momentum, lie, **options)
    assert "a velocity of norm 20" in ended.history[1]["missing"]["2"]
    assert "above what max_norm allows" in ended.history[1]["missing"]["2"]
    lie = at(2, "local", 1, replacing("memory", far(11.0)))
    ended = on_flower("episode_plus_plus", lie, **options)
    assert "above max_norm = 10" in ended.history[1]["missing"]["2"]


@pytest.mark.parametrize(
    ("algorithm", "phase", "name", "size"),
    [
        ("parallel_sgd", "probe", "gradient", 1e9),
        ("episode_unclipped", "probe", "gradient", 1e9),
        ("scaffold", "local", "memory", 1e9),
        (Algorithm.named("fedavg", momentum=0.9), "local", "velocity", 1e9),
    ],
    ids=str,
)
def test_vectors_that_are_far_out_of_the_ordinary_are_left_out_where_nothing_clips(
    algorithm: Any, phase: str, name: str, size: float
) -> None:
    ended = on_flower(algorithm, at(2, phase, 1, replacing(name, far(size))), min_replies=2)
    assert f"sent a {name} of norm 1e+09, more than 1000 times" in ended.history[1]["missing"]["2"]
    assert_same(ended.model, in_simulation(algorithm, Without(((1, 2),))))


@pytest.mark.parametrize("algorithm", ["episode", "celgc", "parallel_sgd"])
def test_a_vector_that_would_overflow_at_the_other_sites_is_left_out(algorithm: str) -> None:
    """Its norm is finite at the server, but honest sites would report norms of infinity."""
    phase, name = ("local", "x") if algorithm == "celgc" else ("probe", "gradient")
    ended = on_flower(algorithm, at(2, phase, 1, replacing(name, far(1e153))), min_replies=2)
    assert "which is too large to compute with" in ended.history[1]["missing"]["2"]
    assert_same(ended.model, in_simulation(algorithm, Without(((1, 2),))))


def some(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.cat([t[:-1], torch.tensor([value]).to(t)])


@pytest.mark.parametrize("algorithm", ["fedavg", "parallel_sgd"])
def test_buffers_that_are_not_finite_or_enormous_are_left_out(algorithm: str) -> None:
    acts = [
        replacing("floats", some(math.nan)),
        replacing("floats", some(math.inf)),
        replacing("floats", some(-1e30)),
        replacing("integers", some(2**62)),
        replacing("integers", some(-(2**62))),
    ]
    phase = "local" if algorithm == "fedavg" else "probe"
    fault = one_per_round(2, phase, acts)
    rounds = 2 if algorithm == "parallel_sgd" else 6
    ended = on_flower(algorithm, fault, min_replies=2, rounds=rounds)
    for k, reason in enumerate(["that are not finite"] * 2 + ["more than 1e+09 times"] * 3):
        assert reason in ended.history[1 + k]["missing"]["2"]
    gone = Without(tuple((k, 2) for k in range(1, 6)))
    assert_same(ended.model, in_simulation(algorithm, gone, rounds=rounds))


class Masked(Net):
    """A model with a mask of minus infinity among its buffers, as many attention models have."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.full((3, 3), -math.inf, dtype=torch.float64).triu(1)
        self.register_buffer("mask", mask)


def test_a_buffer_that_was_infinite_from_the_start_is_no_fault() -> None:
    network = LocalGrid(app(model_fn=Masked), [2, 1, 0])
    ended = on_flower("fedavg", grid=network, min_replies=2)
    assert [r["cohort"] for r in ended.history] == [[0, 1, 2]] * 4
    assert not any("missing" in record for record in ended.history)
    assert ended.strategy.run is not None
    assert ended.strategy.run.status == "finished"
    assert_same(ended.model, in_simulation("fedavg"))


def test_a_gradient_of_any_size_is_used_where_its_step_is_clipped() -> None:
    """Heavy tails are what clipping is for."""
    ended = on_flower("episode", at(2, "probe", 1, replacing("gradient", far(1e9))), min_replies=2)
    assert ended.history[1]["cohort"] == [0, 1, 2]
    assert math.isfinite(ended.history[1]["global_norm"])


def test_a_whole_cohort_that_blows_up_has_diverged_and_is_not_rejected() -> None:
    ended = on_flower("fedavg", eta=1e200, rounds=6, min_replies=2)
    assert ended.strategy.run is not None
    assert ended.strategy.run.status == "diverged"


def sent(**vectors: list[float]) -> Answer:
    """Return an answer with these vectors, in float16."""
    tensors = {name: torch.tensor(v, dtype=torch.float16) for name, v in vectors.items()}
    return Answer(ClientState(), "", Reply(tensors, metrics={"loss": 1.0}))


def test_half_precision_has_room_for_norms_up_to_a_sixteenth_of_its_largest_number() -> None:
    x = torch.zeros(2, dtype=torch.float16)
    bounds = Bounds(ALGORITHMS["fedavg"], "probe", x, Buffers(), None, math.nan, 0.1, 1.0, 1)
    bounds.check(ClientState(), sent(gradient=[3000.0, 0.0]))
    with pytest.raises(Rejected, match=r"norm 5e\+03, which is too large to compute with"):
        bounds.check(ClientState(), sent(gradient=[3000.0, 4000.0]))


def test_the_length_of_all_clipped_steps_is_no_unusual_distance() -> None:
    x = torch.zeros(1, dtype=torch.float16)
    bounds = Bounds(ALGORITHMS["fedavg"], "local", x, Buffers(), None, math.nan, 0.1, 0.01, 100)
    others = {0: sent(x=[0.001]), 1: sent(x=[0.001])}
    assert bounds.outliers({**others, 2: sent(x=[900.0])}) == {}
    assert list(bounds.outliers({**others, 2: sent(x=[1100.0])})) == [2]


def bounds_at_6(name: str, **changes: Any) -> Bounds:
    """Return the bounds of a round of four local steps, from an x of norm 6."""
    given = {"buffers": Buffers(), "G": None, "G_norm": 0.0, "eta": 0.1, "gamma": 0.5}
    values: dict[str, Any] = {**given, "local_steps": 4, **changes}
    return Bounds(ALGORITHMS[name], "local", torch.full((4,), 3.0), **values)


def with_buffers(bounds: Bounds, floats: Tensor) -> Answer:
    return Answer(ClientState(), "", Reply({"x": bounds.x}, Buffers(floats)))


def test_there_is_room_for_the_rounding_of_every_step() -> None:
    per_step = 2 * torch.finfo(torch.float32).eps
    assert bounds_at_6("celgc")._with_room(0.0) == pytest.approx(4 * per_step * 6, rel=1e-9)
    extra = bounds_at_6("celgc")._with_room(1.0) - 2.0
    assert extra == pytest.approx(4 * per_step * 7, rel=1e-6)


def test_steps_with_a_proximal_term_have_no_longest_direction() -> None:
    assert bounds_at_6("fedprox", max_norm=1.0)._longest_direction(ClientState()) == math.inf
    assert bounds_at_6("fedavg", max_norm=1.0)._longest_direction(ClientState()) == 1.0


def test_a_change_from_infinity_counts_from_zero() -> None:
    assert _change(torch.tensor([2.0, 5.0]), torch.tensor([math.inf, 5.0])) == 2.0


def test_buffers_far_from_those_of_the_others_are_outliers_even_after_one_step() -> None:
    bounds = bounds_at_6("celgc", buffers=Buffers(torch.zeros(1)), local_steps=1)
    sizes = (1.0, 1.0, 1.5 * FAR_FOR_BUFFERS)
    sent = {c: with_buffers(bounds, torch.tensor([size])) for c, size in enumerate(sizes)}
    assert list(bounds.outliers(sent)) == [2]


def test_buffers_that_are_not_finite_are_rejected_with_the_answer() -> None:
    bounds = bounds_at_6("celgc", buffers=Buffers(torch.zeros(1)))
    answer = with_buffers(bounds, torch.tensor([math.nan]))
    with pytest.raises(Rejected, match="buffers that are not finite") as caught:
        bounds.check(ClientState(), answer)
    assert caught.value.not_finite is answer
