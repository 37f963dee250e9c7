"""The checks themselves: each measures one figure and holds it against one bound."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.schedule import Schedule
from episode.core.vectors import Vector
from episode.federation import checkpoint
from episode.federation.protocols import Draw, Objective, Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.sampling import Uniform
from episode.federation.state import Buffers, ServerState
from episode.testing import plain
from episode.testing.problems import MakeEngine, Problem, distance, gap, in_this_process, play

EXACT = 1e-12
"""Two float64 programs that do the same sums in another order."""


@dataclass(frozen=True)
class Check:
    """A claim, the figure measured, and the bound that it must respect."""

    claim: str
    figure: float
    bound: float
    at_least: bool = False
    """Whether the bound is a lower one."""

    @property
    def passed(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def __str__(self) -> str:
        relation = ">=" if self.at_least else "<="
        return f"{self.claim}: {self.figure:.3g} (must be {relation} {self.bound:.3g})"


def verify(make_engine: MakeEngine = in_this_process) -> Iterator[Check]:
    """Every check on what this package offers, one after another."""
    for checks in (
        _fixed_points,
        _trajectories,
        _limits,
        _one_step_rounds,
        _corrections_sum_to_zero,
        _order_of_clients,
        _drift_of_clipped_rounds,
        _counter_example,
        _memory_under_clipping,
        _memories_of_cohorts,
    ):
        yield from checks(make_engine)


def check_algorithm(algorithm: Algorithm, make_engine: MakeEngine = in_this_process) -> list[Check]:
    """An algorithm can be stored, repeated and resumed, and follows its plain program."""
    return _require(_algorithm_checks(algorithm, make_engine))


def check_engine(make_engine: MakeEngine) -> list[Check]:
    """An engine plays every algorithm as the plain programs do, for full and partial cohorts."""
    checks = (_trajectories, _memories_of_cohorts, _metrics, _weights, _resuming)
    return _require(check for make in checks for check in make(make_engine))


def check_task(task: Task) -> list[Check]:
    """A task's gradients are those of its loss, and a pure function of the draw."""
    return _require(_task_checks(task))


def _require(checks: Iterable[Check]) -> list[Check]:
    done = list(checks)
    failed = [str(check) for check in done if not check.passed]
    assert not failed, "; ".join(failed)
    return done


def _fixed_points(make_engine: MakeEngine) -> Iterator[Check]:
    """Where clients disagree, corrected algorithms still find the minimum; the others stall."""
    problem = Problem.heterogeneous()
    for name, algorithm in ALGORITHMS.items():
        norm = problem.gradient_norm(play(problem, algorithm, 100, make_engine).server.x)
        if algorithm.correction.has_global:
            yield Check(f"{name} ends at a minimum, its gradient norm", norm, 1e-5)
        else:
            yield Check(f"{name} stalls, its gradient norm", norm, 1e-2, at_least=True)


def _trajectories(make_engine: MakeEngine) -> Iterator[Check]:
    problem = Problem.heterogeneous(noise=1.0)
    for name, algorithm in ALGORITHMS.items():
        yield _against_plain(name, algorithm, problem, make_engine)


def _against_plain(
    name: str, algorithm: Algorithm, problem: Problem, make_engine: MakeEngine
) -> Check:
    played = play(problem, algorithm, 30, make_engine)
    program = plain.ROWS[algorithm.correction.name]
    options = {"reuse_probe": True} if algorithm.reuse_probe else {}
    path = program(problem.setting(30), algorithm.clipping.name, **options)
    return Check(f"{name} follows its plain program, to", distance(played.path, path), EXACT)


def _limits(make_engine: MakeEngine) -> Iterator[Check]:
    """With γ → ∞ nothing is clipped: each clipped algorithm becomes its unclipped neighbour."""
    problem = Problem.heterogeneous(noise=1.0, gamma=1e12)
    for name, limit in (
        ("celgc", "fedavg"),
        ("scaffold_clipped", "scaffold"),
        ("episode", "episode_unclipped"),
        ("episode_guarded", "episode_unclipped"),
        ("naive_parallel_clip", "parallel_sgd"),
    ):
        a = play(problem, ALGORITHMS[name], 20, make_engine)
        b = play(problem, ALGORITHMS[limit], 20, make_engine)
        yield Check(f"{name} with γ → ∞ is {limit}, to", distance(a.path, b.path), EXACT)


