"""The distributed engine, with ranks that are threads of this process and meet at a barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from episode import Algorithm, EpisodeError, Schedule, Uniform
from episode.engines.cluster import Cluster
from episode.engines.distributed import CHECK_EVERY, Distributed, _check_models, _check_rounds
from episode.engines.simulation import Simulation
from episode.errors import ClusterError
from episode.federation.client_states import MappedStates
from episode.federation.job import EngineSettings, Job
from episode.federation.owners import Owners
from episode.federation.protocols import Engine, Evaluation, Reply, Request, Task
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import Buffers, ClientState, ServerState
from episode.federation.worker import ReplyForm
from episode.tasks.neural import NeuralTask

CLIENTS = 5


class Meeting:
    """Where threads leave what they have for the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size, timeout=60)
        self.left: dict[int, Any] = {}

    def exchange(self, rank: int, thing: Any) -> list[Any]:
        """Return what every rank has left, in order of rank."""
        self.left[rank] = thing
        self.barrier.wait()
        found = [self.left[other] for other in range(self.size)]
        self.barrier.wait()
        return found

    def at_once(self, calls: Iterable[Callable[[], Any]]) -> list[Any]:
        """Return what calls return that wait for one another; raise what fails in the first."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._try, call) for call in calls]
        errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException:
            self.barrier.abort()
            raise


class Rank(Cluster):
    """A rank that is a thread; it notes what it was asked to do."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(None, rank, meeting.size, 60.0)  # type: ignore[arg-type]
        self.meeting = meeting
        self.entered: list[str] = []
        self.subjects: list[str] = []

    def enter(self, where: str) -> None:
        self.entered.append(where)

    def add_up(self, flat: Tensor) -> None:
        self.traffic.collectives += 1
        parts = self.meeting.exchange(self.rank, flat.clone())
        flat.copy_(torch.stack(parts).sum(0))

    def from_first(self, data: bytes) -> bytes:
        first: bytes = self.meeting.exchange(self.rank, data)[0]
        return first

    def gather(self, subject: str, text: str) -> list[str]:
        self.subjects.append(subject)
        texts = self.meeting.exchange(self.rank, text)
        return texts if self.rank == 0 else []


