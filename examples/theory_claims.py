"""Measure the claims of the theory on problems with known constants; docs/theory.md quotes this.

python examples/theory_claims.py      # also draws runs/theory/claims.png
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from episode import ALGORITHMS, MeasuredTrust, Schedule
from episode.diagnosis.known_problems import relaxed_smooth
from episode.engines.batched import Batched
from episode.federation.rounds import Plan, Rounds, Telemetry
from episode.federation.state import ServerState
from episode.results.figures import as_image, new_figure
from episode.results.store import write_bytes
from episode.tasks.closed_form import ClosedForm
from episode.tasks.relaxed_smooth import RelaxedSmooth, RelaxedSmoothTask
from episode.testing.problems import QuadraticProblem, play
from episode.theory.constants import Constants, Smoothing
from episode.theory.plan import TheoremPlan, plan

FOLDER = Path("runs/theory")
CLIENTS = [1, 2, 4, 8, 16, 32, 64]
LOCAL_STEPS = [1, 4, 16, 64, 256]
KAPPAS = [0.25, 0.5, 1, 2, 4, 8]


@dataclass(frozen=True)
class Measured:
    """Gradient norms of runs, and how close the runs came to the bounds of the lemmas."""

    norms: Tensor
    """‖∇f(x̄_r)‖ by round, `[rounds, settings, seeds]`."""
    drift_over_bound: float
    hessian_over_bound: float


def run(
    task: ClosedForm,
    algorithm: str,
    etas: Sequence[float],
    thresholds: Sequence[float],
    local_steps: int,
    rounds: int,
    constants: Constants | None = None,
    until: float = 0.0,
) -> Measured:
    """Run all settings (η, γ/η) and seeds at once, until every norm has been below `until`.

    If constants are given, each round is compared with the bounds of Lemmas 1 and 2.
    """
    eta = torch.tensor(etas, dtype=torch.float64).view(-1, 1, 1)
    gamma = eta * torch.tensor(thresholds, dtype=torch.float64).view(-1, 1, 1)
    shape = (len(etas), len(task.seeds))
    chosen = ALGORITHMS[algorithm]
    player = Rounds(
        Plan(chosen, Schedule(eta, gamma), rounds, local_steps),
        task,
        Batched(task.all_clients((*shape, task.num_clients, task.x_0.shape[-1])), chosen),
    )
    server = ServerState(task.x_0.expand(*shape, -1).clone())
    norms, drift, hessian = [gradient_norm(task, server.x)], 0.0, 0.0
    for _ in range(rounds):
        before = server.x
        telemetry = player.play(server)
        norms.append(gradient_norm(task, server.x))
        if constants is not None:
            drift = max(drift, drift_over_bound(telemetry, constants, local_steps))
            hessian = max(
                hessian, hessian_over_bound(task, before, telemetry, constants, local_steps)
            )
        if until and bool((torch.stack(norms).amin(0) <= until).all()):
            break
    return Measured(torch.stack(norms), drift, hessian)


def rounds_to(norms: Tensor, epsilon: float) -> list[float]:
    """Return, per setting, the first round with ‖∇f‖ ≤ ε (mean over seeds; infinite if never)."""
    reached = norms <= epsilon
    first = reached.double().argmax(0).double()
    first[~reached.any(0)] = math.inf
    return first.mean(-1).tolist()


def theorem_bound(epsilon: float = 0.3, seeds: int = 5) -> tuple[TheoremPlan, Measured]:
    """Run with the theorem's own η, γ and R: the mean of ‖∇f(x̄_r)‖ should be at most 3ε."""
    settings = RelaxedSmooth(
        L0=1, L1=0.5, kappa=0.5, rho=1.2, sigma=0.05, start_norm=1.0, num_clients=4, dimensions=6
    )
    problem = relaxed_smooth(settings)
    made = plan(problem.constants, epsilon=epsilon, clients=4, local_steps=4)
    task = RelaxedSmoothTask(settings, range(seeds))
    measured = run(task, "episode", [made.eta], [made.threshold], 4, made.rounds, problem.constants)
    return made, measured


def lemmas(seeds: int = 5, rounds: int = 60) -> list[tuple[RelaxedSmooth, float, Measured]]:
    """Compare runs with Lemmas 1 and 2, at the largest η that Lemma 1 allows."""
    found = []
    for L1, kappa, rho, sigma in ((1, 1, 1.5, 0.5), (0.2, 3, 2, 1), (3, 0.3, 1.2, 0.1)):
        settings = RelaxedSmooth(L0=1, L1=L1, kappa=kappa, rho=rho, sigma=sigma, start_norm=20)
        for threshold in (0.5, 2.0, 10.0):
            c, s = relaxed_smooth(settings).constants, Smoothing()
            smooth = s.A * c.L0 + s.B * c.L1 * (c.kappa + c.rho * (c.sigma + threshold))
            reach = max(2 * (2 * c.sigma + threshold), threshold)
            eta = min(1 / (2 * 8 * smooth), s.C / (c.L1 * 8 * reach))
            task = RelaxedSmoothTask(settings, range(seeds))
            measured = run(task, "episode", [eta], [threshold], 8, rounds, c)
            found.append((settings, threshold, measured))
    return found


