"""What every algorithm, task and engine must do: ours and anybody's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from episode.core.adamw import AdamW
from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.descent import Descent
from episode.core.schedule import Schedule
from episode.core.vectors import Vector
from episode.federation import checkpoint
from episode.federation.protocols import Draw, Objective, Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.sampling import Uniform
from episode.federation.state import Buffers, ServerState
from episode.testing.check import EXACT, Check, against_plain
from episode.testing.maths import memories_of_cohorts, steps_of_synchronous, trajectories
from episode.testing.problems import MakeEngine, QuadraticProblem, distance, in_this_process, play


def check_algorithm(algorithm: Algorithm, make_engine: MakeEngine = in_this_process) -> list[Check]:
    """Check that an algorithm can be stored, repeated and resumed, and follows its plain program.

    The plain program is written independently of the engines. It is chosen by the properties of
    the correction; a clipping of your own is asked for its `step_size`, a trust for its `weight`
    and a server step for its `step`, on plain numbers. An
    algorithm with momentum or weight decay has no plain program.

    Args:
        algorithm: The algorithm.
        make_engine: Makes the engine to run on, from a task and an algorithm; the simulation in
            this process by default.

    Returns:
        The checks, which have all passed.

    Raises:
        AssertionError: A check failed; the message names it, with its value and bound.

    Example:
        >>> from episode import Algorithm, PerStep, Resampled
        >>> all(check.passed for check in check_algorithm(Algorithm(Resampled(), PerStep())))
        True
    """
    return _require(_algorithm_checks(algorithm, make_engine))


def check_engine(
    make_engine: MakeEngine,
    tolerance: float = EXACT,
    sums_only: bool = False,
    names: Iterable[str] = tuple(ALGORITHMS),
) -> list[Check]:
    """Check that an engine plays every algorithm as the plain programs do.

    Args:
        make_engine: Makes the engine from a task and an algorithm.
        tolerance: How far its numbers may be from those of the plain programs.
        sums_only: Whether the engine sees only sums over three or more clients; then no metrics of
            single clients and no weights that it is given are checked.
        names: Algorithms whose trajectories are compared, for an engine that takes long over all.

    Returns:
        The checks, which have all passed.

    Raises:
        AssertionError: A check failed; the message names it, with its value and bound.

    Example:
        >>> from episode.engines.simulation import Simulation
        >>> check_engine(lambda task, algorithm: Simulation(task, algorithm, 1))  # doctest: +SKIP
    """
    cohorts = partial(memories_of_cohorts, sizes=(6, 3 if sums_only else 2))
    of_each = () if sums_only else (_metrics, _weights)
    checks = (partial(trajectories, names=names), cohorts, *of_each, _resuming)
    found = (check for make in checks for check in make(make_engine))
    return _require(replace(c, bound=tolerance) if c.bound == EXACT else c for c in found)


def check_task(task: Task) -> list[Check]:
    """Check that a task's gradients are those of its loss, and a pure function of the draw.

    Args:
        task: The task.

    Returns:
        The checks, which have all passed.

    Raises:
        AssertionError: A check failed; the message names it, with its value and bound.

    Example:
        >>> from episode.tasks import task_named
        >>> len(check_task(task_named("quadratics")().build(seed=0, device="cpu")))
        8
    """
    return _require(_task_checks(task))


def _require(checks: Iterable[Check]) -> list[Check]:
    done = list(checks)
    failed = [str(check) for check in done if not check.passed]
    assert not failed, "; ".join(failed)
    return done


def _algorithm_checks(algorithm: Algorithm, make_engine: MakeEngine) -> Iterator[Check]:
    name = algorithm.summary.strip("[]")
    rebuilt = Algorithm.from_dict(json.loads(json.dumps(algorithm.to_dict())))
    same = rebuilt == algorithm and hash(rebuilt) == hash(algorithm)
    yield Check(f"{name} survives JSON and is hashable (1 is yes)", float(same), 1, at_least=True)
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    first, second = (play(problem, algorithm, 10, make_engine) for _ in range(2))
    yield Check(f"{name}, repeated, differs by", distance(first.path, second.path), 0.0)
    yield _resumes(name, algorithm, make_engine)
    cell = algorithm.correction, algorithm.clipping
    options = ("trust", "server", "probe_batches", "probe_first", "reuse_probe")
    own = {name: getattr(algorithm, name) for name in options}
    descent = Descent(proximal=algorithm.descent.proximal)
    if isinstance(algorithm.descent, AdamW):
        descent = algorithm.descent
    if algorithm == Algorithm(*cell, descent, **own):
        yield against_plain(name, algorithm, problem, make_engine)
    exact = algorithm.weighting == "uniform" and not algorithm.descent.adapts
    if algorithm.correction.has_global and exact:
        yield _fixed_point_of(name, algorithm, make_engine)


def _fixed_point_of(name: str, algorithm: Algorithm, make_engine: MakeEngine) -> Check:
    """Measure ‖∇(f + λ/2 ‖x‖²)‖ at the end: weight decay is part of the objective."""
    problem = QuadraticProblem.heterogeneous(eta=0.02)
    x = play(
        problem, algorithm, 400 * steps_of_synchronous(algorithm, problem), make_engine
    ).server.x
    decayed = replace(problem, curvatures=problem.curvatures + algorithm.descent.weight_decay)
    return Check(f"{name} ends at a minimum, its gradient norm", decayed.gradient_norm(x), 1e-5)


def _metrics(make_engine: MakeEngine) -> Iterator[Check]:
    """A metric has one value per client of the cohort, in the cohort's order."""
    problem = QuadraticProblem.heterogeneous(clients=6, local_steps=1)
    (telemetry,) = play(problem, ALGORITHMS["fedavg"], 1, make_engine, Uniform(3)).telemetry
    losses = telemetry.metrics["loss"]
    a, b, x = problem.curvatures, problem.slopes, problem.x_0
    expected = [float(np.sum(a[i] * x * x / 2 + b[i] * x)) for i in telemetry.cohort]
    error = distance(losses, expected)
    yield Check("losses come per client, in the cohort's order, to", error, EXACT)