def _one_step_rounds(make_engine: MakeEngine) -> Iterator[Check]:
    problem = Problem.heterogeneous(noise=1.0, local_steps=1)
    a = play(problem, Algorithm.named("episode", reuse_probe=True), 50, make_engine)
    b = play(problem, ALGORITHMS["naive_parallel_clip"], 50, make_engine)
    claim = "episode with I = 1 and reuse_probe is naive_parallel_clip, to"
    yield Check(claim, distance(a.path, b.path), EXACT)


def _corrections_sum_to_zero(make_engine: MakeEngine) -> Iterator[Check]:
    """Σ_i (G_r - G_r^i) = 0, so corrections move clients, but not their mean."""
    problem = Problem.heterogeneous(noise=1.0)
    task, algorithm = problem.task(), ALGORITHMS["episode"]
    engine = make_engine(task, algorithm)
    try:
        x, buffers = task.initial()
        cohort = list(range(task.num_clients))
        weights = [1.0] * len(cohort)
        reply = engine.average("probe", cohort, weights=weights, round=0, x=x, buffers=buffers)
        G = reply.vectors["gradient"]
        anchors = [state.anchor for state in engine.client_states().values()]
    finally:
        engine.close()
    total = sum((G - a for a in anchors if a is not None), torch.zeros_like(G))
    yield Check("corrections of a full cohort sum to", float(total.abs().max()), EXACT)


def _order_of_clients(make_engine: MakeEngine) -> Iterator[Check]:
    problem = Problem.heterogeneous()
    for name in ("fedavg", "scaffold_clipped", "episode", "episode_plus_plus"):
        a = play(problem, ALGORITHMS[name], 30, make_engine)
        b = play(problem.permuted([2, 0, 3, 1]), ALGORITHMS[name], 30, make_engine)
        yield Check(f"{name} with clients permuted differs by", distance(a.path, b.path), EXACT)


def _drift_of_clipped_rounds(make_engine: MakeEngine) -> Iterator[Check]:
    """Lemma 1: ‖x_t^i - x̄_r‖ ≤ γI in a clipped round."""
    problem = Problem.heterogeneous(noise=1.0)
    limit = problem.gamma * problem.local_steps
    for name in ("episode", "episode_guarded", "episode_plus_plus"):
        rounds = play(problem, ALGORITHMS[name], 30, make_engine).telemetry
        drifts = [max(t.metrics["drift"]) for t in rounds if t.clipped]
        yield Check(f"{name} has clipped rounds to look at", len(drifts), 5, at_least=True)
        ratio = max(drifts, default=np.inf) / limit
        yield Check(f"{name} in clipped rounds drifts by γI times", ratio, 1 + 1e-9)


def _counter_example(make_engine: MakeEngine) -> Iterator[Check]:
    """The paper's section 4.1: f_1 = ½x² - (γ+1)x, f_2 = ½x² + (γ+2)x, from x = 0, η = 1."""
    gamma = 2.0
    slopes = np.array([[-gamma - 1], [gamma + 2]])
    problem = Problem(np.ones((2, 1)), slopes, np.zeros(1), local_steps=1, eta=1.0, gamma=gamma)
    celgc = play(problem, ALGORITHMS["celgc"], 50, make_engine).path
    yield Check("counter-example: celgc leaves 0 by", float(max(abs(x) for x in celgc)), 1e-9)
    for name in ("episode", "episode_guarded"):
        x = play(problem, ALGORITHMS[name], 50, make_engine).server.x
        yield Check(f"counter-example: {name} misses -1/2 by", abs(x.item() + 0.5), 1e-9)


