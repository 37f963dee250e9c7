"""What `episode verify` proves: each group measures values and compares them with bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from episode.core import ALGORITHMS, Algorithm, PerStep
from episode.federation.sampling import Uniform
from episode.testing import plain
from episode.testing.check import EXACT, Check, against_plain
from episode.testing.problems import MakeEngine, QuadraticProblem, distance, in_this_process, play


def verify(make_engine: MakeEngine = in_this_process) -> Iterator[Check]:
    """Yield every check of this package's own algorithms, one after another.

    Args:
        make_engine: Makes the engine to run on, from a task and an algorithm; the simulation in
            this process by default.

    Yields:
        A check, as soon as it is done; it may have failed.

    Example:
        >>> next(verify()).passed
        True
    """
    for checks in (
        fixed_points,
        trajectories,
        limits,
        one_step_rounds,
        corrections_sum_to_zero,
        order_of_clients,
        drift_of_clipped_rounds,
        counter_example,
        memory_under_clipping,
        memories_of_cohorts,
    ):
        yield from checks(make_engine)


def fixed_points(
    make_engine: MakeEngine, names: Iterable[str] = tuple(ALGORITHMS)
) -> Iterator[Check]:
    """If clients disagree, corrected algorithms still find the minimum; the others stall."""
    problem = QuadraticProblem.heterogeneous()
    for name in names:
        algorithm = ALGORITHMS[name]
        rounds = 100 * steps_of_synchronous(algorithm, problem)
        norm = problem.gradient_norm(play(problem, algorithm, rounds, make_engine).server.x)
        if algorithm.correction.has_global:
            yield Check(f"{name} ends at a minimum, its gradient norm", norm, 1e-5)
        else:
            yield Check(f"{name} stalls, its gradient norm", norm, 1e-2, at_least=True)


def steps_of_synchronous(algorithm: Algorithm, problem: QuadraticProblem) -> int:
    """Return by how much more rounds an algorithm with one step a round needs to get as far."""
    once = not algorithm.correction.steps_locally and algorithm.probe_batches == "local_steps"
    return problem.local_steps if once else 1


def trajectories(
    make_engine: MakeEngine, names: Iterable[str] = tuple(ALGORITHMS)
) -> Iterator[Check]:
    """Every algorithm takes the same path as its plain program, noise and all."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    for name in names:
        yield against_plain(name, ALGORITHMS[name], problem, make_engine)


def limits(make_engine: MakeEngine) -> Iterator[Check]:
    """With γ → ∞ nothing is clipped: each clipped algorithm becomes its unclipped neighbour."""
    problem = QuadraticProblem.heterogeneous(noise=1.0, gamma=1e12)
    for name, limit in (
        ("celgc", "fedavg"),
        ("scaffold_clipped", "scaffold"),
        ("episode", "episode_unclipped"),
        ("episode_guarded", "episode_unclipped"),
        ("naive_parallel_clip", "parallel_sgd"),
    ):
        paths = [play(problem, ALGORITHMS[n], 20, make_engine).path for n in (name, limit)]
        yield Check(f"{name} with γ → ∞ is {limit}, to", distance(*paths), EXACT)
    for name in ("fedavg", "episode"):
        rows = (ALGORITHMS[name], Algorithm.named(name, server="sgd"))
        paths = [play(problem, row, 20, make_engine).path for row in rows]
        yield Check(f"{name} with a server step of rate 1 is {name}, to", distance(*paths), 0.0)


def one_step_rounds(make_engine: MakeEngine) -> Iterator[Check]:
    """A round of one step from the probe's own batch is a step along the global gradient."""
    problem = QuadraticProblem.heterogeneous(noise=1.0, local_steps=1)
    a = play(problem, Algorithm.named("episode", reuse_probe=True), 50, make_engine)
    b = play(problem, ALGORITHMS["naive_parallel_clip"], 50, make_engine)
    claim = "episode with I = 1 and reuse_probe is naive_parallel_clip, to"
    yield Check(claim, distance(a.path, b.path), EXACT)