def _weights(make_engine: MakeEngine) -> Iterator[Check]:
    """The engine's mean is weighted."""
    problem, weights = QuadraticProblem.heterogeneous(clients=3), [1.0, 2.0, 5.0]
    G, _ = problem.probe(make_engine, weights)
    gradients = [problem.gradient()(i, problem.x_0, "probe", 0) for i in range(3)]
    expected = np.average(gradients, axis=0, weights=weights)
    yield Check("a weighted mean is right, to", distance(G, expected), EXACT)


def _resuming(make_engine: MakeEngine) -> Iterator[Check]:
    for name in ("scaffold_clipped", "episode_plus_plus"):
        yield _resumes(name, Algorithm.named(name, momentum=0.9), make_engine)
    yield _resumes("diloco", ALGORITHMS["diloco"], make_engine)


def _resumes(name: str, algorithm: Algorithm, make_engine: MakeEngine) -> Check:
    """Play half a run, save it, and play the rest on a new engine: x̄ is the same, bit for bit."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    whole = play(problem, algorithm, 8, make_engine)
    task = problem.task()
    plan = Plan(algorithm, Schedule(problem.eta, problem.gamma), 8, problem.local_steps)
    server = ServerState(*task.initial())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for rounds in (plan.rounds_to_play // 2, plan.rounds_to_play):
            with closing(make_engine(task, algorithm)) as engine:
                if path.exists():
                    server, states = checkpoint.load(path, "check", "cpu")
                    engine.load_client_states(states)
                loop = Rounds(plan, task, engine)
                while server.round < rounds:
                    loop.play(server)
                checkpoint.save(path, server, engine.client_states(), "check")
    error = distance(server.x, whole.server.x)
    return Check(f"{name}, stopped and resumed, differs by", error, 0.0)


def _task_checks(task: Task) -> Iterator[Check]:
    yield Check("number of clients", task.num_clients, 1, at_least=True)
    fewest = min(task.examples(c) for c in range(task.num_clients))
    yield Check("examples of the smallest client", fewest, 1, at_least=True)
    a, b = task.objective(), task.objective()
    x, buffers = task.initial()
    for client in {0, task.num_clients - 1}:
        for stream in ("probe", "local"):
            draw = Draw(client, stream, 3)
            gradients = []
            for objective in (a, b, a):
                objective.x.copy_(x)
                objective.load_buffers(buffers)
                gradients.append(_flat(objective.gradient(draw)[1]))
            error = max(float((g - gradients[0]).abs().max()) for g in gradients)
            claim = f"client {client}'s {stream} gradient, on two replicas and repeated, differs by"
            yield Check(claim, error, 0.0)
    a.x.copy_(x)
    yield _slope(a, x, buffers)
    same = dict(task.evaluate(x, buffers)) == dict(task.evaluate(x.clone(), buffers))
    yield Check("an evaluation, repeated, is the same (1 is yes)", float(same), 1, at_least=True)


def _slope(target: Objective, x: torch.Tensor, buffers: Buffers) -> Check:
    """Compare the loss's central difference along its gradient with the gradient's norm."""
    draw = Draw(0, "local", 0)
    gradient = _flat(target.gradient(draw)[1])
    norm = gradient.norm()
    h, bound = (1e-2, 5e-2) if x.dtype == torch.float32 else (1e-5, 1e-5)
    h /= max(1.0, float(norm))
    values: list[float] = []
    for sign in (1, -1):
        target.x.copy_(x + sign * h * gradient / norm)
        target.load_buffers(buffers)
        values.append(float(target.gradient(draw)[0]))
    slope = (values[0] - values[1]) / (2 * h)
    claim = "the loss rises along its gradient as it should, to a share of"
    return Check(claim, abs(slope / float(norm) - 1), bound)


def _flat(v: Vector) -> torch.Tensor:
    return v.reshape(-1) if isinstance(v, torch.Tensor) else torch.cat([b.reshape(-1) for b in v])