class Counting(nn.Module):
    """A model with float and integer buffers, one of which counts down."""

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)
        self.register_buffer("mean", torch.zeros(2, dtype=wide))
        self.register_buffer("left", torch.tensor([100, -7]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(x.mean(0))
            self.left -= int(x.sum() > 0)
        return self.head(x)  # type: ignore[no-any-return]


def task(dtype: torch.dtype = torch.float64, wide: torch.dtype | None = None) -> NeuralTask:
    torch.manual_seed(0)
    silos = [
        (torch.randn(6 + 3 * c, 2, dtype=dtype) + c - 1, torch.randint(3, (6 + 3 * c,)))
        for c in range(CLIENTS)
    ]
    model = Counting(wide or dtype).to(dtype)
    if wide:
        model.mean = model.mean.to(wide)
    return NeuralTask(model, silos, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=3)


class Together(list[tuple[Rank, Distributed]]):
    """The engines of some ranks."""

    def each(self, call: Callable[[Distributed], Any]) -> list[Any]:
        """Return what this returns for every engine, all of which are used at the same time."""
        return self[0][0].meeting.at_once([partial(call, engine) for _, engine in self])


@contextmanager
def together(size: int, problem: Task, algorithm: Algorithm) -> Iterator[Together]:
    meeting, found = Meeting(size), Together()
    try:
        for rank in (Rank(number, meeting) for number in range(size)):
            found.append((rank, Distributed(problem, algorithm, rank, 1)))
        yield found
    finally:
        for _, engine in reversed(found):
            engine.close()


def cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for name in ("simulation", "distributed"):
        monkeypatch.setattr(f"episode.engines.{name}.usable_cores", lambda: number)


def played(engine: Engine, problem: NeuralTask, plan: Plan) -> tuple[ServerState, list[Any]]:
    server = ServerState(*problem.initial())
    rounds = Rounds(plan, problem, engine)
    return server, [rounds.play(server).metrics for _ in range(plan.rounds_to_play)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "options", "phases"),
    [
        ("fedavg", {"weighting": "examples"}, ["local"]),
        ("episode", {"momentum": 0.5}, ["probe", "local"]),
        ("scaffold_clipped", {"momentum": 0.5, "weighting": "examples"}, ["local"]),
        ("minibatch_clip", {}, ["probe"]),
    ],
)
def test_a_round_costs_one_sum_a_phase_and_gives_the_numbers_of_the_simulation(
    size: int, name: str, options: dict[str, Any], phases: list[str]
) -> None:
    """Of three ranks, one has nobody to ask when two clients take part."""
    problem, algorithm = task(), Algorithm.named(name, **options)
    plan = Plan(algorithm, Schedule(0.1, 0.05), 3, 2, 0, Uniform(2), measure_every=1)
    alone = Simulation(problem, algorithm, 1)
    expected, metrics = played(alone, problem, plan)
    states = dict(alone.client_states())
    alone.close()
    with together(size, problem, algorithm) as ranks:
        found = ranks.each(lambda engine: played(engine, problem, plan))
        for (rank, engine), (server, ours) in zip(ranks, found, strict=True):
            assert rank.entered == [
                f"in the {phase} phase of round {r}"
                for r in range(plan.rounds_to_play)
                for phase in phases
            ]
            assert rank.traffic.collectives == len(rank.entered)
            assert torch.allclose(server.x, expected.x, rtol=0, atol=1e-12)
            assert torch.allclose(server.buffers.floats, expected.buffers.floats, atol=1e-12)
            assert torch.equal(server.buffers.integers, expected.buffers.integers)
            assert vars(server.counts) | {"seconds": 0} == vars(expected.counts) | {"seconds": 0}
            assert len(ours) == len(metrics)
            for one, other in zip(ours, metrics, strict=True):
                assert one.keys() == other.keys()
                for key in one:
                    assert one[key] == pytest.approx(other[key], abs=1e-12), key
            for client, state in engine.client_states().items():
                for key, held in states[client].tensors().items():
                    assert torch.allclose(state.tensors()[key], held, atol=1e-12)
        served = sorted(c for _, engine in ranks for c in engine.client_states())
        assert served == sorted(states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_of_a_wider_type_arrive_in_it_by_a_sum_of_their_own(dtype: torch.dtype) -> None:
    problem, algorithm = task(dtype, torch.float64), Algorithm.named("fedavg")
    plan = Plan(algorithm, Schedule(0.1, 0.05), 2, 2, 0)
    alone = Simulation(problem, algorithm, 1)
    expected, metrics = played(alone, problem, plan)
    alone.close()
    with together(2, problem, algorithm) as ranks:
        found = ranks.each(lambda engine: played(engine, problem, plan))
        for (rank, _), (server, ours) in zip(ranks, found, strict=True):
            assert rank.traffic.collectives == 2 * plan.rounds_to_play
            assert server.buffers.floats.dtype == torch.float64
            assert torch.allclose(server.buffers.floats, expected.buffers.floats, atol=1e-14)
            assert torch.equal(server.buffers.integers, expected.buffers.integers)
            if dtype == torch.float32:
                assert ours[-1]["loss"] == pytest.approx(metrics[-1]["loss"], abs=1e-5)


def test_integer_buffers_return_to_the_device_of_the_model() -> None:
    x = torch.ones(2)
    sent = Buffers(torch.zeros(1), torch.zeros(2, dtype=torch.int64, device="meta"))
    part = Reply({"x": x}, Buffers(torch.zeros(1), torch.tensor([3, 4])), {"loss": [1.0]})
    broadcast = {"x": x, "buffers": sent, "round": 1}
    with together(1, task(), Algorithm.named("fedavg")) as ranks:
        form = ReplyForm(("x",), has_buffers=True, metrics=("loss",))
        (mean,) = ranks.each(lambda e: e._exchange(form, part, [0], [0], broadcast))
    assert mean.buffers.integers.device.type == "meta"


def test_what_one_rank_asks_for_is_known_to_all_after_the_round() -> None:
    problem, algorithm = task(), Algorithm.named("fedavg")
    plan = Plan(algorithm, Schedule(0.1, 0.05), 2, 1, 0)
    with together(3, problem, algorithm) as ranks:
        assert [engine.requests() for _, engine in ranks] == [Request.NONE] * 3
        ranks[1][1].own_requests = lambda: Request.CHECKPOINT
        ranks[2][1].own_requests = lambda: Request.STOP
        ranks.each(lambda engine: played(engine, problem, plan))
        both = Request.CHECKPOINT | Request.STOP
        assert [engine.requests() for _, engine in ranks] == [both] * 3


@pytest.mark.parametrize(
    ("rounds", "nudge", "error"),
    [
        ((4, 3), 0.0, "Rank 1 plays round 3, and rank 0 round 4: start all ranks again"),
        (
            (CHECK_EVERY, CHECK_EVERY),
            1e-9,
            "Rank 1 holds another model than rank 0 at the start of round 10",
        ),
        ((CHECK_EVERY + 1, CHECK_EVERY + 1), 1e-9, ""),
    ],
)
def test_ranks_of_other_rounds_or_models_are_told_apart(
    rounds: tuple[int, int], nudge: float, error: str
) -> None:
    """Models are compared every few rounds."""
    problem, algorithm = task(), Algorithm.named("episode")
    x, buffers = problem.initial()
    with together(2, problem, algorithm) as ranks:

        def probe(engine: Distributed) -> Reply:
            rank = engine.cluster.rank
            sent = {"round": rounds[rank], "x": x + rank * nudge, "buffers": buffers}
            return engine.average("probe", [0, 1, 2], weights=[1.0] * 3, **sent)

        with pytest.raises(ClusterError, match=error) if error else nullcontext():
            ranks.each(probe)


def test_the_rank_that_is_apart_is_named() -> None:
    _check_rounds([3, 3, 3])
    with pytest.raises(ClusterError, match=r"^Rank 2 plays round 4, and rank 0 round 3: start"):
        _check_rounds([3, 3, 4])
    _check_models([7, 7, 7], 20)
    with pytest.raises(ClusterError, match=r"^Rank 2 holds another model .* start of round 20: "):
        _check_models([7, 7, 8], 20)
    with pytest.raises(ClusterError, match=r"^Ranks \[1, 3\] hold another model than rank 0 at"):
        _check_models([7, 8, 7, 8], 20)


class Measured(NeuralTask):
    """A task that tells what it was asked to measure."""

    shares = True
    asked: ClassVar[list[int]] = []

    def evaluate(self, x: Tensor, buffers: Buffers) -> Mapping[str, float]:
        return {"whole": float(x.sum()) + float(buffers.floats.sum())}

    def evaluate_part(self, x: Tensor, buffers: Buffers) -> dict[str, Any] | None:
        return {"part": float(x.sum()) + float(buffers.floats.sum())} if self.shares else None

    def combine(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"parts": len(parts), "sum": sum(p["part"] for p in parts)}

    def evaluate_client(self, client: int, x: Tensor, buffers: Buffers) -> Mapping[str, float]:
        self.asked.append(client)
        return {"own": client + float(x.sum()) + float(buffers.floats.sum())}


@pytest.mark.parametrize("shares", [True, False])
def test_the_first_rank_gets_the_metrics_of_all(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = [(torch.zeros(4, 2),)] * 4
    problem = Measured(nn.Linear(2, 1), silos, lambda m, b: m(b[0]).sum(), batch_size=2)
    monkeypatch.setattr(Measured, "shares", shares)
    x, buffers = torch.ones(3), Buffers(torch.full((1,), 0.5))
    algorithm = Algorithm.named("fedavg")
    with together(3, problem, algorithm) as ranks:
        for _ in range(2):
            Measured.asked.clear()
            first, *others = ranks.each(lambda e: e.evaluate(problem, x, buffers, [3, 0, 1]))
            metrics = {"parts": 3, "sum": 10.5} if shares else {"whole": 3.5}
            assert first == Evaluation(metrics, {c: {"own": c + 3.5} for c in (0, 1, 3)})
            assert list(first.clients) == sorted(Measured.asked) == [0, 1, 3]
            assert others == [Evaluation()] * 2
        first, *_ = ranks.each(lambda e: e.evaluate(problem, x, buffers))
        assert first == Evaluation(metrics)
        for rank, _ in ranks:
            assert rank.entered == ["in an evaluation"] * 3
            assert rank.subjects == [f"evaluation-{k}" for k in (1, 2, 3)]


def test_a_probe_that_says_nothing_of_memories_is_the_whole_round() -> None:
    problem = task()
    x, buffers = problem.initial()
    with together(1, problem, Algorithm.named("parallel_sgd")) as ranks:
        (reply,) = ranks.each(
            lambda e: e.average("probe", [0], weights=[1.0], round=0, x=x, buffers=buffers)
        )
        assert reply.buffers.integers.shape == buffers.integers.shape


@pytest.mark.parametrize(
    ("neighbours", "asked", "workers"),
    [(None, None, 4), ("1", None, 5), ("4", None, 2), ("64", None, 1), ("1", 3, 3)],
)
def test_the_ranks_of_a_host_share_its_cores(
    neighbours: str | None, asked: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(monkeypatch, 9)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if neighbours:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", neighbours)
    problem = task()
    with closing(
        Distributed(problem, Algorithm.named("fedavg"), Rank(0, Meeting(2)), asked)
    ) as engine:
        assert engine._here.workers == workers


class Told(Rank):
    """One of two ranks, which hears from the first how clients are shared out."""

    def __init__(self, rank: int, heard: Owners) -> None:
        super().__init__(rank, Meeting(2))
        self.heard = heard

    def from_first(self, data: bytes) -> bytes:
        return data if self.rank == 0 else str(self.heard.checksum).encode()


def made(rank: Rank, owners: Owners | None, folder: Path, **settings: Any) -> Distributed:
    plan = Plan(Algorithm.named("scaffold"), Schedule(0.1, 0.05), 1, 1, 0)
    engine = EngineSettings("distributed", **settings)
    return Distributed.make(
        Job(plan, task(), {}, engine, processes=rank, owners=owners, folder=folder)
    )


def test_a_rank_keeps_the_states_of_the_clients_that_it_is_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(monkeypatch, 9)
    owners = Owners([1, 1, 1, 1, 100], 2)
    states = {c: ClientState(memory=torch.ones(9)) for c in range(CLIENTS)}
    for rank in (Told(0, owners), Told(1, owners)):
        with closing(made(rank, owners, tmp_path, workers=3)) as engine:
            assert (engine.cluster, engine._owners) == (rank, owners)
            assert engine._here.workers == 3
            assert engine._here._first.algorithm == Algorithm.named("scaffold")
            engine.load_client_states(states)
            assert list(engine.client_states()) == owners.clients(rank.rank)
    with closing(made(Rank(0, Meeting(2)), None, tmp_path)) as engine:
        engine.load_client_states(states)
        assert list(engine.client_states()) == Owners([6, 9, 12, 15, 18], 2).clients(0)


def test_states_that_exceed_the_memory_are_kept_in_a_file(tmp_path: Path) -> None:
    owners = Owners([1] * CLIENTS, 2)
    with closing(made(Told(0, owners), owners, tmp_path, state_memory_mb=0.0)) as engine:
        assert isinstance(engine.client_states(), MappedStates)


def test_ranks_that_count_other_examples_do_not_start(tmp_path: Path) -> None:
    mine, first = Owners([1, 2, 3, 4, 5], 2), Owners([5, 4, 3, 2, 1], 2)
    with pytest.raises(EpisodeError, match=r"^Rank 1 and rank 0 count the clients' examples diff"):
        made(Told(1, first), mine, tmp_path)


def test_ranks_meet_with_the_timeout_and_the_device_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Cluster, "join", lambda *given: asked.append(given))
    Distributed.join(EngineSettings(timeout_seconds=7.0, device="cuda"), {"a": 1})
    assert asked == [({"a": 1}, 7.0, "cuda")]