def speed_up(clients: Sequence[int], epsilon: float = 0.05, seeds: int = 5) -> list[float]:
    """Count iterations to ‖∇f‖ ≤ ε for each N, with η ∝ N as in the theorem's noise bound."""
    found = []
    for count in clients:
        settings = RelaxedSmooth(
            L0=1, L1=0.5, sigma=2, rho=1, kappa=1 if count > 1 else 0, num_clients=count,
            start_norm=2,
        )  # fmt: skip
        eta = count * epsilon**2 / 4
        task = RelaxedSmoothTask(settings, range(seeds))
        measured = run(task, "episode", [eta], [4.0], 4, round(40 / eta), until=epsilon)
        found.append(4 * rounds_to(measured.norms, epsilon)[0])
    return found


def rounds_against_local_steps(
    local_steps: Sequence[int], epsilon: float = 0.01, seeds: int = 3, iterations: int = 8000
) -> list[float]:
    """Find the fewest rounds to ‖∇f‖ ≤ ε over a grid of η, for each I.

    One lucky round does not count: the mean of three rounds in a row must be that small.
    """
    settings = RelaxedSmooth(L0=1, L1=0.5, sigma=0.5, rho=1.5, kappa=1, start_norm=2)
    etas = [0.4 / 2**k for k in range(9)]
    found = []
    for count in local_steps:
        task = RelaxedSmoothTask(settings, range(seeds))
        rounds = iterations // count + 20
        measured = run(task, "episode", etas, [4.0] * len(etas), count, rounds)
        found.append(min(rounds_to(measured.norms.unfold(0, 3, 1).mean(-1), epsilon)))
    return found


def resilience(
    kappas: Sequence[float], algorithm: str, epsilon: float = 0.1, rounds: int = 1500
) -> list[float]:
    """Count rounds to ‖∇f‖ ≤ ε as clients differ more; η = γ = 0.05, I = 8, no noise."""
    found = []
    for kappa in kappas:
        settings = RelaxedSmooth(L0=1, L1=1, sigma=0, rho=1.5, kappa=kappa, start_norm=20)
        task = RelaxedSmoothTask(settings)
        measured = run(task, algorithm, [0.05], [1.0], 8, rounds, until=epsilon)
        found.append(rounds_to(measured.norms, epsilon)[0])
    return found


def gradient_norm(task: ClosedForm, x: Tensor) -> Tensor:
    """Return ‖∇f(x)‖."""
    norm: Tensor = torch.linalg.vector_norm(task.mean(x)[1], dim=-1)
    return norm


def drift_over_bound(telemetry: Telemetry, c: Constants, local_steps: int) -> float:
    """Lemma 1: ‖x_t^i - x̄_r‖ ≤ 2ηI(2σ + γ/η) in unclipped rounds, ≤ γI in clipped ones."""
    eta, gamma = torch.as_tensor(telemetry.eta), torch.as_tensor(telemetry.gamma)
    unclipped = 2 * eta * local_steps * (2 * c.sigma + gamma / eta)
    bound = torch.where(torch.as_tensor(telemetry.clipped), gamma * local_steps, unclipped)
    drift = torch.as_tensor(telemetry.metrics["drift"][0])
    return float((drift / bound.unsqueeze(-2)).max())


def hessian_over_bound(
    task: ClosedForm, x: Tensor, telemetry: Telemetry, c: Constants, local_steps: int
) -> float:
    """Lemma 2: ‖∇²f_i‖ ≤ L0 + L1(κ + (ρ+1)(γ/η + 2σ)) near x̄_r in unclipped rounds.

    The largest Hessian within reach is as far out along u as possible, where its norm is
    s_i(L + L1‖∇h‖) by the formula of the problem.
    """
    assert isinstance(task, RelaxedSmoothTask)
    eta, gamma = torch.as_tensor(telemetry.eta), torch.as_tensor(telemetry.gamma)
    threshold = (gamma / eta).squeeze(-1)
    reach = 2 * eta.squeeze(-1) * local_steps * (2 * c.sigma + threshold)
    radius = x[..., : task.split].norm(dim=-1) + reach
    norm = c.rho * task.curvature * torch.exp(c.L1 * radius)
    bound = c.L0 + c.L1 * (c.kappa + (c.rho + 1) * (threshold + 2 * c.sigma))
    unclipped = ~torch.as_tensor(telemetry.clipped).squeeze(-1)
    return float(torch.where(unclipped, norm / bound, torch.zeros(())).max())


