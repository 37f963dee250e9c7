"""Estimators against what is known: exact eigenvalues, a linear program, known constants."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn import functional as F

import episode
from episode.diagnosis import findings, short_runs
from episode.diagnosis.decisions import ShortRuns
from episode.diagnosis.diagnose import diagnose_task
from episode.diagnosis.estimate import fit, lowest_line
from episode.diagnosis.findings import rank_correlation
from episode.diagnosis.hessian import by_differences, top_eigenvalue
from episode.diagnosis.known_problems import relaxed_smooth
from episode.diagnosis.measure import Measurer
from episode.diagnosis.options import DiagnosisOptions
from episode.diagnosis.report import as_html
from episode.diagnosis.short_runs import MEASURED_AFTER, ShortRunner, try_settings
from episode.diagnosis.verdict import Verdict, first_eta
from episode.errors import EpisodeError, NotTwiceDifferentiableError
from episode.federation.protocols import Draw
from episode.tasks.neural import NeuralTask
from episode.tasks.relaxed_smooth import RelaxedSmooth
from episode.tasks.second_derivatives import kinks

QUICK = DiagnosisOptions(steps=12, points=5, batches=4, local_steps=4, rehearsal=24)


def silos(count: int = 3, examples: int = 40, shift: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(examples, 5, generator=g) + shift * c,
            torch.randint(3, (examples,), generator=g),
        )
        for c in range(count)
    ]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def network(*layers: nn.Module, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), *layers, nn.Linear(6, 3)).double()


def doubled(clients: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in clients]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_top_eigenvalue_is_that_of_the_whole_hessian(seed: int) -> None:
    model = network(nn.Tanh(), seed=seed)
    task = NeuralTask(model, doubled(silos()), cross_entropy, batch_size=40, seed=seed)
    objective = task.objective()
    product = objective.hessian_product(Draw(0, "local", 0))
    assert product is not None
    size = objective.x.numel()
    exact = torch.stack([product(row) for row in torch.eye(size, dtype=torch.float64)])
    assert torch.allclose(exact, exact.T)
    by_hand = _hessian_by_hand(model, task)
    assert torch.allclose(exact, by_hand, atol=1e-9)
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
    found = top_eigenvalue(product, start)
    assert found.converged
    assert found.norm == pytest.approx(float(torch.linalg.matrix_norm(exact, 2)), rel=0.01)


def _hessian_by_hand(model: nn.Sequential, task: NeuralTask) -> Tensor:
    """Differences of a gradient that torch computes from a functional model."""
    batch = task.batches[0].draw("local", 0)
    names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def gradient(flat: Tensor) -> Tensor:
        flat = flat.clone().requires_grad_()
        parts = [
            p.view(s) for p, s in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)
        ]
        scores = torch.func.functional_call(model, dict(zip(names, parts, strict=True)), batch[0])
        return torch.autograd.grad(F.cross_entropy(scores, batch[1]), flat)[0]

    product = by_differences(gradient, x)
    return torch.stack([product(row) for row in torch.eye(len(x), dtype=torch.float64)])


def test_a_pair_of_opposite_eigenvalues_and_a_slow_gap_are_not_missed() -> None:
    start = torch.ones(4, dtype=torch.float64)
    opposite = torch.tensor([3.0, -3.0, 1.0, 0.5], dtype=torch.float64)
    assert top_eigenvalue(lambda v: opposite * v, start).norm == pytest.approx(3, rel=0.005)
    close = torch.tensor([1.0, 0.97, 0.9, 0.1], dtype=torch.float64)
    assert top_eigenvalue(lambda v: close * v, start).norm == pytest.approx(1, rel=0.01)
    assert top_eigenvalue(lambda v: 0 * v, start).norm == 0


points = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=2, max_size=20)


@given(points, st.sampled_from([0.0, 1.0]))
def test_the_lowest_line_is_that_of_a_linear_program(
    pairs: list[tuple[float, float]], least: float
) -> None:
    x, y = np.array(pairs).round(3).T
    a, b = lowest_line(x, y, least)
    assert (a + b * x >= y - 1e-6).all()
    rows = -np.stack([np.ones(len(x)), x], axis=1)
    best = linprog([1, x.mean()], A_ub=rows, b_ub=-y, bounds=[(0, None), (least, None)])
    assert a + b * x.mean() == pytest.approx(best.fun, abs=1e-6)


def test_points_on_a_line_are_found_exactly_and_surely() -> None:
    x = np.linspace(1, 5, 9)
    line = fit([(float(v), float(2 + 3 * v), k) for k, v in enumerate(x)], seed=0)
    assert (line.intercept, line.slope) == pytest.approx((2, 3))
    assert line.slope_range == pytest.approx((3, 3))


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) == 0


def test_norms_are_those_of_all_of_a_clients_data() -> None:
    model, clients = network(nn.Tanh()), doubled(silos())
    task = NeuralTask(model, clients, cross_entropy, batch_size=10)
    measurer = Measurer(task, DiagnosisOptions(batches=8), seed=0)
    measurer.move_to(*task.initial())
    point, whole = measurer.point(0), measurer.mean_gradient()[1]
    exact = []
    for x, y in clients:
        loss = F.cross_entropy(model(x), y)
        exact.append(
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        )
    assert point.client_norms == pytest.approx([g.norm().item() for g in exact])
    mean = torch.stack(exact).mean(0)
    assert torch.allclose(whole, mean)
    assert point.gradient_norm == pytest.approx(mean.norm().item())
    spread = (torch.stack(exact) - mean).square().sum(1).mean().sqrt().item()
    assert point.disagreement == pytest.approx(spread)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7])
def test_estimates_are_near_the_known_constants(seed: int) -> None:
    settings = RelaxedSmooth(L0=5, L1=1, kappa=2, rho=3, sigma=2, num_clients=4, start_norm=100)
    problem = relaxed_smooth(settings, seed)
    options = DiagnosisOptions(
        steps=12, points=8, batches=16, hessian_batches=16, local_steps=1, rehearsal=1
    )
    e = diagnose_task(problem.task, title="known", seed=seed, options=options).estimates
    c = problem.constants
    assert pytest.approx(c.L1, rel=0.25) == e.L1
    assert e.kappa == pytest.approx(c.kappa, rel=0.25)
    assert e.sigma == pytest.approx(c.sigma, rel=0.25)
    assert c.L0 / 2 <= e.L0 <= 2 * c.L0
    assert c.rho / 2 <= e.rho <= 2 * c.rho
    assert e.delta == pytest.approx(c.delta, rel=0.05)


@pytest.mark.slow
def test_a_diagnosis_leaves_the_model_alone_and_repeats_to_the_bit() -> None:
    model = network(nn.Tanh())
    before = [p.detach().clone() for p in model.parameters()]
    first = episode.diagnose(model, doubled(silos()), cross_entropy, batch_size=10, options=QUICK)
    again = episode.diagnose(model, doubled(silos()), cross_entropy, batch_size=10, options=QUICK)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    one, two = first.to_dict(), again.to_dict()
    assert one.pop("seconds") != two.pop("seconds")
    assert json.dumps(one) == json.dumps(two)
    assert not first.verdict.clipping
    assert "Is clipping needed? not at η = " in str(first)


@pytest.mark.slow
def test_what_steepness_and_heterogeneity_do_to_the_verdict() -> None:
    def verdict(kappa: float, L1: float) -> Verdict:
        # With L1 = 1, no plain step size that is safe at so steep a start gets anywhere.
        start = 1000 if L1 else 20
        settings = RelaxedSmooth(
            L1=L1, kappa=kappa, rho=1, sigma=0, num_clients=4, start_norm=start
        )
        return diagnose_task(settings.build(0, "cpu"), title="t", options=QUICK).verdict

    alike, apart, smooth = verdict(0.0, 1.0), verdict(5.0, 1.0), verdict(5.0, 0.0)
    assert (alike.clipping, alike.correction, alike.algorithm) == (True, False, "celgc")
    assert (apart.clipping, apart.correction) == (True, True)
    assert apart.algorithm in ("episode_guarded", "scaffold_clipped")
    assert apart.plain_eta < apart.eta / 8
    # Quadratics with one Hessian: the mean of the clients' steps is the same without corrections.
    assert (smooth.clipping, smooth.correction, smooth.algorithm) == (False, False, "fedavg")
    assert smooth.threshold == float("inf")


@pytest.mark.slow
def test_a_loss_with_kinks_is_measured_without_its_hessian_and_said_so() -> None:
    found = episode.diagnose(
        network(nn.ReLU()), doubled(silos()), cross_entropy, batch_size=10, options=QUICK
    )
    assert found.estimates.smoothness_from == "path"
    assert not any(p.hessian for p in found.points)
    assert any("kinks (Relu)" in note and "left out" in note for note in found.notes)
    page = as_html(found)
    assert "kinks (Relu)" in page


def test_kinks_are_seen_and_smooth_operations_are_not_taken_for_them() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    assert kinks(F.cross_entropy(torch.tanh(x), torch.tensor([0, 1, 2, 0]))) == []
    assert kinks(F.softplus(F.gelu(x)).sum()) == []
    for rough in (
        F.relu(x),
        x.abs(),
        x.clamp(0),
        x.amax(1),
        F.multi_margin_loss(x, torch.tensor([0, 1, 2, 0])),
    ):
        assert kinks(rough.sum())
    task = NeuralTask(network(nn.ReLU()), doubled(silos()), cross_entropy, batch_size=10)
    with pytest.raises(NotTwiceDifferentiableError, match="kinks"):
        task.objective().hessian_product(Draw(0, "local", 0))


@pytest.mark.slow
def test_the_page_opens_offline_and_says_the_verdict() -> None:
    task = RelaxedSmooth(num_clients=4).build(0, "cpu")
    page = as_html(diagnose_task(task, title="a < b", options=QUICK))
    assert "Diagnosis of a &lt; b" in page
    assert page.count("<svg") == 5
    for outside in ("<script", "<link", "src=", "url(http", "@import"):
        assert outside not in page
    assert "Which algorithm?" in page


@pytest.mark.parametrize(
    ("clients", "batch_size", "message"),
    [
        (1, 10, "There is one client"),
        (2, 40, "make a single batch"),
        (2, 30, "make a single batch"),
    ],
)
def test_too_little_to_estimate_from_is_a_sentence(
    clients: int, batch_size: int, message: str
) -> None:
    with pytest.raises(EpisodeError, match=message):
        episode.diagnose(
            network(nn.Tanh()), doubled(silos(clients)), cross_entropy, batch_size=batch_size
        )


def test_a_loss_that_is_not_finite_is_a_sentence() -> None:
    broken = doubled(silos())
    broken[1][0][3, 2] = float("nan")
    with pytest.raises(EpisodeError, match=r"The loss is nan .* at the start"):
        episode.diagnose(network(nn.Tanh()), broken, cross_entropy, batch_size=10, options=QUICK)


def test_steps_near_the_bottom_do_not_set_the_step_size() -> None:
    sizes, losses = [1.0, 2.0, 4.0, 1e-5, 1e-5, 1e-5, 1e-5], [9.0, 3.0, 1.0, 0, 0, 0, 0]
    assert first_eta(sizes, losses) == 2.0
    assert first_eta([0.5, 0.25, 0.25], [3.0, 2.0, 1.5, 1.0]) == 0.25


@pytest.mark.parametrize(
    "values", [{"points": 1}, {"batches": 1}, {"steps": 2.5}, {"tolerance": -1}]
)
def test_options_that_make_no_sense_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(EpisodeError, match=f"{next(iter(values))} is"):
        DiagnosisOptions(**values)  # type: ignore[arg-type]


def test_step_norms_are_those_of_corrected_steps() -> None:
    model, clients = network(nn.Tanh()), doubled(silos())
    task = NeuralTask(model, clients, cross_entropy, batch_size=10)
    measurer = Measurer(task, DiagnosisOptions(batches=3), seed=0)
    measurer.move_to(*task.initial())
    found = measurer.point(0).step_norms
    gradients = [[measurer.gradient(c, k)[1] for k in range(3)] for c in range(3)]
    G = [torch.stack([gradients[c][k] for c in range(3)]).mean(0) for k in range(3)]
    # The local step's batch k and the probe's batch k - 1: Algorithm 1, line 9.
    expected = [
        (gradients[c][k] - gradients[c][k - 1] + G[k - 1]).norm().item()
        for c in range(3)
        for k in range(3)
    ]
    assert found == pytest.approx(expected)


class Script(ShortRunner):
    """A runner whose short runs go straight from f = 2 to where they are told to end."""

    def __init__(
        self, ends: Callable[[str, float, int], float], differs_in: tuple[int, ...] = ()
    ) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, nothing, threshold=1.5, iterations=128)
        self.ends, self.before, self.differs_in = ends, 2.0, differs_in

    def _losses(self, name: str, eta: float, local_steps: int, repeat: int) -> list[float]:
        end = 1.0 if repeat in self.differs_in else self.ends(name, eta, local_steps)
        return [2.0 + share * (end - 2.0) for share in MEASURED_AFTER]

    def results(self) -> ShortRuns:
        return try_settings(self, 1.0, 32)


def test_a_step_size_that_only_clipping_makes_possible_is_named_with_it() -> None:
    def ends(name: str, eta: float, local_steps: int) -> float:
        edge = 4.0 if name in ("episode_guarded", "celgc") else 0.5
        return 3.0 if eta > edge else 2.0 - 0.3 * eta

    r = Script(ends).results()
    assert (r.needs_clipping, r.chosen.algorithm, r.chosen.eta) == (True, "episode_guarded", 4.0)
    assert r.plain.eta == 0.5
    assert not r.plain_there.descends
    assert r.clipping_edge is not None
    assert r.clipping_edge[0].eta == 1.0
    assert not r.needs_correction
    assert (r.chosen.local_steps, r.beyond) == (32, None)


@pytest.mark.parametrize(("plain_way", "needed"), [(0.56, False), (0.54, True)])
def test_clipping_is_needed_where_it_is_more_than_twice_as_fast(
    plain_way: float, needed: bool
) -> None:
    """Straight ways down, whose mean over the last quarter is 7/8 of them; 0.48 is not enough."""
    plain = {0.5: 0.48, 1.0: plain_way, 2.0: 0.3}
    clipped = {0.5: 0.5, 1.0: 0.96, 2.0: 0.5}

    def ends(name: str, eta: float, local_steps: int) -> float:
        return 2.0 - (clipped if name == "episode_guarded" else plain).get(eta, -1.0)

    r = Script(ends).results()
    assert r.needs_clipping == needed
    chosen = "episode_guarded" if needed else "episode_unclipped"
    assert (r.clipped.eta, r.chosen.algorithm, r.chosen.eta) == (1.0, chosen, 1.0)


@pytest.mark.parametrize(
    ("differs_in", "needed", "said"),
    [
        ((), True, "The answer is firm: it was the same in 3 repeats with other batches."),
        ((2,), True, "The answer is not firm: 2 of 3 repeats with other batches agreed."),
        ((1, 2), False, "The answer is not firm: 2 of 3 repeats with other batches agreed."),
    ],
)
def test_most_repeats_decide_and_the_answer_says_how_many_they_were(
    differs_in: tuple[int, ...], needed: bool, said: str
) -> None:
    """In the others all runs end alike, so that neither clipping nor corrections are needed."""
    ways = {"episode_guarded": 1.0, "episode_unclipped": 0.2, "celgc": 0.3}

    def ends(name: str, eta: float, local_steps: int) -> float:
        return 2.0 - ways.get(name, 0.1) * (1.0 if eta == 1.0 else 0.5)

    r = Script(ends, differs_in).results()
    assert (r.needs_clipping, r.needs_correction, r.needs_fresh_correction) == (needed,) * 3
    assert r.simplest.algorithm == ("episode_guarded" if needed else "fedavg")
    assert findings._firmness(r, r.clipping) == findings._firmness(r, r.correction)
    assert said in findings._firmness(r, r.correction)


@pytest.mark.parametrize(
    ("half", "end", "stuck"), [(1.91, 1.905, True), (1.95, 1.905, False), (1.71, 1.705, False)]
)
def test_nothing_is_firm_where_f_fell_by_little_and_then_no_more(
    half: float, end: float, stuck: bool
) -> None:
    class Plateau(Script):
        def _losses(self, name: str, eta: float, local_steps: int, repeat: int) -> list[float]:
            return [half, end, end, end]

    r = Plateau(lambda *_: 0.0).results()
    assert r.stuck == stuck
    said = [findings._firmness(r, votes) for votes in (r.clipping, r.correction)]
    said += [findings.step_size(r, [1.0]).because, findings.local_steps(r).because]
    assert all(("hardly fell" in text) == stuck for text in said)


def test_of_step_sizes_that_are_as_good_the_smallest_is_taken() -> None:
    r = Script(lambda name, eta, local_steps: 3.0 if eta > 4 else 1.0 - 0.02 * eta).results()
    assert not r.needs_clipping
    assert (r.chosen.algorithm, r.chosen.eta) == ("episode_unclipped", 1.0)


@pytest.mark.parametrize("knee", [1, 2, 4, 8, 16, 32])
def test_local_steps_end_where_the_descent_falls_off(knee: int) -> None:
    def ends(name: str, eta: float, local_steps: int) -> float:
        allowed = knee if name.startswith("episode") else knee / 2
        return 2.0 - min(1.0, allowed / local_steps) * (1.0 if eta <= 1 else 0.5)

    r = Script(ends).results()
    assert r.chosen.local_steps == knee
    assert r.needs_correction
    assert r.needs_fresh_correction
    assert (r.beyond is None) == (knee == 32)


def test_runs_that_blow_up_everywhere_are_no_recommendation_to_clip() -> None:
    r = Script(lambda name, eta, local_steps: math.inf).results()
    assert not r.needs_clipping
    assert r.chosen.local_steps == 1


def test_a_short_run_is_that_of_the_algorithm_on_batches_of_its_own() -> None:
    model, clients = network(nn.Tanh()), doubled(silos())
    task = NeuralTask(model, clients, cross_entropy, batch_size=10)
    measurer = Measurer(task, DiagnosisOptions(batches=4), seed=0)
    runner = ShortRunner(task, measurer, task.initial(), 1.0, 4)
    found = runner.run("episode_unclipped", 0.1, 4)
    objective, (x_0, _) = task.objective(), task.initial()
    far = short_runs.UNUSED_ROUND

    def gradient(x: Tensor, client: int, stream: Any, index: int) -> Tensor:
        objective.x.copy_(x)
        blocks = objective.gradient(Draw(client, stream, index))[1]
        return torch.cat([b.detach().reshape(-1) for b in blocks])

    probes = [gradient(x_0, c, "probe", far) for c in range(3)]
    G = torch.stack(probes).mean(0)
    ends = []
    for c in range(3):
        x = x_0.clone()
        for t in range(4):
            x = x - 0.1 * (gradient(x, c, "local", 4 * far + t) - probes[c] + G)
        ends.append(x)
    measurer.move_to(torch.stack(ends).mean(0), task.initial()[1])
    assert found.after == found.worst == found.half
    assert found.after == pytest.approx(measurer.mean_gradient()[0], rel=1e-9)
    assert found.after < found.before


@pytest.mark.parametrize(
    ("way", "algorithm", "eta", "local_steps"),
    [(1.2, "episode_trust", 2.0, 8), (0.7, "episode_unclipped", 1.0, 4)],
)
def test_measured_trust_is_recommended_at_its_own_settings_where_it_gets_lower(
    way: float, algorithm: str, eta: float, local_steps: int
) -> None:
    """It bears twice the step size and twice the local steps of the others."""

    def ends(name: str, eta: float, local_steps: int) -> float:
        trusted = name == "episode_trust"
        best, knee = (way, 8) if trusted else (0.9 if name.startswith("episode") else 0.5, 4)
        there = 1.0 if eta == (2.0 if trusted else 1.0) else 0.3
        return 2.0 - best * there * min(1.0, 0.4 * knee / local_steps if local_steps > knee else 1)

    r = Script(ends).results()
    assert (r.chosen.algorithm, r.chosen.eta, r.chosen.local_steps) == ("episode_unclipped", 1.0, 4)
    assert r.needs_trust == (algorithm == "episode_trust")
    found = r.recommended
    assert (found.algorithm, found.eta, found.local_steps) == (algorithm, eta, local_steps)
    assert r.recommends_clipping == r.needs_trust
    assert r.trusted.local_steps == 4
    assert ("use it" in findings.trust(r).because) == r.needs_trust
    # At equal exchanges CELGC has half the local steps.
    assert ("with I = 4 two in as many" in findings.algorithm(r).because) == r.needs_trust
    assert findings.algorithm(r).answer == algorithm
    assert findings.step_size(r, [1.0]).answer == f"start from η = {eta:.2g}"
    assert findings.local_steps(r).answer == f"about I = {local_steps}"
