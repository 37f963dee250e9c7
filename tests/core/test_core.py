"""The one local step, on toy vectors, with numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from episode import ALGORITHMS, Algorithm, Descent, EpisodeError, Schedule, ServerSGD
from episode.core import Correction, Episodic, Guarded, PerStep, Resampled, Unclipped, Uncorrected
from episode.core.clipping import Clipping, is_clipped
from episode.core.vectors import (
    Vector,
    add_,
    clamped_ratio,
    cut,
    dot,
    holds,
    maximum,
    minimum,
    norm,
    where,
)

positive = st.floats(1e-3, 1e3)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def step(algorithm: Algorithm, x: Tensor, gradient: Tensor, **given: object) -> Tensor:
    x = x.clone()
    values = {"shift": None, "velocity": None, "G_norm": math.nan, "eta": 0.1, "gamma": 1.0}
    algorithm.step(x, gradient.clone(), **{**values, **given})
    return x


def test_an_unclipped_step_is_eta_times_the_gradient() -> None:
    x = step(ALGORITHMS["fedavg"], vector(1, 1), vector(3, 4))
    assert torch.allclose(x, vector(0.7, 0.6))


def test_a_per_step_clipped_step_is_never_longer_than_gamma() -> None:
    x = step(ALGORITHMS["celgc"], vector(0, 0), vector(3, 4), gamma=0.25)
    assert torch.allclose(x, vector(-0.15, -0.2))


def test_line_9_adds_the_global_and_takes_away_the_local_gradient() -> None:
    shift = vector(1, 0) - vector(2, 2)  # G - G_i
    x = step(ALGORITHMS["episode_unclipped"], vector(0, 0), vector(3, 4), shift=shift)
    assert torch.allclose(x, vector(-0.2, -0.2))


@pytest.mark.parametrize("name", ["episode", "episode_guarded"])
def test_in_a_clipped_round_even_a_short_step_is_lengthened_to_gamma(name: str) -> None:
    x = step(ALGORITHMS[name], vector(0, 0), vector(0.3, 0.4), G_norm=11.0)
    assert norm(x) == pytest.approx(1.0, abs=1e-9)


def test_in_an_unclipped_round_even_a_long_step_is_left_alone() -> None:
    x = step(ALGORITHMS["episode"], vector(0, 0), vector(300, 400), G_norm=9.0)
    assert norm(x) == pytest.approx(50.0)


def test_guarded_clips_the_long_steps_of_an_unclipped_round() -> None:
    x = step(ALGORITHMS["episode_guarded"], vector(0, 0), vector(300, 400), G_norm=9.0)
    assert norm(x) == pytest.approx(1.0)


def test_at_a_tie_the_round_is_not_clipped() -> None:
    assert not is_clipped(10.0, eta=0.1, gamma=1.0)
    assert is_clipped(math.nextafter(10.0, 11.0), eta=0.1, gamma=1.0)


def test_a_zero_gradient_in_a_clipped_round_does_not_move_and_is_not_nan() -> None:
    x = step(ALGORITHMS["episode"], vector(1, 2), vector(0, 0), G_norm=99.0)
    assert torch.equal(x, vector(1, 2))


@given(positive, positive, positive, positive)
def test_guarded_steps_never_exceed_gamma_nor_eta_where_the_round_is_unclipped(
    g: float, G: float, eta: float, gamma: float
) -> None:
    size = Guarded().step_size(g, G, eta, gamma)
    assert isinstance(size, float)
    assert size * g <= gamma * (1 + 1e-9)
    if not is_clipped(G, eta, gamma):
        assert size <= eta


@given(positive, positive, positive)
def test_per_step_clipping_is_episodic_clipping_by_the_steps_own_gradient(
    g: float, eta: float, gamma: float
) -> None:
    """Except at a tie up to rounding, where both sizes are the same number anyway."""
    a = PerStep().step_size(g, math.nan, eta, gamma)
    b = Episodic().step_size(g, g, eta, gamma)
    assert a == pytest.approx(b, rel=1e-6)


@pytest.mark.parametrize("clipping", [Unclipped(), PerStep(), Episodic(), Guarded()])
def test_tensors_and_floats_decide_alike(clipping: Unclipped) -> None:
    norms = torch.tensor([[0.5], [5.0], [50.0]], dtype=torch.float64)
    for G in (1.0, 9.0, 11.0):
        tensor = clipping.step_size(norms, torch.full_like(norms, G), 0.1, 1.0)
        floats = [clipping.step_size(n.item(), G, 0.1, 1.0) for n in norms]
        assert torch.as_tensor(tensor).expand(3, 1).flatten().tolist() == pytest.approx(floats)


def test_a_norm_goes_over_all_blocks() -> None:
    assert norm([vector(3, 0), vector(4)]) == pytest.approx(5.0)
    assert norm([torch.tensor([[3.0, 0], [0, 0]]), torch.tensor([[4.0]])]) == pytest.approx(5.0)


def test_leading_dimensions_of_a_flat_vector_are_vectors_of_their_own() -> None:
    batch = norm(torch.tensor([[3.0, 4], [6, 8]]))
    assert torch.equal(torch.as_tensor(batch), torch.tensor([[5.0], [10.0]]))


def test_nan_is_never_hidden_by_minimum_or_maximum() -> None:
    for function in (minimum, maximum):
        assert math.isnan(function(math.nan, 1.0))
        assert math.isnan(function(1.0, math.nan))
    assert (minimum(1.0, 2.0), maximum(1.0, 2.0), where(True, 1.0, 2.0)) == (1.0, 2.0, 1.0)


def test_a_number_and_a_tensor_can_be_compared() -> None:
    both = torch.tensor([1.0, 3.0])
    for a, b in ((both, 2.0), (2.0, both)):
        assert torch.as_tensor(minimum(a, b)).tolist() == [1, 2]
        assert torch.as_tensor(maximum(a, b)).tolist() == [2, 3]
    assert torch.as_tensor(clamped_ratio(both, 4.0)).tolist() == [0.25, 0.75]
    assert torch.as_tensor(clamped_ratio(1.5, both)).tolist() == [1.0, 0.5]


def test_cutting_gives_views() -> None:
    whole = torch.zeros(6)
    parts = cut(whole, [torch.zeros(2), torch.zeros(2, 2)])
    parts[1].fill_(1)
    assert parts[1].shape == (2, 2)
    assert whole.tolist() == [0, 0, 1, 1, 1, 1]
    assert cut(whole, torch.zeros(6)) is whole


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_momentum_nesterov_and_decay_are_those_of_torch(nesterov: bool, decay: float) -> None:
    descent = Descent(momentum=0.9, weight_decay=decay, nesterov=nesterov)
    algorithm = Algorithm(Uncorrected(), Unclipped(), descent)
    ours = vector(1, -2)
    theirs = torch.nn.Parameter(ours.clone())
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=decay, nesterov=nesterov)
    velocity = torch.zeros(2, dtype=torch.float64)
    for _ in range(5):
        gradient = 3 * ours.clone()
        theirs.grad = 3 * theirs.detach().clone()
        sgd.step()
        descent.decay_(gradient, ours)
        algorithm.step(ours, gradient, None, velocity, math.nan, 0.1, 1.0)
    assert torch.allclose(ours, theirs.detach(), rtol=1e-14)


def test_a_proximal_term_is_mu_times_the_way_from_the_given_model() -> None:
    gradient = vector(1, 1)
    Descent(proximal=0.5).pull_(gradient, vector(3, 0), vector(1, 4))
    assert gradient.tolist() == [2, -1]


def test_numbers_of_batches_may_come_as_text() -> None:
    assert Algorithm.named("episode", probe_batches="3").batches_of_probe(local_steps=8) == 3
    assert Algorithm.named("episode", probe_batches="local_steps").batches_of_probe(8) == 8


@pytest.mark.parametrize("nesterov", [False, True])
def test_raw_momentum_keeps_the_correction_out_of_the_buffer(nesterov: bool) -> None:
    descent = Descent(momentum=0.5, momentum_of="raw", nesterov=nesterov)
    velocity, shift = vector(2), vector(10)
    g = descent.direction(vector(4), shift, velocity)
    assert velocity.item() == 0.5 * 2 + 4
    assert g.item() == (4 + 0.5 * 5 if nesterov else 5) + 10
    assert shift.item() == 10


def test_corrected_momentum_has_the_correction_in_the_buffer() -> None:
    velocity = vector(2)
    g = Descent(momentum=0.5).direction(vector(4), vector(10), velocity)
    assert velocity.item() == g.item() == 0.5 * 2 + 14


def test_a_clipped_step_with_momentum_has_length_gamma_exactly() -> None:
    algorithm = Algorithm(Resampled(), Episodic(), Descent(momentum=0.9))
    x, velocity = vector(0, 0), vector(30, 40)
    algorithm.step(x, vector(1, 1), vector(0, 0), velocity, 1e9, 0.1, 0.25)
    assert norm(x) == pytest.approx(0.25, rel=1e-9)


def test_every_named_algorithm_survives_json_and_is_hashable() -> None:
    rebuilt = {Algorithm.from_dict(a.to_dict()) for a in ALGORITHMS.values()}
    assert rebuilt == set(ALGORITHMS.values())
    assert len(rebuilt) == len(ALGORITHMS)


@pytest.mark.parametrize("clipping", [Episodic(), Guarded()])
def test_a_clipping_that_needs_a_global_gradient_is_refused_without_one(clipping: Guarded) -> None:
    with pytest.raises(EpisodeError, match="needs a global gradient, but the correction is Uncorr"):
        Algorithm(Uncorrected(), clipping)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {"reuse_probe": True}, "there is none: use Resampled"),
        ("scaffold", {"reuse_probe": True}, "there is none"),
        ("naive_parallel_clip", {"reuse_probe": True}, "there is none"),
        ("fedavg", {"probe_batches": 2}, "is 2, but Uncorrected correction makes no probe"),
        ("episode", {"probe_batches": 0}, "must be 1 or more"),
        ("episode", {"probe_batches": "many"}, "'many': it must be a whole number, or 'local_st"),
        ("scaffold", {"probe_batches": "local_steps"}, "set probe_first for Remembered"),
        ("episode", {"probe_first": True}, "Resampled correction has none: use Remembered"),
        ("fedavg", {"proximal": -0.1}, "proximal is -0.1: it must be 0 or more"),
        ("parallel_sgd", {"proximal": 0.1}, "with Synchronous correction there are none"),
        ("episode", {"momentum": 1.0}, "below 1"),
        ("episode", {"momentum": math.nan}, "momentum is nan"),
        ("episode", {"weight_decay": -1.0}, "0 or more"),
        ("episode", {"nesterov": True}, "momentum is 0"),
        ("episode", {"momentum_of": "row"}, "no momentum_of 'row': did you mean 'raw'"),
        ("episode", {"weighting": "example"}, "no weighting 'example': did you mean 'examples'"),
        ("episode", {"momentum": "much"}, "algorithm.momentum is 'much': it must be a number"),
        ("diloco", {"descent": {"eps": "x"}}, "algorithm.descent.eps is 'x': it must be a number"),
        ("episode", {"momentun": 0.5}, "did you mean 'algorithm.momentum'"),
        ("epsode", {}, "did you mean 'episode'"),
        ("xyz", {}, "use one of celgc, diloco, episode"),
    ],
)
def test_meaningless_algorithms_are_refused_in_a_sentence(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        Algorithm.named(name, **options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Algorithm(Resampled(), Episodic(), reuse_probe=1), "reuse_probe is 1: it must be"),
        (lambda: Algorithm(Resampled(), Episodic(), probe_first=0), "probe_first is 0: it must be"),
        (lambda: Algorithm(Resampled(), Episodic(), probe_batches=1.5), "probe_batches is 1.5"),
        (lambda: Descent(momentum=0.5, nesterov=1), "nesterov is 1: it must be True or False"),
        (lambda: ServerSGD(momentum=0.5, nesterov=1), "server.nesterov is 1: it must be True or"),
        (lambda: Algorithm(Uncorrected(), Guarded()), "Guarded clipping needs a global gradient"),
        (lambda: Algorithm.named(3), "algorithm is 3: give a name, such as 'episode'"),
    ],
)
def test_values_that_a_program_gives_are_checked_as_those_of_a_config_are(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        build()


@pytest.mark.parametrize("wrong", [{"probes": True, "remembers": True}, {"steps_locally": False}])
def test_a_correction_of_answers_that_contradict_each_other_is_refused(
    wrong: dict[str, bool],
) -> None:
    kind = type("Muddled", (Correction,), wrong)
    with pytest.raises(EpisodeError, match="Muddled correction must not both probe and remember"):
        kind()


def test_the_description_of_an_algorithm_is_part_of_the_identity_of_runs_and_stays() -> None:
    plain = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "momentum_of": "corrected"}
    options = {"probe_batches": 1, "reuse_probe": False, "weighting": "uniform"}
    pieces = {"correction": "resampled", "clipping": "episodic", "trust": "full"}
    assert ALGORITHMS["episode"].to_dict() == {**pieces, **plain, **options}
    changed = Algorithm.named("episode", proximal=0.5).to_dict()
    assert changed == {**pieces, **plain, **options, "proximal": 0.5}
    adamw = Algorithm.named("episode", descent="adamw").to_dict()
    own = {"name": "adamw", **plain, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999}
    assert adamw == {**pieces, **options, "descent": {**own, "eps": 1e-8, "moments": "kept"}}


def test_an_algorithm_without_changes_is_that_algorithm() -> None:
    """It need not be found by name, so its pieces may be defined anywhere."""
    algorithm = Algorithm(Resampled(), Episodic())
    assert Algorithm.named(algorithm) is algorithm


def test_a_step_believes_as_much_of_the_correction_as_it_is_told() -> None:
    algorithm = ALGORITHMS["episode_unclipped"]
    x = step(algorithm, vector(0, 0), vector(3, 4), shift=vector(8, -8), trust=0.25)
    assert torch.allclose(x, vector(-0.5, -0.2))


def test_a_step_schedule_takes_fractions_and_rounds() -> None:
    schedule = Schedule(1.0, 0.1, kind="step", milestones=(0.6, 80), factor=0.5)
    etas = [schedule.at(r, 100)[0] for r in (0, 59, 60, 79, 80, 99)]
    assert etas == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_gamma_follows_eta_unless_told_otherwise() -> None:
    step = {"kind": "step", "milestones": (10,)}
    assert Schedule(1.0, 0.1, **step).at(10, 20) == (0.5, 0.05)
    assert Schedule(1.0, 0.1, **step, gamma_follows_eta=False).at(10, 20) == (0.5, 0.1)
    assert Schedule(2.0, 0.1).threshold == 0.05


def test_a_milestone_of_one_is_a_round_and_not_the_whole_run() -> None:
    schedule = Schedule(1.0, 1.0, kind="step", milestones=(1,), factor=0.5)
    assert [schedule.at(r, 10)[0] for r in range(3)] == [1.0, 0.5, 0.5]


def test_cosine_falls_to_its_final_factor_and_warmup_rises_from_above_zero() -> None:
    cosine = Schedule(1.0, 1.0, kind="cosine", final=0.2)
    assert cosine.at(0, 10)[0] == 1
    assert cosine.at(5, 10)[0] == pytest.approx(0.6)
    assert cosine.at(10, 10)[0] == pytest.approx(0.2)
    warm = Schedule(1.0, 1.0, warmup=4)
    assert [warm.at(r, 10)[0] for r in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert Schedule(1.0, 1.0, warmup=0.4).at(0, 10)[0] == 0.25
    assert Schedule(1.0, 1.0, warmup=1.5).at(0, 10)[0] == 1 / 1.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eta": 0.0}, "eta is 0.0"),
        ({"eta": math.nan}, "eta is nan"),
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"gamma": math.inf}, "gamma is inf"),
        ({"kind": "cosinus"}, "There is no schedule 'cosinus': did you mean 'cosine'"),
        ({"eta": "fast"}, "eta is 'fast': it must be a number"),
        ({"warmup": None}, "warmup is None: it must be a number"),
        ({"milestones": 3}, "milestones is 3: give a list of numbers"),
        ({"milestones": ["a"]}, "each of milestones is 'a': it must be a number"),
        ({"gamma_follows_eta": 1}, "gamma_follows_eta is 1: it must be True or False"),
        ({"kind": "step"}, "needs milestones"),
        ({"milestones": (0.5,)}, "belong to a step schedule"),
        ({"kind": "step", "milestones": (0,)}, "each must be above 0"),
        ({"kind": "step", "milestones": (1,), "factor": 0.0}, "factor is 0.0"),
        ({"kind": "step", "milestones": (1,), "factor": 1.5}, "factor is 1.5"),
        ({"final": 2.0}, "final is 2.0"),
        ({"warmup": -1.0}, "warmup is -1.0"),
        ({"warmup": math.inf}, "warmup is inf"),
    ],
)
def test_meaningless_schedules_are_refused_in_a_sentence(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        Schedule(**{"eta": 1.0, "gamma": 1.0, **values})


def test_the_edges_of_a_schedules_ranges_belong_to_them() -> None:
    constant = Schedule(1.0, 1.0, kind="step", milestones=(1,), factor=1.0)
    assert constant.at(5, 10) == (1.0, 1.0)
    assert Schedule(1.0, 1.0, kind="cosine", final=1.0).at(5, 10) == (1.0, 1.0)
    assert Schedule(1.0, 1.0, final=0.0, warmup=0.0).at(0, 10) == (1.0, 1.0)


def test_an_algorithm_without_a_correction_is_refused_in_a_sentence() -> None:
    with pytest.raises(EpisodeError, match="The algorithm has no correction"):
        Algorithm.from_dict({"clipping": "episodic"})


def test_the_norm_of_a_direction_is_computed_only_for_a_clipping_that_asks() -> None:
    x, gradient = torch.zeros(2), torch.tensor([3.0, 4.0])
    plain, clipped = ALGORITHMS["fedavg"], ALGORITHMS["celgc"]
    assert plain.step(x, gradient.clone(), None, None, math.nan, 0.1, 1.0) == (0.1, None)
    assert clipped.step(x, gradient.clone(), None, None, math.nan, 0.1, 1.0)[1] == 5.0


@pytest.mark.parametrize(
    "v", [torch.tensor([3.0, 4.0]), [torch.tensor([3.0]), torch.tensor([4.0])]]
)
def test_norms_and_products_of_one_vector_on_the_cpu_are_numbers(v: Vector) -> None:
    assert (type(norm(v)), type(dot(v, v))) == (float, float)


def test_vectors_in_other_blocks_have_no_product_and_no_sum() -> None:
    ones = [torch.ones(2), torch.ones(2)]
    assert dot(ones[0], ones[:1]) == 2  # a flat vector is its own only block
    for operation in (dot, lambda v, w: add_(v, w, torch.ones(1))):
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            operation(ones, ones[:1])


def test_which_float_types_hold_which_others() -> None:
    assert holds(torch.float32, torch.bfloat16)
    assert holds(torch.float32, torch.float8_e4m3fn)
    assert not holds(torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("clipping", "lengths"),
    [
        (Unclipped(), [0.5, 2.0, 0.5, 2.0]),
        (PerStep(), [0.5, 1.0, 0.5, 1.0]),
        (Episodic(), [0.5, 2.0, 1.0, 1.0]),
        (Guarded(), [0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_the_longest_step_along_short_and_long_directions(
    clipping: Clipping, lengths: list[float]
) -> None:
    """A round is clipped if ‖G_r‖ is above γ/η = 2; then Episodic and Guarded even lengthen."""
    norms = [(1.0, 1.0), (4.0, 1.0), (1.0, 3.0), (4.0, 3.0)]
    assert [clipping.longest_step(g, G, eta=0.5, gamma=1.0) for g, G in norms] == lengths


def test_another_descent_has_none_of_the_options_of_the_one_it_replaces() -> None:
    fast = Algorithm.named("celgc", momentum=0.9)
    assert Algorithm.named(fast, weight_decay=0.1).descent == Descent(0.9, 0.1)
    assert Algorithm.named(fast, descent="sgd").descent == Descent()
