"""Clients on the processes of a cluster, shared out by size (`federation/owners.py`).

Every rank plays the round. A phase costs one collective: each rank adds up its own clients'
replies, and vectors, float buffers and all scalars travel in one flat all-reduce. (Float buffers of
a wider type than the vectors need one of their own.) What is not a sum travels in a ledger behind
the vectors: integers, each written by one rank and left zero by the others, cut into pieces that
any float type holds exactly. So float64 metrics, integer buffers, checksums and requests arrive bit
for bit.
"""

from __future__ import annotations

import functools
import json
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.engines.cluster import Cluster
from episode.engines.simulation import Simulation, usable_cores
from episode.errors import ClusterError, EpisodeError
from episode.federation.client_states import ClientStates, states_for
from episode.federation.job import EngineSettings, Job
from episode.federation.owners import Owners
from episode.federation.processes import Processes
from episode.federation.protocols import Engine, Evaluation, Phase, Reply, Request, Task
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import ReplyForm

CHECK_EVERY = 10
"""Rounds between checks that all ranks hold the same x̄; a check costs no collective."""
_SHIFT = 8
"""Bits of the word in which a rank tells its requests and, above them, its round."""
_NOTHING = -1
"""None in a ledger of float64 bits: the pattern of a NaN that arithmetic never produces."""


class Distributed(Engine):
    """The engine of one rank.

    Args:
        task: The task, with the data of this rank's clients at least.
        algorithm: The algorithm that workers follow.
        cluster: The processes of the run.
        workers: Threads of this rank; None shares the host's cores among its ranks.
        owners: Who serves whom; None counts the examples of all clients, which must then be here.
        states: Where the states of this rank's clients are kept; by default in memory.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        cluster: Cluster,
        workers: int | None = None,
        owners: Owners | None = None,
        states: ClientStates | None = None,
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self._requests = Request.NONE
        self._evaluations = 0
        self._algorithm = algorithm
        self._owners = owners or Owners(
            [task.examples(client) for client in range(task.num_clients)], cluster.size
        )
        self._clients = frozenset(self._owners.clients(cluster.rank))
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", cluster.size))
        workers = workers or max(1, usable_cores() // neighbours)
        states = ClientStates(self._clients) if states is None else states
        self._here = Simulation(task, algorithm, workers, states)

    @classmethod
    def join(cls, settings: EngineSettings, hello: Mapping[str, Any]) -> Processes:
        return Cluster.join(hello, settings.timeout_seconds, settings.device)

    @classmethod
    def make(cls, job: Job) -> Distributed:
        assert isinstance(job.processes, Cluster)
        owners, cluster = job.owners, job.processes
        states = None
        if owners is not None:
            _check_agreement(owners, cluster)
            states = states_for(job, frozenset(owners.clients(cluster.rank)))
        return cls(job.task, job.plan.algorithm, cluster, job.engine.workers, owners, states)

    def requests(self) -> Request:
        return self._requests

    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the weighted mean over the cohort: a sum on each rank, then over the ranks."""
        self.cluster.enter(f"in the {phase} phase of round {broadcast['round']}")
        total = sum(weights)
        mine = [k for k, client in enumerate(cohort) if client in self._clients]
        part = self._here.add_up(
            phase, [cohort[k] for k in mine], [weights[k] / total for k in mine], broadcast
        )
        options = (broadcast.get(name, 0) for name in ("memorise", "measure_every"))
        form = ReplyForm.of(self._algorithm, phase, *options)
        return self._exchange(form, part, cohort, mine, broadcast)

    def evaluate(
        self, task: Task, x: Tensor, buffers: Buffers, clients: Sequence[int] = ()
    ) -> Evaluation:
        """Let each rank evaluate its own data; the first one combines what they have measured."""
        self.cluster.enter("in an evaluation")
        part = task.evaluate_part(x, buffers)
        mine = [c for c in clients if c in self._clients]
        own = {c: dict(task.evaluate_client(c, x, buffers)) for c in mine}
        self._evaluations += 1
        text = json.dumps([part, own])
        found = [
            json.loads(text)
            for text in self.cluster.gather(f"evaluation-{self._evaluations}", text)
        ]
        if not found:
            return Evaluation()
        by_client = {int(c): metrics for _, held in found for c, metrics in held.items()}
        metrics = task.evaluate(x, buffers) if part is None else task.combine([p for p, _ in found])
        return Evaluation(dict(metrics), dict(sorted(by_client.items())))

    def client_states(self) -> Mapping[int, ClientState]:
        """Return the states of this rank's own clients."""
        return self._here.client_states()

    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        self._here.load_client_states(states)

    def close(self) -> None:
        self._here.close()

    def _exchange(
        self,
        form: ReplyForm,
        part: Reply,
        cohort: Sequence[int],
        mine: Sequence[int],
        broadcast: Mapping[str, Any],
    ) -> Reply:
        """Return the mean, given this rank's part and its places in the cohort: one collective."""
        x, buffers = broadcast["x"], broadcast["buffers"]
        rank, size = self.cluster.rank, self.cluster.size
        if not mine:
            part.vectors = {name: torch.zeros_like(x) for name in form.vectors}
            part.buffers = Buffers(torch.zeros_like(buffers.floats), buffers.integers)
        metrics = _ledger(len(cohort), len(form.metrics))
        for row, place in enumerate(mine):
            metrics[place] = _bits([part.metrics[name][row] for name in form.metrics])
        words, number = _ledger(size, 2), broadcast["round"]
        checksum = _checksum(x) if number % CHECK_EVERY == 0 else 0
        words[rank] = torch.tensor([checksum, number << _SHIFT | self.own_requests()])
        sums = [part.vectors[name] for name in form.vectors]
        ledgers = [metrics, words]
        if form.has_buffers:
            assert part.buffers is not None
            sums.append(part.buffers.floats)
            integers = _ledger(size, part.buffers.integers.numel())
            integers[rank] = part.buffers.integers
            ledgers.append(integers)
        self._add_up(sums, ledgers)
        checksums, told = words.T.tolist()
        _check_rounds([word >> _SHIFT for word in told])
        _check_models(checksums, number)
        self._requests = Request(functools.reduce(operator.or_, told) & ((1 << _SHIFT) - 1))
        mean = Reply(dict(zip(form.vectors, sums, strict=False)))
        if form.has_buffers:
            served = sorted({self._owners.rank_of(client) for client in cohort})
            mean.buffers = Buffers(sums[-1], integers[served].amax(0).to(buffers.integers.device))
        for name, column in zip(form.metrics, metrics.unbind(1), strict=True):
            mean.metrics[name] = _values(column)
        return mean

    def _add_up(self, sums: list[Tensor], ledgers: list[Tensor]) -> None:
        """Add up all of these over the ranks, in place."""
        dtype = sums[0].dtype
        for wider in (t for t in sums if t.dtype != dtype and t.numel()):
            self.cluster.add_up(wider)
        sums = [t for t in sums if t.dtype == dtype]
        integers = torch.cat([ledger.reshape(-1) for ledger in ledgers])
        pieces = integers.view(_piece(dtype)).to(sums[0])
        flat = torch.cat([*sums, pieces])
        self.cluster.add_up(flat)
        parts = flat.split_with_sizes([t.numel() for t in (*sums, pieces)])
        for target, part in zip(sums, parts, strict=False):
            target.copy_(part)
        exact = parts[-1].cpu().to(_piece(dtype)).view(torch.int64)
        sizes = [ledger.numel() for ledger in ledgers]
        for ledger, part in zip(ledgers, exact.split_with_sizes(sizes), strict=True):
            ledger.copy_(part.view(ledger.shape))


