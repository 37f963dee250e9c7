"""One process of a cluster, whose clock and whose neighbours are the test's: nothing is started."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from episode import EpisodeError
from episode.engines import cluster as module
from episode.engines.cluster import PATIENCE, Cluster, Traffic
from episode.errors import ClusterError
from episode.version import __version__

GONE = "is gone (killed, hung or unreachable)"


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.uses = 0
        self.pauses: list[float] = []
        self.events: dict[float, Callable[[], object]] = {}
        """What happens, by the seconds from the start."""

    def monotonic(self) -> float:
        self._count()
        return self.now

    def sleep(self, seconds: float) -> None:
        self._count()
        self.pauses.append(seconds)
        self.now += seconds
        for due in [at for at in self.events if 100.0 + at <= self.now]:
            self.events.pop(due)()

    def _count(self) -> None:
        self.uses += 1
        assert self.uses < 500_000, "an endless wait"

    @property
    def passed(self) -> float:
        return self.now - 100.0


class Broken:
    """A store that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("[c10d] Broken pipe. This is typically a network error")


class Work:
    """A collective that ends after some waits, or fails, or neither."""

    def __init__(self, waits: int, error: str = "") -> None:
        self.waits, self.error = waits, error
        self.limits: list[timedelta] = []

    def is_completed(self) -> bool:
        self.waits -= 1
        return self.waits < 0

    def wait(self, limit: timedelta | None = None) -> None:
        if limit is not None:
            self.limits.append(limit)
        if limit is not None and self.waits > 0:
            raise RuntimeError("timed out")
        if self.error:
            raise RuntimeError(self.error)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def store() -> dist.HashStore:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    return store


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave no process group and no handler behind."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_texts_are_gathered_in_order_of_rank_and_then_removed(store: dist.HashStore) -> None:
    assert Cluster(store, 2, 3, 5.0).gather("note", "c") == []
    assert Cluster(store, 1, 3, 5.0).gather("note", "b") == []
    assert store.get("note/1") == b"b"
    assert Cluster(store, 0, 3, 5.0).gather("note", "a") == ["a", "b", "c"]
    assert not any(store.check([f"note/{rank}"]) for rank in range(3))


def test_a_text_is_waited_for_with_pauses_that_grow(store: dist.HashStore, clock: Clock) -> None:
    clock.events[2.0] = lambda: store.set("note/1", "late")
    assert Cluster(store, 0, 2, 5.0).hear("note", 1) == "late"
    assert clock.pauses[:3] == [0.001, 0.002, 0.004]
    assert max(clock.pauses) == 0.2
    assert clock.passed < 2.3


def test_a_silent_process_is_named_after_the_timeout(store: dist.HashStore, clock: Clock) -> None:
    cluster = Cluster(store, 0, 2, 9.0)
    with pytest.raises(
        ClusterError, match=rf"^Rank 0 stops at the start: rank 1 {re.escape(GONE)}\.$"
    ):
        cluster.hear("note", 1)
    assert 9.0 + PATIENCE < clock.passed < 9.5 + PATIENCE
    with pytest.raises(ClusterError):
        Cluster(store, 0, 2, 1.0).hear("note", 1)
    assert 11.0 + PATIENCE < clock.passed < 11.7 + PATIENCE


def test_a_failure_elsewhere_ends_a_wait_at_once(store: dist.HashStore, clock: Clock) -> None:
    clock.events[0.5] = lambda: store.set("failed/2", "No space left.")
    clock.events[0.6] = lambda: store.set("alive/1", "yes")
    with pytest.raises(ClusterError, match=r"^Rank 0 stops .*: rank 2 failed: No space left\.$"):
        Cluster(store, 0, 3, 9.0).hear("note", 1)
    assert clock.passed < 1.0