def corrections_sum_to_zero(make_engine: MakeEngine) -> Iterator[Check]:
    """Σ_i (G_r - G_r^i) = 0, so corrections move clients, but not their mean."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    G, anchors = problem.probe(make_engine, [1.0] * 4)
    total = sum((G - anchor for anchor in anchors), torch.zeros_like(G))
    yield Check("corrections of a full cohort sum to", float(total.abs().max()), EXACT)


def order_of_clients(make_engine: MakeEngine) -> Iterator[Check]:
    """The numbering of the clients makes no difference."""
    problem = QuadraticProblem.heterogeneous()
    for name in ("fedavg", "scaffold_clipped", "episode", "episode_plus_plus"):
        orders = (problem, problem.permuted([2, 0, 3, 1]))
        paths = [play(p, ALGORITHMS[name], 30, make_engine).path for p in orders]
        yield Check(f"{name} with clients permuted differs by", distance(*paths), EXACT)


def drift_of_clipped_rounds(make_engine: MakeEngine) -> Iterator[Check]:
    """Lemma 1: ‖x_t^i - x̄_r‖ ≤ γI in a clipped round."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    limit = problem.gamma * problem.local_steps
    for name in ("episode", "episode_guarded", "episode_plus_plus"):
        rounds = play(problem, ALGORITHMS[name], 30, make_engine).telemetry
        drifts = [max(t.metrics["drift"]) for t in rounds if t.clipped]
        yield Check(f"{name} has clipped rounds to look at", len(drifts), 5, at_least=True)
        ratio = max(drifts, default=np.inf) / limit
        yield Check(f"{name} in clipped rounds drifts by γI times", ratio, 1 + 1e-9)


def counter_example(make_engine: MakeEngine) -> Iterator[Check]:
    """The paper's section 4.1: f_1 = ½x² - (γ+1)x, f_2 = ½x² + (γ+2)x, from x = 0, η = 1."""
    gamma = 2.0
    slopes = np.array([[-gamma - 1], [gamma + 2]])
    problem = QuadraticProblem(
        np.ones((2, 1)), slopes, np.zeros(1), local_steps=1, eta=1.0, gamma=gamma
    )
    celgc = play(problem, ALGORITHMS["celgc"], 50, make_engine).path
    yield Check("counter-example: celgc leaves 0 by", float(max(abs(x) for x in celgc)), 1e-9)
    for name in ("episode", "episode_guarded"):
        x = play(problem, ALGORITHMS[name], 50, make_engine).server.x
        yield Check(f"counter-example: {name} misses -1/2 by", abs(x.item() + 0.5), 1e-9)


def memory_under_clipping(make_engine: MakeEngine) -> Iterator[Check]:
    """SCAFFOLD's memory is the mean raw gradient; (x̄ - x_i)/(ηI) is not, once steps are clipped."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    played = play(problem, ALGORITHMS["scaffold_clipped"], 1, make_engine)
    assert played.server.memory is not None
    expected = _mean_of_raw_gradients(problem)
    missed = distance(played.server.memory, expected)
    yield Check("scaffold_clipped's memory misses the mean gradient by", missed, EXACT)
    moved = (played.path[0] - played.path[1]) / (problem.eta * problem.local_steps)
    claim = "and the popular formula would miss it by"
    yield Check(claim, distance(moved, expected), 0.1, at_least=True)


def _mean_of_raw_gradients(problem: QuadraticProblem) -> plain.Vector:
    """The mean of all raw gradients of a first round of clipped local steps, written out."""
    setting, gradients = problem.setting(1), []
    for i in range(len(problem.slopes)):
        x = problem.x_0
        for t in range(problem.local_steps):
            g = setting.gradient(i, x, "local", t)
            gradients.append(g)
            x = plain.step(x, g, None, setting, plain.RULES[PerStep])
    return plain.mean(gradients)


def memories_of_cohorts(
    make_engine: MakeEngine, sizes: tuple[int, ...] = (6, 2)
) -> Iterator[Check]:
    """EPISODE++: with S = N and with S < N it follows its plain program, memories included."""
    problem = QuadraticProblem.heterogeneous(clients=6, noise=1.0)
    for size in sizes:
        for name in ("episode_plus_plus", "scaffold", "episode"):
            claim = f"{name} with cohorts of {size} of 6"
            yield against_plain(claim, ALGORITHMS[name], problem, make_engine, Uniform(size))
