"""A round's costs, its telemetry, and what the engine promises about it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from episode import (
    ALGORITHMS,
    Algorithm,
    ClientError,
    EpisodeError,
    Episodic,
    Full,
    Guarded,
    PerStep,
    Schedule,
    Synchronous,
    Uniform,
)
from episode.engines.simulation import Simulation
from episode.federation.protocols import AttemptFailed, Phase, Reply
from episode.federation.rounds import Plan, Rounds, divergence
from episode.federation.sampling import Cohorts
from episode.federation.state import ServerState
from episode.tasks.neural import NeuralTask
from episode.testing import plain
from episode.testing.problems import QuadraticProblem, play

D, N, I = 5, 4, 8  # noqa: E741 (the paper's names)
VECTOR = 8 * D  # bytes of one float64 vector


@pytest.mark.parametrize(
    ("name", "exchanges", "down", "up", "gradients"),
    [
        ("fedavg", 1, 1, 1, I),
        ("celgc", 1, 1, 1, I),
        ("scaffold", 1, 2, 2, I),
        ("scaffold_clipped", 1, 2, 2, I),
        ("episode", 2, 2, 2, I + 1),
        ("episode_unclipped", 2, 2, 2, I + 1),
        ("episode_guarded", 2, 2, 2, I + 1),
        ("episode_trust", 2, 2, 2, I + 1),
        ("naive_parallel_clip", I, I, I, I),
        ("parallel_sgd", I, I, I, I),
        ("minibatch_clip", 1, 1, 1, I),
        ("fedprox", 1, 1, 1, I),
        ("fedadam", 1, 1, 1, I),
        ("episode_nesterov", 2, 2, 2, I + 1),
    ],
)
def test_a_round_costs_what_the_algorithm_says(
    name: str, exchanges: int, down: int, up: int, gradients: int
) -> None:
    """Vectors of d, per client, for I iterations."""
    counts = play(QuadraticProblem.heterogeneous(), ALGORITHMS[name], 3).server.counts
    assert counts.exchanges == 3 * exchanges
    assert counts.bytes_down == 3 * N * down * VECTOR
    assert counts.bytes_up == 3 * N * up * VECTOR
    assert counts.gradients == 3 * N * gradients
    assert counts.seconds > 0


def test_episode_plus_plus_pays_for_its_first_memories_once() -> None:
    problem = QuadraticProblem.heterogeneous()
    played = play(problem, ALGORITHMS["episode_plus_plus"], 3, cohorts=Uniform(2))
    counts = played.server.counts
    assert counts.exchanges == 1 + 3
    assert counts.bytes_down == (N * 1 + 3 * 2 * 2) * VECTOR
    assert counts.bytes_up == (N * 1 + 3 * 2 * 2) * VECTOR
    assert counts.gradients == N + 3 * 2 * I


def test_a_first_memory_of_i_batches_costs_one_exchange_and_i_gradients() -> None:
    """As EPISODE++'s authors start; without it SCAFFOLD starts from zero, for nothing."""
    algorithm = Algorithm.named("scaffold", probe_first=True, probe_batches="local_steps")
    counts = play(QuadraticProblem.heterogeneous(), algorithm, 3).server.counts
    assert counts.exchanges == 1 + 3
    assert counts.gradients == N * I + 3 * N * I


def test_reusing_the_probe_saves_a_gradient_and_more_probe_batches_cost_some() -> None:
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    counts = play(problem, Algorithm.named("episode", reuse_probe=True), 2).server.counts
    assert counts.gradients == 2 * N * I
    counts = play(problem, Algorithm.named("episode", probe_batches=3), 2).server.counts
    assert counts.gradients == 2 * N * (I + 3)


def test_more_probe_batches_give_the_mean_of_their_gradients() -> None:
    problem = replace(QuadraticProblem.heterogeneous(noise=1.0), local_steps=1)
    played = play(problem, Algorithm.named("episode", probe_batches=3, reuse_probe=True), 1)
    gradient = problem.gradient()
    G = np.mean([gradient(i, problem.x_0, "probe", k) for i in range(N) for k in range(3)], axis=0)
    expected = plain.step(problem.x_0, G, G, problem.setting(1), plain.RULES[Episodic])
    assert np.allclose(played.server.x.numpy(), expected, rtol=1e-14)