def _memory_under_clipping(make_engine: MakeEngine) -> Iterator[Check]:
    """SCAFFOLD's memory is the mean raw gradient; (x̄ - x_i)/(ηI) is not, once steps are clipped."""
    problem = Problem.heterogeneous(noise=1.0)
    played = play(problem, ALGORITHMS["scaffold_clipped"], 1, make_engine)
    assert played.server.memory is not None
    memory = played.server.memory.numpy()
    expected = _mean_of_raw_gradients(problem)
    yield Check(
        "scaffold_clipped's memory misses the mean gradient by", gap(memory, expected), EXACT
    )
    moved = (played.path[0] - played.path[1]).numpy() / (problem.eta * problem.local_steps)
    claim = "and the popular formula would miss it by"
    yield Check(claim, gap(moved, expected), 0.1, at_least=True)


def _mean_of_raw_gradients(problem: Problem) -> plain.Vector:
    """Of the first round of clipped local steps from zero memories, written out."""
    gradient, sums = problem.gradient(), []
    for i in range(len(problem.slopes)):
        x = problem.x_0
        for t in range(problem.local_steps):
            g = gradient(i, x, "local", t)
            sums.append(g)
            x = x - min(problem.eta, problem.gamma / (float(np.linalg.norm(g)) + 1e-10)) * g
    return np.asarray(np.mean(sums, axis=0))


def _memories_of_cohorts(make_engine: MakeEngine) -> Iterator[Check]:
    """EPISODE++: with S = N and with S < N it follows its plain program, memories included."""
    problem = Problem.heterogeneous(clients=6, noise=1.0)
    for size in (6, 2):
        cohorts = Uniform(size)
        drawn = [cohorts.at(r, 6, 0) for r in range(30)]
        for name in ("episode_plus_plus", "scaffold", "episode"):
            algorithm = ALGORITHMS[name]
            played = play(problem, algorithm, 30, make_engine, cohorts)
            program = plain.ROWS[algorithm.correction.name]
            path = program(problem.setting(30, drawn), algorithm.clipping.name)
            claim = f"{name} with cohorts of {size} of 6 follows its plain program, to"
            yield Check(claim, distance(played.path, path), EXACT)


def _metrics(make_engine: MakeEngine) -> Iterator[Check]:
    """One figure per client of the cohort, in its order."""
    problem = replace(Problem.heterogeneous(clients=6), local_steps=1)
    cohorts = Uniform(3)
    played = play(problem, ALGORITHMS["fedavg"], 1, make_engine, cohorts)
    (telemetry,) = played.telemetry
    losses = telemetry.metrics["loss"]
    a, b, x = problem.curvatures, problem.slopes, problem.x_0
    expected = [float(np.sum(a[i] * x * x / 2 + b[i] * x)) for i in telemetry.cohort]
    error = float("inf") if len(losses) != 3 else gap(np.array(losses, float), np.array(expected))
    yield Check("losses come per client, in the cohort's order, to", error, EXACT)


def _weights(make_engine: MakeEngine) -> Iterator[Check]:
    """The engine's mean is the weighted one."""
    problem = Problem.heterogeneous(clients=3)
    task = problem.task()
    engine = make_engine(task, ALGORITHMS["episode"])
    weights = [1.0, 2.0, 5.0]
    try:
        x, buffers = task.initial()
        reply = engine.average("probe", [0, 1, 2], weights=weights, round=0, x=x, buffers=buffers)
    finally:
        engine.close()
    gradients = [problem.gradient()(i, problem.x_0, "probe", 0) for i in range(3)]
    expected = np.average(gradients, axis=0, weights=weights)
    error = gap(reply.vectors["gradient"].numpy(), expected)
    yield Check("a weighted mean is right, to", error, EXACT)


def _resuming(make_engine: MakeEngine) -> Iterator[Check]:
    for name in ("scaffold_clipped", "episode_plus_plus"):
        yield _resumes(name, Algorithm.named(name, momentum=0.9), make_engine)


