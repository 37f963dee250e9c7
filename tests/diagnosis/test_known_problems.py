"""Problems with known constants: the constants are bounds, and none could be smaller."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from episode.diagnosis.known_problems import KnownProblem, relaxed_smooth
from episode.tasks.closed_form import ClosedForm
from episode.tasks.quadratics import QuadraticTask
from episode.tasks.relaxed_smooth import RelaxedSmooth, RelaxedSmoothTask
from episode.tasks.synthetic import Quartics, minimum
from episode.testing import check_task
from episode.theory.constants import Constants

Polynomial = np.polynomial.Polynomial


def quartics(heterogeneity: float, L1: float) -> KnownProblem:
    """The paper's two quartics (appendix E.2), with the smallest κ for ρ = 2 and L0 for L1.

    A quartic is (L0, L1)-smooth for every L1 > 0, with an L0 that grows as L1 falls.
    """
    task = Quartics([heterogeneity], 1.0, seeds=[0])
    L0 = max(largest(f.deriv(), f, L1) for f in quartic_derivatives(heterogeneity))
    delta = task.mean(task.x_0)[0].item() - minimum(heterogeneity)[1]
    return KnownProblem(task, Constants(L0, L1, 1.0, smallest_kappa(heterogeneity), 2.0, delta))


def paper_kappa(H: float) -> float:
    """κ(H) of Proposition 1, as defined at the end of its proof (for H ≥ 1, with ρ = 2)."""
    x_2 = (-18 + math.sqrt(18**2 + 480 * H)) / 24
    return 9 * x_2**2 + 10 * H * x_2 + 25 * H**2 / 3 + 45 * H + 100


def smallest_kappa(H: float, rho: float = 2.0) -> float:
    """max |f_i'(x)| - ρ|f'(x)| over x and i: the smallest possible κ, for ρ > 1."""
    first, second = quartic_derivatives(H)
    return max(largest(f, (first + second) / 2, rho) for f in (first, second))


def quartic_derivatives(H: float) -> list[Polynomial]:
    return [Polynomial([1, 2 * c, -9, 4]) for c in (H, -2 * H)]


def largest(p: Polynomial, q: Polynomial, weight: float) -> float:
    """The exact maximum of |p| - weight·|q| over the real line.

    Between the roots of p and q it is a polynomial, so the maximum is at such a root or where the
    derivative of p ± weight·q is zero. It must fall at both ends: q has the higher degree, or
    weight·q the larger leading coefficient.
    """
    polynomials = (p, q, (p - weight * q).deriv(), (p + weight * q).deriv())
    roots = np.concatenate([r.roots() for r in polynomials])
    x = roots[abs(roots.imag) < 1e-9].real
    return float(np.max(abs(p(x)) - weight * abs(q(x))))


def quadratics(slopes: list[float]) -> KnownProblem:
    """f_i = ½x² + b_i x from x_0 = 0: L0 = 1, L1 = 0, ρ = 1, κ = max |b_i - mean b|."""
    b = torch.tensor(slopes, dtype=torch.float64)[:, None]
    task = QuadraticTask(torch.ones_like(b), b, torch.zeros(1, dtype=b.dtype), 0.0)
    kappa = float((b - b.mean()).abs().max())
    return KnownProblem(task, Constants(1.0, 0.0, 0.0, kappa, 1.0, float(b.mean() ** 2) / 2))


def quartic_slopes(H: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return 4 * x**3 - 9 * x**2 + 2 * H * x + 1, 4 * x**3 - 9 * x**2 - 4 * H * x + 1


@pytest.mark.parametrize("H", [1, 2, 4, 8, 20])
def test_kappa_of_the_proposition_holds_on_a_fine_grid_and_a_smaller_one_would_do(H: float) -> None:
    x = np.linspace(-50, 50, 1_000_001)
    slopes = quartic_slopes(H, x)
    mean = sum(slopes) / 2
    on_grid = max((abs(s) - 2 * abs(mean)).max() for s in slopes)
    assert on_grid <= paper_kappa(H)
    assert on_grid == pytest.approx(smallest_kappa(H), rel=1e-4)
    assert paper_kappa(H) < paper_kappa(H + 0.1)


def test_the_quartics_l0_is_the_smallest_for_its_l1() -> None:
    x = np.linspace(-5, 5, 1_000_001)
    for H, L1 in ((1.0, 1.0), (4.0, 3.0)):
        c = quartics(H, L1).constants
        curvatures = (12 * x**2 - 18 * x + 2 * H, 12 * x**2 - 18 * x - 4 * H)
        pairs = zip(curvatures, quartic_slopes(H, x), strict=True)
        on_grid = max((abs(f2) - L1 * abs(f1)).max() for f2, f1 in pairs)
        assert c.L0 == pytest.approx(on_grid, rel=1e-4)


@pytest.mark.parametrize(
    "task",
    [
        Quartics([4.0]),
        QuadraticTask(*torch.tensor([[[1.0, 2], [3, 0.5]], [[-1, 2], [4, 1]]]), torch.zeros(2)),
        RelaxedSmoothTask(RelaxedSmooth(L0=2, L1=0.7, kappa=3, rho=1.8)),
        RelaxedSmoothTask(RelaxedSmooth(L0=2, L1=0, kappa=3, rho=1.8)),
    ],
)  # fmt: skip
def test_the_gradient_of_a_closed_form_is_the_derivative_of_its_value(task: ClosedForm) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, task.num_clients, len(task.x_0), dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(task.value(x, task.coefficients).sum(), x)
    torch.testing.assert_close(task.gradient(x, task.coefficients), derivative)


def hessian_norm(task: ClosedForm, client: int, x: Tensor) -> float:
    coefficients = [c[client] for c in task.coefficients]
    gradient = lambda y: task.gradient(y, coefficients)  # noqa: E731
    matrix = torch.autograd.functional.jacobian(gradient, x)
    return float(torch.linalg.matrix_norm(matrix, 2))


def test_the_relaxed_smooth_problem_has_the_constants_that_were_chosen() -> None:
    problem = relaxed_smooth(RelaxedSmooth(L0=2, L1=0.7, kappa=3, rho=1.8, sigma=0.4))
    task, c = problem.task, problem.constants
    torch.manual_seed(0)
    for scale in (0.0, 0.1, 1.0, 3.0, 8.0):
        for _ in range(20):
            x = scale * torch.randn(10, dtype=torch.float64)
            gradients = task.gradient(x, task.coefficients)
            norm = task.mean(x)[1].norm()
            assert (gradients.norm(dim=-1) <= c.kappa + c.rho * norm + 1e-9).all()
            for i in (0, 1):
                bound = c.L0 + c.L1 * gradients[i].norm()
                assert hessian_norm(task, i, x) <= bound + 1e-9


def test_none_of_its_constants_could_be_smaller() -> None:
    problem = relaxed_smooth(RelaxedSmooth(L0=2, L1=0.7, kappa=3, rho=1.8))
    task, c = problem.task, problem.constants
    minimum = torch.zeros(10, dtype=torch.float64)
    at_minimum = task.gradient(minimum, task.coefficients).norm(dim=-1)
    assert at_minimum.max() == pytest.approx(c.kappa)
    # Where client 0 is at rest, its curvature is L0.
    rest = -task.coefficients[1][0] / (c.L0 / c.rho)
    assert hessian_norm(task, 0, rest) == pytest.approx(c.L0)
    far = minimum.clone()
    far[0] = task.radius(1e6)  # type: ignore[attr-defined]
    gradient = task.gradient(far, task.coefficients)[0].norm()
    assert gradient / task.mean(far)[1].norm() == pytest.approx(c.rho, rel=1e-4)
    assert hessian_norm(task, 0, far) / gradient == pytest.approx(c.L1, rel=1e-4)


def test_its_noise_meets_its_bound_and_has_no_mean() -> None:
    task = relaxed_smooth(RelaxedSmooth(sigma=0.4)).task
    noise = task.draw_noise(range(8), "local", range(2000))
    assert torch.allclose(noise.norm(dim=-1), torch.tensor(0.4, dtype=torch.float64))
    assert noise.mean(dim=(0, 1, 2)).abs().max() < 0.01
    assert torch.equal(task.draw_noise([3], "local", [7])[0, 0, 0], noise[7, 0, 3])


def test_delta_is_the_way_down() -> None:
    problem = relaxed_smooth(RelaxedSmooth(start_norm=5))
    assert problem.task.mean(problem.task.x_0)[1].norm() == pytest.approx(5)
    assert problem.task.mean(torch.zeros(10, dtype=torch.float64))[0] == 0
    parabolas = quadratics([-3.0, 4.0])
    assert parabolas.constants.delta == pytest.approx(0.125)
    assert parabolas.constants.kappa == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clients": 1}, "one client cannot differ"),
        ({"rho": 9.0}, "with 8 convex clients it can be at most 8"),
        ({"dimensions": 2}, "greater than or equal to 3"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RelaxedSmooth(**settings)


def test_it_is_a_task_like_any_other() -> None:
    for check in check_task(RelaxedSmooth().build(0, "cpu")):
        assert check.passed, str(check)