def test_weighting_by_examples_weighs_the_gradient_and_the_model_alike() -> None:
    """Copies of an example weigh as much as clients that hold one each."""
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 1])
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()

    def loss(m: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    uneven = [(x[:1].expand(3, 4), y[:1].expand(3)), (x[1:2], y[1:2])]
    even = [(x[:1], y[:1])] * 3 + [(x[1:2], y[1:2])]
    for name in ("episode", "scaffold_clipped", "celgc", "episode_plus_plus", "parallel_sgd"):
        ends = []
        for clients, weighting in ((uneven, "examples"), (even, "uniform")):
            with (
                pytest.warns(UserWarning, match="fewer examples") if clients is uneven else _calm()
            ):
                size = 4 if clients is uneven else 1
                task = NeuralTask(model, clients, loss, batch_size=size)
            algorithm = Algorithm.named(name, weighting=weighting)
            engine = Simulation(task, algorithm, 1)
            server = ServerState(*task.initial())
            rounds = Rounds(Plan(algorithm, Schedule(0.5, 0.1), 5, 3), task, engine)
            for _ in range(rounds.plan.rounds_to_play):
                rounds.play(server)
            engine.close()
            ends.append(server.x)
        assert torch.allclose(*ends, rtol=1e-12), name


class _calm:  # noqa: N801
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.slow
def test_weight_decay_is_part_of_the_objective() -> None:
    """Decay λ on f_i is the same run as f_i + λ/2 ‖x‖², whose curvatures are larger by λ."""
    problem = QuadraticProblem.heterogeneous(noise=1.0)
    decayed = replace(problem, curvatures=problem.curvatures + 0.3)
    for name in (n for n, a in ALGORITHMS.items() if not a.descent.adapts):
        a = play(problem, Algorithm.named(name, weight_decay=0.3), 10).server.x
        b = play(decayed, ALGORITHMS[name], 10).server.x
        assert torch.allclose(a, b, rtol=1e-12), name


def test_momentum_is_per_client_kept_across_rounds_and_never_averaged() -> None:
    problem = QuadraticProblem.heterogeneous()
    gradient, setting = problem.gradient(), problem.setting(3)
    velocity = np.zeros((N, D))
    x_bar = problem.x_0
    for r in range(3):
        ends = []
        for i in range(N):
            x = x_bar
            for t in range(I):
                velocity[i] = 0.9 * velocity[i] + gradient(i, x, "local", r * I + t)
                x = plain.step(x, velocity[i], None, setting, plain.RULES[PerStep])
            ends.append(x)
        x_bar = np.mean(ends, axis=0)
    played = play(problem, Algorithm.named("celgc", momentum=0.9), 3)
    assert np.allclose(played.server.x.numpy(), x_bar, rtol=1e-12)


def test_telemetry_says_what_happened() -> None:
    problem = QuadraticProblem.heterogeneous()
    rounds = play(problem, ALGORITHMS["episode"], 40).telemetry
    first, last = rounds[0], rounds[-1]
    norm = problem.gradient_norm(torch.from_numpy(problem.x_0))
    assert first.G_norm == pytest.approx(norm)
    assert first.clipped is True
    assert last.clipped is False
    assert first.metrics["clipped"] == [1.0] * N
    assert last.metrics["clipped"] == [0.0] * N
    assert len(first.metrics["drift"]) == N
    assert all(d > 0 for d in first.metrics["drift"])
    assert all(size > 0 for size in first.metrics["largest_norm"])
    fedavg = play(problem, ALGORITHMS["fedavg"], 1).telemetry[0]
    assert fedavg.G_norm is None
    assert fedavg.clipped is None
    assert fedavg.metrics["largest_norm"] == [None] * N


@pytest.mark.parametrize(("gamma", "clipped"), [(0.05, 1.0), (100.0, 0.0)])
def test_a_server_that_steps_alone_reports_for_every_client(gamma: float, clipped: float) -> None:
    problem = QuadraticProblem.heterogeneous(gamma=gamma)
    played = play(problem, Algorithm(Synchronous(), PerStep()), 1).telemetry[0]
    norm = pytest.approx(problem.gradient_norm(torch.from_numpy(problem.x_0)))
    assert played.metrics["clipped"] == [clipped] * N
    assert played.metrics["largest_norm"] == [norm] * N
    assert played.metrics["drift"] == [0.0] * N
    assert len(played.metrics["loss"]) == N
    assert (played.G_norm, played.clipped) == (norm, None)


class Faltering(Simulation):
    """An engine whose first attempt at each round fails half-way, and whose second has fewer."""

    def attempts(self, round: int, cohort: Sequence[int]) -> Iterator[list[int]]:
        self.failing = True
        yield list(cohort)
        self.failing = False
        yield [round]

    def average(self, phase: Phase, cohort: Sequence[int], **given: Any) -> Reply:
        if phase == "local" and self.failing:
            raise AttemptFailed
        return super().average(phase, cohort, **given)


def test_a_failed_attempt_costs_nothing_and_the_next_one_is_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = map(float, range(100))
    ticking = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("episode.federation.rounds.time", ticking)
    played = play(
        QuadraticProblem.heterogeneous(), ALGORITHMS["episode"], 3,
        lambda task, algorithm: Faltering(task, algorithm, 1),
    )  # fmt: skip
    assert [t.cohort for t in played.telemetry] == [[0], [1], [2]]
    assert [t.round for t in played.telemetry] == [0, 1, 2]
    counts = played.server.counts
    assert (counts.exchanges, counts.gradients) == (3 * 2, 3 * (I + 1))
    assert counts.bytes_up == counts.bytes_down == 3 * 2 * VECTOR
    assert counts.seconds == 3  # of one tick a round


def test_a_round_without_a_successful_attempt_ends_the_run_in_a_sentence() -> None:
    class Hopeless(Faltering):
        def attempts(self, round: int, cohort: Sequence[int]) -> Iterator[list[int]]:
            self.failing = True
            yield list(cohort)

    with pytest.raises(EpisodeError, match="No attempt at round 0 succeeded"):
        play(
            QuadraticProblem.heterogeneous(), ALGORITHMS["fedavg"], 1,
            lambda task, algorithm: Hopeless(task, algorithm, 1),
        )  # fmt: skip


def test_sizes_that_are_given_weigh_clients_instead_of_those_of_the_task() -> None:
    """A client of no examples is as good as absent; memories move by the cohort's weight."""
    task = QuadraticProblem.heterogeneous().task()
    algorithm = Algorithm.named("scaffold", weighting="examples")
    plan = Plan(algorithm, Schedule(0.1, 0.1), 2, 3)
    ends, means = [], []
    for sizes, cohorts in (([1, 0, 0, 3], Full()), ([1, 5, 5, 3], Only([0, 3]))):
        with closing(Simulation(task, algorithm, 1)) as engine:
            rounds = Rounds(replace(plan, cohorts=cohorts), task, engine, sizes)
            server = ServerState(*task.initial())
            rounds.play(server)
            ends.append(server)
            memories = engine.client_states()
            means.append((memories[0].memory + 3 * memories[3].memory) / 4)  # type: ignore[operator]
    assert torch.allclose(ends[0].x, ends[1].x, rtol=1e-14)
    assert torch.allclose(ends[0].memory, means[0], rtol=1e-14)
    assert torch.allclose(ends[1].memory, means[1] * 4 / 14, rtol=1e-14)


@dataclass(frozen=True)
class Only(Cohorts):
    """The same clients in every round."""

    clients: list[int]

    def at(self, round: int, num_clients: int, seed: int) -> list[int]:
        return self.clients


def test_the_servers_memory_is_the_mean_of_those_of_all_clients() -> None:
    """Also of clients that have only probed so far."""
    task, algorithm = QuadraticProblem.heterogeneous().task(), ALGORITHMS["episode_plus_plus"]
    plan = Plan(algorithm, Schedule(0.1, 0.1), 3, 2, seed=7, cohorts=Uniform(2))
    with closing(Simulation(task, algorithm, 1)) as engine:
        rounds, server = Rounds(plan, task, engine), ServerState(*task.initial())
        for r in range(3):
            assert rounds.play(server).cohort == Uniform(2).at(r, N, seed=7)
            memories = [state.memory for state in engine.client_states().values()]
            assert torch.allclose(torch.stack(memories).mean(0), server.memory, rtol=1e-13)  # type: ignore[arg-type]
    assert len(memories) == N


def test_corrections_are_measured_if_the_plan_says_so() -> None:
    task, algorithm = QuadraticProblem.heterogeneous().task(), ALGORITHMS["episode"]
    for every, measured in ((0, None), (2, [True, False, True, False])):
        plan = Plan(algorithm, Schedule(0.1, 0.1), 1, 1, measure_every=every)
        with closing(Simulation(task, algorithm, 1)) as engine:
            metrics = Rounds(plan, task, engine).play(ServerState(*task.initial())).metrics
        norms = metrics.get("correction_norm")
        assert (norms if norms is None else [norm is not None for norm in norms]) == measured


def test_the_loss_of_a_round_of_one_reused_step_is_that_of_its_probe() -> None:
    problem = QuadraticProblem.heterogeneous(local_steps=1)
    reused = Algorithm.named("episode", reuse_probe=True)
    first, fresh = (play(problem, a, 1).telemetry[0] for a in (reused, ALGORITHMS["episode"]))
    assert first.metrics["loss"] == fresh.metrics["loss"]


def test_the_schedule_covers_the_budget_however_many_rounds_it_takes() -> None:
    schedule = Schedule(1.0, 0.1, kind="step", milestones=(0.5,))
    local = Plan(ALGORITHMS["episode"], schedule, 10, 4)
    synchronous = Plan(ALGORITHMS["naive_parallel_clip"], schedule, 10, 4)
    assert (local.rounds_to_play, synchronous.rounds_to_play) == (10, 40)
    assert [local.step_sizes(r)[0] for r in (4, 5)] == [1, 0.5]
    assert [synchronous.step_sizes(r)[0] for r in (19, 20)] == [1, 0.5]


@pytest.mark.parametrize("name", ["rounds", "local_steps"])
def test_a_plan_without_work_is_refused(name: str) -> None:
    plan = replace(Plan(ALGORITHMS["episode"], Schedule(1.0, 1.0), 1, 1), **{name: 0})
    with pytest.raises(EpisodeError, match=f"{name} is 0: it must be 1 or more"):
        plan.check(2)
    replace(plan, **{name: 10**15 - 1}).check(2)
    with pytest.raises(EpisodeError, match=f"{name} is {10**15}: it must be below {10**15}"):
        replace(plan, **{name: 10**15}).check(2)


def test_a_plan_is_checked_for_the_tasks_number_of_clients_before_any_work() -> None:
    with pytest.raises(EpisodeError, match="cohort_size is 5, but there are 4 clients"):
        play(QuadraticProblem.heterogeneous(), ALGORITHMS["fedavg"], 1, cohorts=Uniform(5))


def test_divergence_names_the_figure() -> None:
    problem = QuadraticProblem.heterogeneous(eta=1e200)
    played = play(problem, ALGORITHMS["fedavg"], 3)
    reason = divergence(played.server, played.telemetry[-1])
    assert reason is not None
    assert "is nan" in reason or "is inf" in reason
    calm = play(QuadraticProblem.heterogeneous(), ALGORITHMS["fedavg"], 3)
    assert divergence(calm.server, calm.telemetry[-1]) is None


def classifier(algorithm: Algorithm, workers: int, **options: object) -> torch.Tensor:
    """x̄ of a small convolutional net with BatchNorm after three rounds on six clients."""
    torch.manual_seed(0)
    extra = [nn.Dropout(0.3)] if options.get("dropout") else []
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *extra, nn.Flatten(), nn.Linear(144, 3)
    )
    g = torch.Generator().manual_seed(1)
    clients = [
        (torch.randn(40, 1, 8, 8, generator=g) + i, torch.randint(3, (40,), generator=g))
        for i in range(6)
    ]
    task = NeuralTask(
        model, clients, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=8, seed=5
    )
    engine = Simulation(task, algorithm, workers)
    server = ServerState(*task.initial())
    plan = Plan(algorithm, Schedule(0.1, 0.05), 3, 4, 5, Uniform(5))
    rounds = Rounds(plan, task, engine)
    for _ in range(plan.rounds_to_play):
        rounds.play(server)
    engine.close()
    return torch.cat([server.x, server.buffers.floats, server.buffers.integers.to(server.x)])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_results_are_the_same_bits_for_any_number_of_workers(name: str, monkeypatch) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 5)
    momentum = 0.0 if ALGORITHMS[name].descent.adapts else 0.5
    algorithm = Algorithm.named(name, momentum=momentum, weight_decay=0.01)
    one, two, five = (classifier(algorithm, w) for w in (1, 2, 5))
    assert torch.equal(one, two)
    assert torch.equal(one, five)