def _resumes(name: str, algorithm: Algorithm, make_engine: MakeEngine) -> Check:
    """Half a run, a checkpoint, a new engine, the other half: the same x̄, bit for bit."""
    problem = Problem.heterogeneous(noise=1.0)
    whole = play(problem, algorithm, 8, make_engine)
    task = problem.task()
    plan = Plan(algorithm, Schedule(problem.eta, problem.gamma), 8, problem.local_steps)
    server = ServerState(*task.initial())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for rounds in (plan.rounds_to_play // 2, plan.rounds_to_play):
            engine = make_engine(task, algorithm)
            try:
                if path.exists():
                    server, states = checkpoint.load(path, "check", "cpu")
                    engine.load_client_states(states)
                loop = Rounds(plan, task, engine)
                while server.round < rounds:
                    loop.play(server)
                checkpoint.save(path, server, engine.client_states(), "check")
            finally:
                engine.close()
    error = distance([server.x], [whole.server.x])
    return Check(f"{name}, stopped and resumed, differs by", error, 0.0)


def _algorithm_checks(algorithm: Algorithm, make_engine: MakeEngine) -> Iterator[Check]:
    name = f"{algorithm.correction.name} x {algorithm.clipping.name}"
    rebuilt = Algorithm.from_dict(json.loads(json.dumps(algorithm.to_dict())))
    same = rebuilt == algorithm and hash(rebuilt) == hash(algorithm)
    yield Check(f"{name} survives JSON and is hashable (1 is yes)", float(same), 1, at_least=True)
    problem = Problem.heterogeneous(noise=1.0)
    first, second = (play(problem, algorithm, 10, make_engine) for _ in range(2))
    yield Check(f"{name}, repeated, differs by", distance(first.path, second.path), 0.0)
    yield _resumes(name, algorithm, make_engine)
    standard = Algorithm.from_dict(
        {
            "correction": algorithm.correction.name,
            "clipping": algorithm.clipping.name,
            "reuse_probe": algorithm.reuse_probe,
        }
    )
    if algorithm == standard:
        yield _against_plain(name, algorithm, problem, make_engine)
    if algorithm.correction.has_global and algorithm.weighting == "uniform":
        yield _fixed_point_of(name, algorithm, make_engine)


def _fixed_point_of(name: str, algorithm: Algorithm, make_engine: MakeEngine) -> Check:
    """‖∇(f + λ/2 ‖x‖²)‖ at the end: weight decay is part of the objective."""
    problem = Problem.heterogeneous(eta=0.02)
    x = play(problem, algorithm, 400, make_engine).server.x
    decayed = replace(problem, curvatures=problem.curvatures + algorithm.descent.weight_decay)
    return Check(f"{name} ends at a minimum, its gradient norm", decayed.gradient_norm(x), 1e-5)


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
    before = dict(task.evaluate(x, buffers))
    again = dict(task.evaluate(x.clone(), buffers))
    same = before == again
    yield Check("an evaluation, repeated, is the same (1 is yes)", float(same), 1, at_least=True)


def _slope(target: Objective, x: torch.Tensor, buffers: Buffers) -> Check:
    """The loss's central difference along its gradient against the gradient's own norm."""
    draw = Draw(0, "local", 0)
    gradient = _flat(target.gradient(draw)[1])
    norm = gradient.norm()
    single = x.dtype == torch.float32
    h = (1e-2 if single else 1e-5) / max(1.0, float(norm))
    values: list[float] = []
    for sign in (1, -1):
        target.x.copy_(x + sign * h * gradient / norm)
        target.load_buffers(buffers)
        values.append(float(target.gradient(draw)[0]))
    slope = (values[0] - values[1]) / (2 * h)
    error = abs(slope / float(norm) - 1)
    claim = "the loss rises along its gradient as it should, to a share of"
    return Check(claim, error, 5e-2 if single else 1e-5)


def _flat(v: Vector) -> torch.Tensor:
    return v.reshape(-1) if isinstance(v, torch.Tensor) else torch.cat([b.reshape(-1) for b in v])