def test_an_explanation_names_the_failed_and_the_lost(store: dist.HashStore, clock: Clock) -> None:
    cluster = Cluster(store, 2, 6, 60.0)
    cluster.enter("in an evaluation")
    for key, text in {"failed/5": "late.", "failed/0": "no disk.", "where/4": "at lunch"}.items():
        store.set(key, text)
    clock.events[1.0] = lambda: store.set("alive/1", "yes")
    assert str(cluster.explain("unused")) == (
        "Rank 2 stops in an evaluation: rank 0 failed: no disk; rank 5 failed: late; "
        f"rank 3 {GONE}; rank 4 {GONE}, last seen at lunch."
    )
    assert PATIENCE <= clock.passed < PATIENCE + 0.1
    assert store.get("alive/2") == b"yes"
    assert store.get("where/2") == b"in an evaluation"


@pytest.mark.parametrize(
    ("given", "told"),
    [("", "it was told to, and nobody is missing."), ("gloo broke.", "gloo broke.")],
)
def test_if_nobody_is_missing_the_reason_is_told_without_delay(
    given: str, told: str, store: dist.HashStore, clock: Clock
) -> None:
    store.set("alive/1", "yes")
    assert str(Cluster(store, 0, 2, 9.0).explain(given)) == f"Rank 0 stops at the start: {told}"
    assert clock.pauses == [0.05]


def test_a_rendezvous_that_is_gone_is_named_and_hides_nothing(clock: Clock) -> None:
    cluster = Cluster(Broken(), 1, 3, 9.0)  # type: ignore[arg-type]
    assert str(cluster.explain()) == f"Rank 1 stops at the start: rank 0 {GONE}; rank 2 {GONE}."
    gone = r"^Rank 1 stops at the start: the rendezvous is gone \(Broken pipe\)\.$"
    for use in (lambda: cluster.tell("a", "b"), lambda: cluster.hear("a", 0)):
        with pytest.raises(ClusterError, match=gone):
            use()
    with pytest.raises(ValueError, match="a bug"), cluster.together():
        raise ValueError("a bug")


def test_a_failure_is_told_to_the_others_and_then_raised(
    store: dist.HashStore, clock: Clock
) -> None:
    """The first rank, which may host the store, stays until the others have heard of it."""
    clock.events[0.5] = lambda: store.set("alive/1", "yes")
    for error, words in ((OSError("disk full"), b"disk full"), (KeyError(), b"KeyError")):
        with pytest.raises(type(error)), Cluster(store, 0, 2, 9.0).together():
            raise error
        assert store.get("failed/0") == words
        assert store.get("alive/0") == b"yes"
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert 0.5 <= clock.passed < 0.6
    with pytest.raises(ValueError, match="bug"), Cluster(store, 1, 3, 9.0).together():
        raise ValueError("bug")
    assert clock.passed < 0.6
    with pytest.raises(ValueError, match="bug"), Cluster(store, 0, 3, 2.0).together():
        raise ValueError("bug")
    assert 2.5 <= clock.passed < 2.7


def test_an_error_of_the_cluster_is_not_told_again(store: dist.HashStore, clock: Clock) -> None:
    with pytest.raises(ClusterError, match="lost"), Cluster(store, 0, 2, 9.0).together():
        raise ClusterError("lost")
    assert not store.check(["failed/0"])
    assert clock.passed == 0


def test_sigterm_is_explained_and_handled_as_before_afterwards(
    store: dist.HashStore, clock: Clock
) -> None:
    def handler(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGTERM, handler)
    with Cluster(store, 0, 1, 9.0).together():
        assert signal.getsignal(signal.SIGTERM) is not handler
    assert signal.getsignal(signal.SIGTERM) is handler
    store.set("failed/1", "no disk")
    told = "^Rank 0 stops at the start: rank 1 failed: no disk.$"
    with pytest.raises(ClusterError, match=told), Cluster(store, 0, 2, 9.0).together():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_run_in_another_thread_leaves_the_signals_alone(store: dist.HashStore) -> None:
    ended = []

    def run() -> None:
        with Cluster(store, 0, 1, 9.0).together():
            ended.append("well")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == ["well"]