def test_a_model_that_draws_random_numbers_repeats_exactly(monkeypatch) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 4)
    algorithm = ALGORITHMS["episode"]
    first = classifier(algorithm, 1, dropout=True)
    torch.rand(7)  # somebody else draws from torch's generator meanwhile
    for workers in (2, 4):
        assert torch.equal(first, classifier(algorithm, workers, dropout=True))
    assert not torch.equal(first, classifier(algorithm, 1))


def test_an_error_on_a_client_names_client_phase_and_round() -> None:
    class Broken(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> torch.Tensor:
            raise OSError("disk on fire")

    good = (torch.zeros(4, 2),)
    task = NeuralTask(nn.Linear(2, 1), [good, Broken()], lambda m, b: m(b[0]).sum(), batch_size=2)
    engine = Simulation(task, ALGORITHMS["fedavg"], 1)
    rounds = Rounds(Plan(ALGORITHMS["fedavg"], Schedule(1.0, 1.0), 1, 1), task, engine)
    with pytest.raises(ClientError, match="Client 1 failed in the local phase of round 0: OSError"):
        rounds.play(ServerState(*task.initial()))
    engine.close()


@pytest.mark.parametrize(
    ("name", "exchanges"), [("fedavg", 1), ("episode", 2), ("parallel_sgd", 1)]
)
def test_buffers_are_counted_once_a_round_in_each_direction(name: str, exchanges: int) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    silos = [(torch.randn(4, 2),)] * 3
    task = NeuralTask(model, silos, lambda m, b: m(b[0]).square().sum(), batch_size=4)
    engine = Simulation(task, ALGORITHMS[name], 1)
    server = ServerState(*task.initial())
    Rounds(Plan(ALGORITHMS[name], Schedule(0.1, 1.0), 1, 1), task, engine).play(server)
    engine.close()
    assert server.buffers.nbytes
    each = exchanges * server.x.nbytes + server.buffers.nbytes
    assert (server.counts.bytes_down, server.counts.bytes_up) == (3 * each, 3 * each)


def test_a_server_that_steps_alone_takes_the_same_steps_with_every_clipping() -> None:
    """Its direction is G_r itself, so both norms are one."""
    ends = [
        play(QuadraticProblem.heterogeneous(), Algorithm(Synchronous(), clipping), 3).server.x
        for clipping in (PerStep(), Episodic(), Guarded())
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_round_without_finite_norms_is_not_hidden_by_clipping() -> None:
    problem = QuadraticProblem.heterogeneous()
    problem = replace(problem, slopes=problem.slopes * math.inf)
    played = play(problem, ALGORITHMS["episode"], 1)
    assert divergence(played.server, played.telemetry[-1]) is not None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts Linux page faults")
def test_memory_freed_by_a_batch_serves_the_next_one() -> None:
    """Without it glibc hands some 20 MB back and forth for each of these gradients."""
    code = """if True:
        import resource, torch
        from torch import nn
        from episode.engines.allocator import keep_freed_memory
        torch.set_num_threads(1)
        keep_freed_memory()
        lstm, x = nn.LSTM(50, 256, 2, batch_first=True), torch.randn(32, 25, 50)
        def faults(count):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(count):
                torch.autograd.grad(lstm(x)[0].sum(), list(lstm.parameters()))
            return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count
        faults(3)
        print(faults(10))
    """
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(run.stdout) < 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_scalars_that_stay_on_a_device_give_the_same_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU norms are tensors, so that nothing waits for them: here on the CPU."""
    problem, algorithm = QuadraticProblem.heterogeneous(noise=1.0), ALGORITHMS[name]
    expected = play(problem, algorithm, 8)
    for module in ("core.algorithm", "federation.worker", "federation.rounds"):
        monkeypatch.setattr(
            f"episode.{module}.norm", lambda v: torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        )
    played = play(problem, algorithm, 8)
    assert isinstance(played.telemetry[0].metrics["drift"][0], float)
    assert torch.allclose(played.server.x, expected.server.x, rtol=1e-13)
    assert divergence(played.server, played.telemetry[-1]) is None
    flags = [t.clipped is not None and bool(t.clipped) for t in played.telemetry]
    assert flags == [bool(t.clipped) for t in expected.telemetry]
