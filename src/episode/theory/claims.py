"""What the theory claims, measured on problems with known constants, many settings at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.diagnosis.known_problems import relaxed_smooth
from episode.engines.batched import Batched
from episode.federation.rounds import Plan, Rounds, Telemetry
from episode.federation.state import ServerState
from episode.tasks.closed_form import ClosedForm
from episode.tasks.relaxed_smooth import RelaxedSmooth, RelaxedSmoothTask
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import TheoremPlan, plan


@dataclass(frozen=True)
class Played:
    """‖∇f(x̄_r)‖ by round, `[rounds, settings, seeds]`, and the largest drift over its bound."""

    norms: Tensor
    drift_over_bound: float
    hessian_over_bound: float


def play(
    task: ClosedForm,
    algorithm: str,
    etas: Sequence[float],
    thresholds: Sequence[float],
    local_steps: int,
    rounds: int,
    constants: Constants | None = None,
    until: float = 0.0,
) -> Played:
    """Plays all settings (η, γ/η) and seeds at once; stops when every norm has been below `until`.

    With constants, each round is held against Lemmas 1 and 2.
    """
    eta = torch.tensor(etas, dtype=torch.float64).view(-1, 1, 1)
    gamma = eta * torch.tensor(thresholds, dtype=torch.float64).view(-1, 1, 1)
    shape = (len(etas), len(task.seeds))
    chosen = ALGORITHMS[algorithm]
    game = Rounds(
        Plan(chosen, Schedule(eta, gamma), rounds, local_steps),
        task,
        Batched(task.all_clients((*shape, task.num_clients, task.x_0.shape[-1])), chosen),
    )
    server = ServerState(task.x_0.expand(*shape, -1).clone())
    norms, drift, hessian = [_norm(task, server.x)], 0.0, 0.0
    for _ in range(rounds):
        before = server.x
        told = game.play(server)
        norms.append(_norm(task, server.x))
        if constants is not None:
            drift = max(drift, _drift_over_bound(told, constants, local_steps))
            hessian = max(hessian, _hessian_over_bound(task, before, told, constants, local_steps))
        if until and bool((torch.stack(norms).amin(0) <= until).all()):
            break
    return Played(torch.stack(norms), drift, hessian)


def rounds_to(norms: Tensor, epsilon: float) -> list[float]:
    """Of each setting, the mean over seeds of the first round with ‖∇f‖ ≤ ε; infinite if never."""
    reached = norms <= epsilon
    first = reached.double().argmax(0).double()
    first[~reached.any(0)] = math.inf
    return first.mean(-1).tolist()


def theorem_bound(epsilon: float = 0.3, seeds: int = 5) -> tuple[TheoremPlan, Played]:
    """The theorem's own η, γ and R: the mean of ‖∇f(x̄_r)‖ is to be at most 3ε."""
    settings = RelaxedSmooth(
        L0=1, L1=0.5, kappa=0.5, rho=1.2, sigma=0.05, start_norm=1.0, num_clients=4, dimensions=6
    )
    problem = relaxed_smooth(settings)
    made = plan(problem.constants, epsilon=epsilon, clients=4, local_steps=4)
    task = RelaxedSmoothTask(settings, range(seeds))
    played = play(task, "episode", [made.eta], [made.threshold], 4, made.rounds, problem.constants)
    return made, played


def lemmas(seeds: int = 5, rounds: int = 60) -> list[tuple[RelaxedSmooth, float, Played]]:
    """Lemmas 1 and 2 along runs whose η is the largest that Lemma 1 admits."""
    found = []
    for L1, kappa, rho, sigma in ((1, 1, 1.5, 0.5), (0.2, 3, 2, 1), (3, 0.3, 1.2, 0.1)):
        settings = RelaxedSmooth(L0=1, L1=L1, kappa=kappa, rho=rho, sigma=sigma, start_norm=20)
        for threshold in (0.5, 2.0, 10.0):
            c, s = relaxed_smooth(settings).constants, Smoothing()
            smooth = s.A * c.L0 + s.B * c.L1 * (c.kappa + c.rho * (c.sigma + threshold))
            reach = max(2 * (2 * c.sigma + threshold), threshold)
            eta = min(1 / (2 * 8 * smooth), s.C / (c.L1 * 8 * reach))
            task = RelaxedSmoothTask(settings, range(seeds))
            found.append(
                (settings, threshold, play(task, "episode", [eta], [threshold], 8, rounds, c))
            )
    return found


