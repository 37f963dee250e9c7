"""Faults that strike a run once, in one phase of one round, in the process that installs them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from episode.core.vectors import blocks_of
from episode.engines.cluster import Cluster
from episode.engines.distributed import Distributed
from episode.federation import checkpoint
from episode.federation.mean import OrderedSum
from episode.federation.protocols import Draw, Engine
from episode.federation.rounds import Rounds
from episode.federation.worker import Worker
from episode.tasks.neural import NeuralTask
from episode.tasks.replica import Replica

SIGNALS = ("SIGKILL", "SIGSTOP")
ACTING = (*SIGNALS, "disk full", "deleted folder")
SPOILING = ("NaN", "wrong shape")
STALE = "stale round"


@dataclass
class Strike:
    """A fault, and whether it has struck."""

    kind: str
    """A fault of the matrix."""
    phase: str
    """Where it strikes."""
    folder: Path
    """The run's folder."""
    mark: Path
    """A file that remembers that it has struck, so that a restarted run is spared."""
    round: int = 2
    client: int | None = 1
    """The client whose work is struck; None for whichever is served first."""
    now: int = -1
    """The round that is being played."""

    def is_due(self, phase: str) -> bool:
        """Whether to strike now; true only once."""
        if (phase, self.now) != (self.phase, self.round) or self.mark.exists():
            return False
        self.mark.touch()
        return True

    def act(self) -> None:
        """Do what needs no data of the phase."""
        if self.kind in SIGNALS:
            os.kill(os.getpid(), getattr(signal, self.kind))
        elif self.kind == "disk full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        elif self.kind == "deleted folder":
            while self.folder.exists():  # another rank may be writing
                shutil.rmtree(self.folder, ignore_errors=True)

    def spoil(self, values: torch.Tensor) -> torch.Tensor:
        """Return these values as the fault leaves them."""
        if self.kind == "NaN" and values.is_floating_point():
            return values * float("nan")
        return values.reshape(-1)[:-1] if self.kind == "wrong shape" else values


def install(strike: Strike) -> None:
    """Let this process be struck."""
    average = Rounds._average

    def noting(self: Rounds, phase: Any, server: Any, *args: Any, **more: Any) -> Any:
        strike.now = server.round
        return average(self, phase, server, *args, **more)

    Rounds._average = noting  # type: ignore[method-assign]
    _strike_phases(strike)
    _strike_gradients(strike)
    _strike_means(strike)
    _strike_checkpoints(strike)
    _strike_rounds(strike)
    _strike_evaluations(strike)


def _strike_phases(strike: Strike) -> None:
    serve = {"probe": Worker.probe, "local": Worker.local}

    def striking(phase: str) -> Any:
        def served(self: Worker, client: int, *args: Any, **sent: Any) -> Any:
            mine = strike.client in (client, None)
            if mine and strike.kind in ACTING and strike.is_due(phase):
                strike.act()
            return serve[phase](self, client, *args, **sent)

        return served

    Worker.probe, Worker.local = striking("probe"), striking("local")  # type: ignore[method-assign]


def _strike_gradients(strike: Strike) -> None:
    gradient = Replica.gradient

    def spoiled(self: Replica, draw: Draw) -> Any:
        loss, found = gradient(self, draw)
        mine = strike.kind in SPOILING and strike.client in (draw.client, None)
        if mine and strike.is_due(draw.stream):
            first, *rest = blocks_of(found)
            found = [strike.spoil(first), *rest]
        return loss, found

    Replica.gradient = spoiled  # type: ignore[method-assign]


def _strike_means(strike: Strike) -> None:
    """Strike while replies are added up; in a cluster, once the collective is under way."""
    add, add_up = OrderedSum.add, Cluster.add_up

    def adding(self: OrderedSum, place: int, reply: Any) -> None:
        if place == 1 and "RANK" not in os.environ and strike.is_due("average"):
            strike.act()
            reply.vectors = {name: strike.spoil(v) for name, v in reply.vectors.items()}
        add(self, place, reply)

    def adding_up(self: Cluster, flat: torch.Tensor) -> None:
        if strike.is_due("average"):
            if strike.kind in SIGNALS:
                torch.distributed.all_reduce(flat, async_op=True)
            strike.act()
            flat[:1] = strike.spoil(flat[:1])
        add_up(self, flat)

    OrderedSum.add, Cluster.add_up = adding, adding_up  # type: ignore[method-assign]


def _strike_rounds(strike: Strike) -> None:
    """Let a rank take part in a mean as if it were still in the round before."""
    average: Any = Distributed.average

    def averaging(self: Distributed, phase: Any, *args: Any, **sent: Any) -> Any:
        if strike.kind == STALE and strike.is_due(phase):
            sent["round"] -= 1
        return average(self, phase, *args, **sent)

    Distributed.average = averaging  # type: ignore[method-assign]


def _strike_checkpoints(strike: Strike) -> None:
    """Strike while this process's file is half written; what is spoiled is written whole."""
    save = checkpoint.save_file
    name = "state" if os.environ.get("RANK", "0") == "0" else "clients-"
    last: list[Any] = []

    def saving(tensors: Any, path: Path, metadata: Any) -> None:
        if path.name.startswith(name) and strike.is_due("checkpoint"):
            if strike.kind in SIGNALS:
                path.write_bytes(b"half a file")
            if strike.kind == STALE:
                tensors, metadata = last
            strike.act()
            tensors = {key: strike.spoil(t).contiguous() for key, t in tensors.items()}
        last[:] = tensors, metadata
        save(tensors, path, metadata)

    checkpoint.save_file = saving  # type: ignore[assignment]


def _strike_evaluations(strike: Strike) -> None:
    evaluate: Any = Engine.evaluate
    part = NeuralTask.evaluate_part

    def evaluating(self: Engine, *args: Any) -> Any:
        if strike.kind in ACTING and strike.is_due("evaluate"):
            strike.act()
        return evaluate(self, *args)

    def on_a_rank(self: NeuralTask, *args: Any) -> Any:
        if strike.kind in ACTING and strike.is_due("evaluate"):
            strike.act()
        return part(self, *args)

    Engine.evaluate = evaluating  # type: ignore[method-assign]
    NeuralTask.evaluate_part = on_a_rank  # type: ignore[method-assign]
