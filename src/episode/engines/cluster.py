"""The processes of one run: how they meet, add up vectors, and find out who is gone.

They meet at torchrun's key-value store, where each announces what it is about to run, so that
differences are reported before any work. Afterwards the store carries only short texts: the names
of a checkpoint's parts, and error messages. Numbers travel by `add_up`, one all-reduce each.

Nothing here waits longer than `timeout`. A waiting process checks once a second whether another
has failed. After a failure, processes that do not answer within a few seconds are reported as lost.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # early, because its functions keep the process group they find
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from episode.engines.rendezvous import first_line, meeting_point, objection_to
from episode.errors import ClusterError, EpisodeError
from episode.federation.processes import Processes
from episode.version import __version__

PATIENCE = 5.0
"""Seconds that a live process has to answer once something has gone wrong."""


@dataclass
class Traffic:
    """Amount of data that this process has exchanged with the others."""

    collectives: int = 0
    bytes: int = 0
    """Size of the added vectors; a ring all-reduce sends and receives about twice as much."""


class Cluster(Processes):
    """One of the processes of a run: `rank` of `size`."""

    _store_of_process: ClassVar[tuple[Store, int, int] | None] = None
    """A process can open torchrun's store only once; all of its runs share it."""
    _runs_of_process: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.traffic = Traffic()
        self._where = "at the start"
        self._store = store
        self._works_on_gpu = False
        self._connected = False
        self._shared = 0

    @classmethod
    def join(cls, hello: Mapping[str, Any], timeout: float, device: str = "cpu") -> Cluster:
        """Meet the other processes; raise an error if one is about to run something else.

        `hello` is the configuration, or `{"error": ...}` if this process cannot start; all
        processes then report that error.
        """
        if cls._store_of_process is None:
            cls._store_of_process = meeting_point(timeout)
        store, rank, size = cls._store_of_process
        # The store survives a restart, and a process may take part in several runs.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        meeting = f"episode/{restarts}/{next(cls._runs_of_process)}"
        cluster = cls(PrefixStore(meeting, store), rank, size, timeout)
        cluster._introduce(hello)
        cluster._connect(device)
        return cluster

    def device(self, name: str) -> str:
        """Return the GPU of this process's local rank for `cuda`."""
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name

    def summary(self) -> dict[str, Any]:
        return {"cluster": {"ranks": self.size, "since_last_start": asdict(self.traffic)}}

    def gather(self, subject: str, text: str) -> list[str]:
        self.tell(subject, text)
        if not self.writes:
            return []
        texts = [self.hear(subject, rank) for rank in range(self.size)]
        for rank in range(self.size):  # a long run would fill the store's memory
            self._reach(partial(self._store.delete_key, f"{subject}/{rank}"))
        return texts

    def enter(self, where: str) -> None:
        self._where = where
        self.tell("where", where)

    def add_up(self, flat: Tensor) -> None:
        """Replace `flat` by its sum over all processes: one collective."""
        self.traffic.collectives += 1
        self.traffic.bytes += flat.nbytes
        self._collect(lambda: dist.all_reduce(flat, async_op=True))

    def from_first(self, data: bytes) -> bytes:
        self._shared += 1
        subject = f"size-{self._shared}"
        if self.rank == 0:
            self.tell(subject, str(len(data)))
        size = int(self.hear(subject, 0))
        content = bytearray(data if self.rank == 0 else bytes(size))
        if size:
            tensor = torch.frombuffer(content, dtype=torch.uint8)
            moved = tensor.cuda() if self._works_on_gpu else tensor
            self._collect(lambda: dist.broadcast(moved, 0, async_op=True))
            tensor.copy_(moved)
        return bytes(content)

    def tell(self, subject: str, text: str) -> None:
        """Leave a short text for the others."""
        self._reach(lambda: self._store.set(f"{subject}/{self.rank}", text))

    def hear(self, subject: str, rank: int) -> str:
        """Wait for the text of another process; raise an error if it fails or time runs out."""
        key, deadline, pause = f"{subject}/{rank}", time.monotonic() + self.timeout, 0.001
        while not self._reach(lambda: self._has(key)):
            self._check(deadline)
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        text: str = self._reach(lambda: self._store.get(key)).decode()
        return text

    @contextmanager
    def together(self) -> Iterator[None]:
        """Tell the others if this process fails within, and explain an end caused by them.

        torchrun ends all processes of a run with SIGTERM once one of them is gone. After a failure
        SIGTERM is ignored, so that this process can report before it ends.
        """
        before = _on_termination(_terminate)
        try:
            yield
            _on_termination(before)
        except _Terminated:
            raise self.explain() from None
        except ClusterError:
            raise
        except Exception as error:
            _on_termination(signal.SIG_IGN)
            with suppress(Exception):  # the others may be gone too
                self.tell("failed", str(error) or type(error).__name__)
            self._linger("alive")
            raise

    def leave(self) -> None:
        """Close the connections that this object has opened."""
        if self._connected and dist.is_initialized():
            dist.destroy_process_group()

    def explain(self, reason: str = "") -> ClusterError:
        """Return an error that names the processes that failed or do not answer."""
        _on_termination(signal.SIG_IGN)
        with suppress(Exception):  # the store may be gone, too
            self._store.set(f"alive/{self.rank}", "yes")
        self.leave()  # so that processes waiting for this one stop waiting; that may take a while
        others = set(range(self.size)) - {self.rank}
        failed: dict[int, str] = {}
        last_seen: dict[int, str] = {}
        with suppress(Exception):  # without the store, nobody is known to be alive
            deadline = time.monotonic() + min(PATIENCE, self.timeout)
            while others and time.monotonic() < deadline:
                failed |= {r: words for r in others if (words := self._words("failed", r))}
                others -= failed.keys() | {r for r in others if self._has(f"alive/{r}")}
                time.sleep(0.05)
            last_seen = {r: self._words("where", r) for r in sorted(others)}
        lost = {r: last_seen.get(r, "") for r in sorted(others)}
        return ClusterError(f"Rank {self.rank} stops {self._where}: {_story(failed, lost, reason)}")

    def _introduce(self, hello: Mapping[str, Any]) -> None:
        mine = {"episode": __version__, "torch": torch.__version__, **hello}
        self.tell("hello", json.dumps(mine))
        everyone: list[dict[str, Any]] = []
        for rank in range(self.size):
            try:
                everyone.append(json.loads(self.hear("hello", rank)))
            except ClusterError:
                raise ClusterError(
                    f"Rank {rank} of {self.size} did not come within {self.timeout:g} s: "
                    "was it started, and with the same rendezvous?"
                ) from None
        if objection := objection_to(everyone):
            self._linger("objected")
            raise EpisodeError(objection)

    def _linger(self, subject: str) -> None:
        """Wait briefly so that the others can read the store before its host ends.

        torchrun's store outlives its processes; without torchrun the first rank hosts it.
        """
        with suppress(Exception):
            self.tell(subject, "yes")
            deadline = time.monotonic() + min(PATIENCE, self.timeout)
            everyone = [f"{subject}/{rank}" for rank in range(self.size)]
            while self.rank == 0 and time.monotonic() < deadline and not self._has(*everyone):
                time.sleep(0.02)

    def _connect(self, device: str) -> None:
        self._works_on_gpu = torch.device(device).type == "cuda"
        self._connected = not dist.is_initialized()
        if not self._connected:  # the user's own script has done so
            return
        try:
            dist.init_process_group(
                "nccl" if self._works_on_gpu else "gloo",
                store=PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self.timeout),
            )
        except RuntimeError as error:
            raise self.explain(
                f"it cannot connect to the others ({first_line(error)}): can the hosts reach one "
                "another on any port? GLOO_SOCKET_IFNAME names the network interface to use"
            ) from None

    def _collect(self, start: Callable[[], Any]) -> None:
        """Start a collective and wait for it, while watching for failures of the others."""
        deadline = time.monotonic() + self.timeout
        try:
            work = start()
            while not self._finished(work):
                self._check(deadline)
        except RuntimeError as error:
            raise self.explain(first_line(error)) from None

    def _finished(self, work: Any) -> bool:
        """Wait for at most a second; return whether the collective has finished."""
        if self._works_on_gpu:  # there, wait() returns at once
            until = time.monotonic() + 1.0
            while not work.is_completed():
                if time.monotonic() > until:
                    return False
                time.sleep(0.0005)
            work.wait()
            return True
        try:
            work.wait(timedelta(seconds=1))
        except RuntimeError:
            if work.is_completed():  # it failed; otherwise only the second is over
                raise
            return False
        return True

    def _check(self, deadline: float) -> None:
        """Raise an error if another process has failed, or if the deadline has passed."""
        past = time.monotonic() > deadline
        if past or any(self._has(f"failed/{rank}") for rank in range(self.size)):
            raise self.explain()

    def _has(self, *keys: str) -> bool:
        return bool(self._store.check(list(keys)))

    def _words(self, subject: str, rank: int) -> str:
        key = f"{subject}/{rank}"
        return self._store.get(key).decode() if self._has(key) else ""

    def _reach(self, use: Callable[[], Any]) -> Any:
        try:
            return use()
        except RuntimeError as error:
            raise ClusterError(
                f"Rank {self.rank} stops {self._where}: the rendezvous is gone "
                f"({first_line(error)})."
            ) from None


def _story(failed: Mapping[int, str], lost: Mapping[int, str], reason: str) -> str:
    told = [f"rank {rank} failed: {words.rstrip('.')}" for rank, words in sorted(failed.items())]
    for rank, where in lost.items():
        seen = f", last seen {where}" if where else ""
        told.append(f"rank {rank} is gone (killed, hung or unreachable){seen}")
    otherwise = reason.rstrip(".") or "it was told to, and nobody is missing"
    return ("; ".join(told) or otherwise) + "."


class _Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that a client's code does not catch it."""


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _on_termination(handler: Any) -> Any:
    """Set what SIGTERM does, and return what it did; only a main thread can do so."""
    in_main = threading.current_thread() is threading.main_thread()
    return signal.signal(signal.SIGTERM, handler) if in_main else None