def speed_up(clients: Sequence[int], epsilon: float = 0.05, seeds: int = 5) -> list[float]:
    """Iterations to ‖∇f‖ ≤ ε for η ∝ N, as the theorem's noise bound has it; I = 4."""
    found = []
    for count in clients:
        settings = RelaxedSmooth(
            L0=1, L1=0.5, sigma=2, rho=1, kappa=1 if count > 1 else 0, num_clients=count,
            start_norm=2,
        )  # fmt: skip
        eta = count * epsilon**2 / 4
        task = RelaxedSmoothTask(settings, range(seeds))
        played = play(task, "episode", [eta], [4.0], 4, round(40 / eta), until=epsilon)
        found.append(4 * rounds_to(played.norms, epsilon)[0])
    return found


def rounds_against_local_steps(
    local_steps: Sequence[int], epsilon: float = 0.01, seeds: int = 3, iterations: int = 8000
) -> list[float]:
    """The fewest rounds to ‖∇f‖ ≤ ε over a grid of η, for each I; σ = 0.5, N = 8.

    A single lucky round is not arrival: three in a row have to be that small on average.
    """
    settings = RelaxedSmooth(L0=1, L1=0.5, sigma=0.5, rho=1.5, kappa=1, start_norm=2)
    etas = [0.4 / 2**k for k in range(9)]
    found = []
    for count in local_steps:
        task = RelaxedSmoothTask(settings, range(seeds))
        rounds = iterations // count + 20
        played = play(task, "episode", etas, [4.0] * len(etas), count, rounds)
        found.append(min(rounds_to(played.norms.unfold(0, 3, 1).mean(-1), epsilon)))
    return found


def resilience(
    kappas: Sequence[float], algorithm: str, epsilon: float = 0.1, rounds: int = 1500
) -> list[float]:
    """Rounds to ‖∇f‖ ≤ ε as clients differ more; η = 0.05, γ = 0.05, I = 8, no noise."""
    found = []
    for kappa in kappas:
        settings = RelaxedSmooth(L0=1, L1=1, sigma=0, rho=1.5, kappa=kappa, start_norm=20)
        task = RelaxedSmoothTask(settings)
        played = play(task, algorithm, [0.05], [1.0], 8, rounds, until=epsilon)
        found.append(rounds_to(played.norms, epsilon)[0])
    return found


def _norm(task: ClosedForm, x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(task.mean(x)[1], dim=-1)
    return norm


def _drift_over_bound(told: Telemetry, c: Constants, local_steps: int) -> float:
    """Lemma 1: ‖x_t^i - x̄_r‖ ≤ 2ηI(2σ + γ/η) in unclipped rounds, ≤ γI in clipped ones."""
    eta, gamma = torch.as_tensor(told.eta), torch.as_tensor(told.gamma)
    open_round = 2 * eta * local_steps * (2 * c.sigma + gamma / eta)
    bound = torch.where(torch.as_tensor(told.clipped), gamma * local_steps, open_round)
    drift = torch.as_tensor(told.metrics["drift"][0])
    return float((drift / bound.unsqueeze(-2)).max())


def _hessian_over_bound(
    task: ClosedForm, x: Tensor, told: Telemetry, c: Constants, local_steps: int
) -> float:
    """Lemma 2: ‖∇²f_i‖ ≤ L0 + L1(κ + (ρ+1)(γ/η + 2σ)) within its reach of x̄_r, if unclipped.

    The worst place within reach is as far out along u as one can go, where the norm of the Hessian
    is s_i(L + L1‖∇h‖) by the problem's formula.
    """
    assert isinstance(task, RelaxedSmoothTask)
    eta, gamma = torch.as_tensor(told.eta), torch.as_tensor(told.gamma)
    threshold = (gamma / eta).squeeze(-1)
    reach = 2 * eta.squeeze(-1) * local_steps * (2 * c.sigma + threshold)
    radius = x[..., : task.split].norm(dim=-1) + reach
    norm = c.rho * task.curvature * torch.exp(c.L1 * radius)
    bound = c.L0 + c.L1 * (c.kappa + (c.rho + 1) * (threshold + 2 * c.sigma))
    unclipped = ~torch.as_tensor(told.clipped).squeeze(-1)
    return float(torch.where(unclipped, norm / bound, torch.zeros(())).max())
