"""The processes of one run: how they meet, add up vectors, and find out who is gone.

They meet at torchrun's key-value store, where each says who it is and what it is about to run, so
that a difference is named before any work. Afterwards the store carries only a few words: a
checkpoint's parts, and last words. Numbers travel by `add_up`, one all-reduce a time.

Nothing here waits longer than `timeout`. Whoever waits looks up once a second whether another has
failed; who was lost without a word is found by asking: those who are alive answer.
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
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: its functions keep the process group they find
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from episode.engines.rendezvous import first_line, meeting_point, objection_to
from episode.errors import ClusterError, EpisodeError
from episode.version import __version__

PATIENCE = 5.0
"""Seconds in which whoever is alive answers, once something has gone wrong."""
_meetings = itertools.count()


@dataclass
class Traffic:
    """What this process has exchanged with the others."""

    collectives: int = 0
    bytes: int = 0
    """Size of what was added up; a ring all-reduce sends and receives about twice as much."""


class Cluster:
    """One process among the others of a run: `rank` of `size`."""

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
        """Meets the others; refuses to start with one that is about to run something else.

        `hello` is the configuration; or `{"error": …}` where this process cannot start, which
        then is what all of them report.
        """
        store, rank, size = meeting_point(timeout)
        # The store outlives a restart, and a process may take part in several runs.
        meeting = f"episode/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
        cluster = cls(PrefixStore(meeting, store), rank, size, timeout)
        cluster._introduce(hello)
        cluster._connect(device)
        return cluster

    @property
    def local_rank(self) -> int:
        """Which of this host's processes it is, and so which of its GPUs it takes."""
        return int(os.environ.get("LOCAL_RANK", 0))

    @property
    def writes(self) -> bool:
        """Whether this process writes the run's folder and talks to the user."""
        return self.rank == 0

    def enter(self, where: str) -> None:
        """Says what this process is about to do, for whoever has to explain why it cannot go on."""
        self._where = where
        self.tell("where", where)

    def add_up(self, flat: Tensor) -> None:
        """flat ← its sum over all processes: one collective."""
        self.traffic.collectives += 1
        self.traffic.bytes += flat.nbytes
        self._collect(lambda: dist.all_reduce(flat, async_op=True))

    def from_first(self, data: bytes | None) -> bytes:
        """What the first process gave, on all of them."""
        self._shared += 1
        subject = f"size-{self._shared}"
        if self.rank == 0:
            assert data is not None
            self.tell(subject, str(len(data)))
        size = int(self.hear(subject, 0))
        content = bytearray(data if self.rank == 0 and data else bytes(size))
        if size:
            tensor = torch.frombuffer(content, dtype=torch.uint8)
            moved = tensor.cuda() if self._works_on_gpu else tensor
            self._collect(lambda: dist.broadcast(moved, 0, async_op=True))
            tensor.copy_(moved)
        return bytes(content)

    def tell(self, subject: str, text: str) -> None:
        """Leaves a few words for the others."""
        self._reach(lambda: self._store.set(f"{subject}/{self.rank}", text))

    def hear(self, subject: str, rank: int) -> str:
        """What another has told, once it has; an error if it fails or the time is over."""
        key, deadline, pause = f"{subject}/{rank}", time.monotonic() + self.timeout, 0.001
        while not self._reach(lambda: self._store.check([key])):
            if self._heard_of_failure() or time.monotonic() > deadline:
                raise self.explain()
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        text: str = self._reach(lambda: self._store.get(key)).decode()
        return text

    @contextmanager
    def together(self) -> Iterator[None]:
        """A failure here is told to the others; being ended because of theirs is explained.

        (torchrun ends all processes of a run with SIGTERM once one of them is gone. After a failure
        it is ignored: we end anyway, and there is something to say first.)
        """
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, _terminate) if in_main else None
        try:
            yield
            if in_main:
                signal.signal(signal.SIGTERM, before)
        except _Terminated:
            raise self.explain() from None
        except ClusterError:
            raise
        except Exception as error:
            _ignore_termination()
            with suppress(Exception):  # the others may be gone too
                self.tell("failed", str(error) or type(error).__name__)
            self._linger("alive")
            raise

    def leave(self) -> None:
        """Ends the connections that it has made."""
        if self._connected and dist.is_initialized():
            dist.destroy_process_group()

    def explain(self, reason: str = "") -> ClusterError:
        """Who is gone: whoever does not answer within a few seconds, or has left last words."""
        _ignore_termination()
        self.leave()  # so that whoever waits for us stops waiting
        others = set(range(self.size)) - {self.rank}
        failed: dict[int, str] = {}
        last_seen: dict[int, str] = {}
        with suppress(Exception):  # the store may be gone too: then nobody is known to be alive
            self._store.set(f"alive/{self.rank}", "yes")
            deadline = time.monotonic() + min(PATIENCE, self.timeout)
            while time.monotonic() < deadline:
                failed |= {r: self._words("failed", r) for r in others if self._has(f"failed/{r}")}
                others -= failed.keys() | {r for r in others if self._has(f"alive/{r}")}
                if not others:
                    break
                time.sleep(0.05)
            last_seen = {r: self._words("where", r) for r in sorted(others)}
        lost = {r: last_seen.get(r, "") for r in sorted(others)}
        return ClusterError(f"Rank {self.rank} stops {self._where}: {_story(failed, lost, reason)}")

    def _introduce(self, hello: Mapping[str, Any]) -> None:
        mine = {"episode": __version__, "torch": torch.__version__, **hello}
        self.tell("hello", json.dumps(mine))
        everyone = [json.loads(self._hear_hello(rank)) for rank in range(self.size)]
        if objection := objection_to(everyone):
            self._linger("objected")
            raise EpisodeError(objection)

    def _linger(self, subject: str) -> None:
        """Lets the others read what they must before the host of the store ends (a short while).

        (torchrun's store outlives its processes; without torchrun it is the first rank's.)
        """
        with suppress(Exception):
            self.tell(subject, "yes")
            deadline = time.monotonic() + min(PATIENCE, self.timeout)
            while self.rank == 0 and time.monotonic() < deadline:
                if all(self._has(f"{subject}/{rank}") for rank in range(self.size)):
                    break
                time.sleep(0.02)

    def _hear_hello(self, rank: int) -> str:
        try:
            return self.hear("hello", rank)
        except ClusterError:
            raise ClusterError(
                f"Rank {rank} of {self.size} did not come within {self.timeout:g} s: "
                "was it started, and with the same rendezvous?"
            ) from None

    def _connect(self, device: str) -> None:
        self._works_on_gpu = torch.device(device).type == "cuda"
        if dist.is_initialized():  # by the user's own script
            return
        self._connected = True
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
        """Starts a collective and waits for it, with an eye on the others."""
        deadline = time.monotonic() + self.timeout
        try:
            work = start()
            while not self._finished(work):
                if self._heard_of_failure() or time.monotonic() > deadline:
                    raise self.explain()
        except RuntimeError as error:
            raise self.explain(first_line(error)) from None

    def _finished(self, work: Any) -> bool:
        """Waits for a second at most."""
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
            if work.is_completed():  # it has failed; else the second is over
                raise
            return False
        return True

    def _heard_of_failure(self) -> bool:
        return any(self._has(f"failed/{rank}") for rank in range(self.size))

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

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
    if not told:
        told.append(reason.rstrip(".") or "it was told to, and nobody is missing")
    return "; ".join(told) + "."


class _Terminated(BaseException):
    """SIGTERM; not an Exception, so that a client's code does not catch it."""


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _ignore_termination() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