def test_only_what_was_opened_here_is_closed(store: dist.HashStore) -> None:
    cluster = Cluster(store, 0, 1, 10.0)
    cluster.leave()
    cluster._connect("cpu")
    assert dist.get_backend() == "gloo"
    guest = Cluster(store, 0, 1, 10.0)
    guest.leave()
    guest._connect("cpu")
    guest.leave()
    assert dist.is_initialized()
    cluster.explain()
    assert not dist.is_initialized()
    cluster.leave()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda:1", "nccl")])
def test_processes_connect_by_the_backend_of_their_device(
    device: str, backend: str, store: dist.HashStore, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    asked: list[Any] = []

    def refuse(name: str, *, store: Any, **options: Any) -> None:
        store.set("key", "seen")
        asked.append((name, options))
        raise RuntimeError("[gloo] no route. This is typically")

    monkeypatch.setattr(dist, "init_process_group", refuse)
    store.set("alive/1", "yes")
    told = r"Rank 0 stops at the start: it cannot connect to the others \(no route\): can the hosts"
    with pytest.raises(ClusterError, match=told):
        Cluster(store, 0, 2, 7.0)._connect(device)
    options = {"rank": 0, "world_size": 2, "timeout": timedelta(seconds=7)}
    assert asked == [(backend, options)]
    assert store.get("group/key") == b"seen"


def test_sums_are_counted(store: dist.HashStore) -> None:
    cluster = Cluster(store, 0, 1, 10.0)
    cluster._connect("cpu")
    for _ in range(2):
        flat = torch.tensor([1.0, 2.0])
        cluster.add_up(flat)
        assert flat.tolist() == [1.0, 2.0]
    assert cluster.traffic == Traffic(collectives=2, bytes=16)
    traffic = {"collectives": 2, "bytes": 16}
    assert cluster.summary() == {"cluster": {"ranks": 1, "since_last_start": traffic}}


def test_bytes_of_the_first_process_arrive_one_after_the_other(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(store, 0, 1, 10.0)
    cluster._connect("cpu")
    for k, data in enumerate((b"of the first", b"", b"more"), start=1):
        assert cluster.from_first(data) == data
        assert store.get(f"size-{k}/0") == str(len(data)).encode()

    def send(tensor: torch.Tensor, source: int, async_op: bool) -> Work:
        assert source == 0
        assert async_op
        tensor.copy_(torch.arange(65, 65 + len(tensor)))
        return Work(0)

    monkeypatch.setattr(dist, "broadcast", send)
    other = Cluster(store, 1, 2, 10.0)
    assert [other.from_first(b"mine") for _ in range(3)] == [b"ABCDEFGHIJKL", b"", b"ABCD"]


def test_bytes_travel_by_the_memory_of_the_device(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[torch.Tensor] = []

    def cuda(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(tensor.clone())
        return copies[-1]

    def send(tensor: torch.Tensor, source: int, async_op: bool) -> Work:
        assert tensor is copies[-1]
        tensor.fill_(65)
        return Work(0)

    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    monkeypatch.setattr(dist, "broadcast", send)
    store.set("size-1/0", "3")
    cluster = Cluster(store, 1, 2, 10.0)
    cluster._works_on_gpu = True
    assert cluster.from_first(b"") == b"AAA"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_collective_is_waited_for_second_by_second(
    on_gpu: bool, store: dist.HashStore, clock: Clock
) -> None:
    cluster = Cluster(store, 0, 2, 60.0)
    cluster._works_on_gpu = on_gpu
    work = Work(3)
    cluster._collect(lambda: work)
    assert set(work.limits) <= {timedelta(seconds=1)}
    assert clock.passed < 0.01
    store.set("failed/1", "no disk")
    for endless in (Work(10**9), Work(10**9)):
        before = clock.passed
        with pytest.raises(ClusterError, match="rank 1 failed: no disk"):
            cluster._collect(lambda work=endless: work)  # type: ignore[misc]
        assert clock.passed - before < 1.1
    with pytest.raises(ClusterError, match="rank 1 failed"):
        cluster._collect(lambda: Work(0, "[x] Connection closed by peer"))


def test_a_collective_that_fails_or_does_not_end_is_explained(
    store: dist.HashStore, clock: Clock
) -> None:
    store.set("alive/1", "yes")
    cluster = Cluster(store, 0, 2, 60.0)
    with pytest.raises(ClusterError, match=r"at the start: Connection closed by peer\.$"):
        cluster._collect(lambda: Work(0, "[pair.cc:1] Connection closed by peer"))
    cluster._works_on_gpu = True
    with pytest.raises(ClusterError, match="nobody is missing"):
        cluster._collect(lambda: Work(10**9))
    assert 60.0 <= clock.passed < 61.2


def met(store: dist.HashStore, rank: int, size: int, **hello: Any) -> Cluster:
    """Return a process after its introduction."""
    cluster = Cluster(store, rank, size, 3.0)
    cluster._introduce(hello)
    return cluster


def test_processes_that_are_alike_may_start(store: dist.HashStore) -> None:
    alike = {"episode": __version__, "torch": torch.__version__, "config": {"a": 1}}
    store.set("hello/1", json.dumps(alike))
    met(store, 0, 2, config={"a": 1})
    assert json.loads(store.get("hello/0")) == alike


@pytest.mark.parametrize(
    ("other", "objection"),
    [
        ({"error": "no such task."}, "^Rank 1 cannot start: no such task.$"),
        (
            {"config": {"a": 2}},
            "Ranks 0 and 1 .* different things: config.a is 1 on .* 2 on rank 1",
        ),
        ({"config": {"a": 1}, "episode": "0"}, f'episode is "{__version__}" on rank 0 and "0" on'),
    ],
)
def test_processes_that_differ_are_told_so_before_they_start(
    other: dict[str, Any], objection: str, store: dist.HashStore, clock: Clock
) -> None:
    mine = {"episode": __version__, "torch": torch.__version__}
    store.set("hello/1", json.dumps(mine | other))
    clock.events[1.0] = lambda: store.set("objected/1", "yes")
    with pytest.raises(EpisodeError, match=objection):
        met(store, 0, 2, config={"a": 1})
    assert store.get("objected/0") == b"yes"
    assert 1.0 <= clock.passed < 1.1


def test_a_process_that_does_not_come_is_named(store: dist.HashStore, clock: Clock) -> None:
    store.set("hello/1", "{}")
    with pytest.raises(ClusterError, match=r"^Rank 2 of 3 did not come within 3 s: was it started"):
        met(store, 0, 3)


def test_each_run_of_a_process_and_each_restart_meets_under_its_own_name(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def meeting_point(timeout: float) -> tuple[dist.Store, int, int]:
        asked.append(timeout)
        return store, 0, 1

    monkeypatch.setattr(module, "meeting_point", meeting_point)
    monkeypatch.setattr(Cluster, "_store_of_process", None)
    monkeypatch.setattr(Cluster, "_runs_of_process", iter((4, 5, 6)))
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    first = Cluster.join({"a": 1}, 30.0)
    first.leave()
    assert (first.rank, first.size, first.timeout) == (0, 1, 30.0)
    assert json.loads(store.get("episode/0/4/hello/0"))["a"] == 1
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    Cluster.join({}, 20.0).leave()
    assert store.check(["episode/2/5/hello/0"])
    assert asked == [30.0]
    joined: list[str] = []
    monkeypatch.setattr(Cluster, "_connect", lambda self, device: joined.append(device))
    Cluster.join({}, 20.0, "cuda")
    assert joined == ["cuda"]


def test_a_process_has_the_gpu_of_its_local_rank(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(store, 5, 8, 3.0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [cluster.device(name) for name in ("cuda", "cpu", "cuda:3")] == [
        "cuda:1", "cpu", "cuda:3",
    ]  # fmt: skip
    monkeypatch.delenv("LOCAL_RANK")
    assert cluster.device("cuda") == "cuda:0"