def print_bounds() -> None:
    """Print Theorem 1 and the lemmas: measured values and their bounds."""
    made, measured = theorem_bound()
    mean = measured.norms.mean(0).mean().item()
    print(f"Theorem 1 with its own η = {made.eta:.3g}, γ = {made.gamma:.3g}, R = {made.rounds}:")
    print(f"  mean ‖∇f(x̄_r)‖ = {mean:.4f}, bound 3ε = {3 * made.epsilon:g}", flush=True)
    print(f"  drift / Lemma 1: {measured.drift_over_bound:.3f}, Hessian / Lemma 2: "
          f"{measured.hessian_over_bound:.3f}")  # fmt: skip
    print("Lemmas 1 and 2 at the largest η that Lemma 1 allows (measured value / bound):")
    for s, threshold, m in lemmas():
        where = f"L1 {s.L1:g} κ {s.kappa:g} ρ {s.rho:g} σ {s.sigma:g} γ/η {threshold:g}"
        print(f"  {where}: {m.drift_over_bound:.4f}, {m.hessian_over_bound:.3f}", flush=True)


def main() -> None:
    """Measure every claim, print the values and draw the figure."""
    torch.set_num_threads(1)
    print_bounds()
    print("Resilience to heterogeneity: rounds to ‖∇f‖ ≤ 0.1 by κ")
    curves = {}
    for name in ("episode", "celgc"):
        curves[name] = resilience(KAPPAS, name)
        print(f"  {name}:", dict(zip(KAPPAS, curves[name], strict=True)), flush=True)
    print("Linear speed-up: iterations to ‖∇f‖ ≤ 0.05 by N")
    iterations = speed_up(CLIENTS)
    print(" ", dict(zip(CLIENTS, iterations, strict=True)), flush=True)
    print("Rounds by I, with the best η of a grid:")
    rounds = rounds_against_local_steps(LOCAL_STEPS)
    print(" ", dict(zip(LOCAL_STEPS, rounds, strict=True)), flush=True)
    print("‖∇f‖ that is left by trust in noisy corrections:")
    for noise, eta in itertools.product((0.0, 0.3, 1.0), (0.05, 0.0125)):
        left = {name: round(value, 4) for name, value in bias_of_trust(noise, eta).items()}
        print(f"  noise ± {noise:g}, η {eta:g}: {left}", flush=True)
    draw(iterations, rounds, curves, FOLDER / "claims.png")
    print(f"Figure: {FOLDER / 'claims.png'}")


def bias_of_trust(noise: float, eta: float) -> dict[str, float]:
    """Return ‖∇f‖ at the mean of the last 375 of 500 points x̄_r, on quadratics, unclipped."""
    problem = QuadraticProblem.heterogeneous(noise=noise, eta=eta)
    corrected = ALGORITHMS["episode_unclipped"]
    algorithms = {"FedAvg": ALGORITHMS["fedavg"], "full trust": corrected}
    for share in (1.0, 0.9):
        trust = MeasuredTrust(full_from=share)
        algorithms[f"measured trust, full from {share:g}"] = replace(corrected, trust=trust)
    ends = {name: play(problem, a, 500).path[-375:] for name, a in algorithms.items()}
    return {name: problem.gradient_norm(torch.stack(end).mean(0)) for name, end in ends.items()}


def draw(
    iterations: list[float], rounds: list[float], curves: dict[str, list[float]], path: Path
) -> None:
    """Draw speed-up, rounds against I and resilience, side by side."""
    figure = new_figure(figsize=(14, 4.4), layout="constrained")
    axes = figure.subplots(1, 3)
    blue, orange, grey = "#0072B2", "#E69F00", "#777777"
    axes[0].loglog(CLIENTS, iterations, "o-", color=blue, label="EPISODE")
    ideal = [iterations[0] / n for n in CLIENTS]
    axes[0].loglog(CLIENTS, ideal, ":", color=grey, label="ideal, 1/N")
    axes[0].set(xlabel="N, clients", ylabel="iterations to ‖∇f‖ ≤ 0.05", title="Linear speed-up")
    axes[1].loglog(LOCAL_STEPS, rounds, "o-", color=blue, label="EPISODE, best η")
    ideal = [rounds[0] / i for i in LOCAL_STEPS]
    axes[1].loglog(LOCAL_STEPS, ideal, ":", color=grey, label="ideal, 1/I")
    axes[1].set(xlabel="I, local steps", ylabel="rounds", title="Rounds against I (N = 8)")
    axes[2].loglog(KAPPAS, curves["episode"], "o-", color=blue, label="EPISODE")
    axes[2].loglog(KAPPAS, curves["celgc"], "x-", color=orange, label="CELGC")
    axes[2].set(xlabel="κ", ylabel="rounds to ‖∇f‖ ≤ 0.1", title="Resilience to κ")
    for axis, ticks in zip(axes, (CLIENTS, LOCAL_STEPS, KAPPAS), strict=True):
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    axes[2].set_yticks([10, 20, 50], ["10", "20", "50"])  # matplotlib labels whole decades only
    write_bytes(path, as_image(figure, "png"))


if __name__ == "__main__":
    main()