def _check_agreement(owners: Owners, cluster: Cluster) -> None:
    """Raise an error if this rank has counted other examples than the first."""
    first = cluster.from_first(str(owners.checksum).encode())
    if first.decode() != str(owners.checksum):
        raise EpisodeError(
            f"Rank {cluster.rank} and rank 0 count the clients' examples differently: "
            "give all ranks the same data, and the same numbers of examples."
        )


def _ledger(rows: int, columns: int) -> Tensor:
    return torch.zeros(rows, columns, dtype=torch.int64)


def _piece(dtype: torch.dtype) -> torch.dtype:
    """Return the widest integer type whose values this float type holds exactly."""
    return torch.int16 if torch.finfo(dtype).eps < 2**-16 else torch.int8


def _bits(values: Sequence[float | None]) -> Tensor:
    numbers = torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
    nothing = torch.tensor([v is None for v in values])
    return numbers.view(torch.int64).masked_fill(nothing, _NOTHING)


def _values(bits: Tensor) -> list[float | None]:
    numbers = bits.contiguous().view(torch.float64).tolist()
    return [None if b == _NOTHING else v for b, v in zip(bits.tolist(), numbers, strict=True)]


def _checksum(x: Tensor) -> int:
    """Return the sum of x's bit patterns; other vectors have another one, almost surely."""
    patterns = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return int(x.view(patterns).sum(dtype=torch.int64))


def _check_rounds(rounds: Sequence[int]) -> None:
    """Raise an error if ranks do not play the same round."""
    for rank, number in enumerate(rounds):
        if number != rounds[0]:
            raise ClusterError(
                f"Rank {rank} plays round {number}, and rank 0 round {rounds[0]}: start all ranks "
                "again, to resume from the checkpoint."
            )


def _check_models(checksums: Sequence[int], round: int) -> None:
    """Raise an error if ranks do not hold the same model."""
    apart = [rank for rank, value in enumerate(checksums) if value != checksums[0]]
    if not apart:
        return
    ranks = f"Rank {apart[0]} holds" if len(apart) == 1 else f"Ranks {apart} hold"
    raise ClusterError(
        f"{ranks} another model than rank 0 at the start of round {round}: the ranks have drifted "
        "apart, which faulty hardware or different libraries can cause. Resume from the checkpoint."
    )
