"""Contracts of the seams: what a task, an objective and an engine must offer, and what they may.

Derive from these classes. Abstract methods are required; everything else has a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from episode.core.vectors import Vector
from episode.federation.processes import Processes
from episode.federation.state import Buffers, ClientState
from episode.results.store import LabelCounts

if TYPE_CHECKING:
    from episode.federation.job import EngineSettings, Job

Phase = Literal["probe", "local"]
"""What clients are asked for: the gradient at x̄_r, or I local steps from x̄_r."""


@dataclass(frozen=True)
class Draw:
    """Name of one batch: the `index`-th of a client's stream. Equal draws give equal batches."""

    client: int
    stream: Phase
    index: int


@dataclass
class Reply:
    """Result of a phase on one client, or its mean over a cohort."""

    vectors: dict[str, Tensor]
    """`x`, `gradient`, `change` …, each `[d]`; they are averaged."""
    buffers: Buffers | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers of one client; for a cohort, lists of them in the cohort's order. Never averaged."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model: on the task's own splits, and on what each client has held out."""

    metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[int, dict[str, float]] = field(default_factory=dict)
    """By client; without those that could not be evaluated."""


class Request(IntFlag):
    """What a process may ask for; it is done after the round if any process asks for it."""

    NONE = 0
    CHECKPOINT = 1
    STOP = 2


class Objective(ABC):
    """One worker's replica of the problem: a point x, and gradients there on any client's data."""

    x: Tensor
    """Work vector `[d]`: gradients are taken at its current value. Change it in place."""
    blocks: Vector
    """x in the form that gradients have: x itself, or views of it, one per parameter."""

    @abstractmethod
    def gradient(self, draw: Draw) -> tuple[Tensor, Vector]:
        """Return (loss, ∇F_i(x; ξ)): a scalar, and a vector that the caller may overwrite."""

    def hessian_product(self, draw: Draw) -> Callable[[Tensor], Tensor] | None:
        """Return v ↦ ∇²F_i(x; ξ)v at the current x, or None if it cannot be computed exactly."""
        return None

    def load_buffers(self, buffers: Buffers) -> None:  # noqa: B027 - the default has no buffers
        """Write these values into the model's buffers."""

    def buffers(self) -> Buffers:
        """Return a copy of the model's buffers."""
        return Buffers()


class Task(ABC):
    """A loss, its clients' data and its evaluation.

    `NeuralTask` makes one of any model and data; derive from this class for anything else.

    Example:
        >>> import episode, torch
        >>> data = (torch.randn(8, 2), torch.randn(8, 1))
        >>> loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
        >>> task = episode.NeuralTask(torch.nn.Linear(2, 1), [data, data], loss, batch_size=4)
        >>> isinstance(task, episode.Task), task.num_clients, task.examples(0)
        (True, 2, 8)
    """

    num_clients: int
    draws_random_numbers: bool = False
    """Whether gradients use torch's global generator (dropout), so that threads must not share."""
    takes_turns: bool = False
    """Whether replicas take turns at drawing from it, so that threads may share after all."""
    label_counts: LabelCounts | None = None
    """Who has which labels, if the task knows; it is stored with the run for reports."""
    client_names: Sequence[str] = ()
    """Names of all clients, for tables and reports; empty if they have none."""

    @property
    def evaluates_clients(self) -> bool:
        """Whether `evaluate_client` returns metrics: clients have held out data."""
        return False

    def client_name(self, client: int) -> str:
        """Return a client's name; `client 3` if it has none but its number."""
        name = str(self.client_names[client]) if self.client_names else str(client)
        return f"client {client}" if name == str(client) else name

    @property
    def clients(self) -> Sequence[int]:
        """The clients whose data are here: all, unless the task was built for some of them."""
        return range(self.num_clients)

    @abstractmethod
    def examples(self, client: int) -> int:
        """Return how many examples a client holds (1 if that has no meaning)."""

    @abstractmethod
    def initial(self) -> tuple[Tensor, Buffers]:
        """Return x_0 and the initial buffers."""

    @abstractmethod
    def objective(self) -> Objective:
        """Return a new replica for one worker. Replicas share nothing that changes."""

    @abstractmethod
    def evaluate(self, x: Tensor, buffers: Buffers) -> Mapping[str, float]:
        """Return metrics of the model x̄, such as test_loss and test_accuracy."""

    def evaluate_part(self, x: Tensor, buffers: Buffers) -> dict[str, Any] | None:
        """Return what `combine` needs of the data that are here, as JSON values.

        None if the task can only be evaluated as a whole, by `evaluate`.
        """
        return None

    def combine(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the metrics of all data from what each process or site has measured on its own.

        Parts that hold all data give what `evaluate` returns, whatever their order.
        """
        raise NotImplementedError(f"{type(self).__name__} has evaluate_part, but no combine.")

    def check_part(  # noqa: B027 - by default a part is taken as it is
        self, part: Mapping[str, Any], client: int
    ) -> None:
        """Raise a ValueError if a site cannot have measured this on the data of its client."""

    def evaluate_client(self, client: int, x: Tensor, buffers: Buffers) -> Mapping[str, float]:
        """Return metrics of x̄ on data that this client has held out; empty if it has none."""
        return {}

    def state_dict(self, x: Tensor, buffers: Buffers) -> dict[str, Tensor] | None:
        """Return the model's tensors at x̄ by name, or None if the task has no model to store.

        Parameters that are not trained are left out: `frozen_checksum` identifies them.
        """
        return None

    @property
    def frozen_checksum(self) -> str:
        """A checksum of the parameters that are not trained; empty if there are none here."""
        return ""

    def install(self, x: Tensor, buffers: Buffers) -> nn.Module | None:
        """Write x̄ into the user's model and return it, or None if there is no such model."""
        return None


class Engine(ABC):
    """Where clients run. It has one verb, `average`; the rest has defaults or is bookkeeping.

    An engine is chosen by name: one of `episode list engines`, `my_engine.py:MyEngine`,
    `package.module:MyEngine`, or an entry point in the group `episode.engines`. The file
    examples/my_engine.py shows one.

    Example:
        >>> from episode import Engine
        >>> from episode.engines.simulation import Simulation
        >>> issubclass(Simulation, Engine), Simulation.single_process
        (True, True)
    """

    summary: ClassVar[str] = ""
    """One line for `episode list`."""
    single_process: ClassVar[bool] = False
    """Whether a run stays in one process, so that a sweep may play several runs at once."""

    def __init__(self) -> None:
        self.own_requests: Callable[[], Request] = lambda: Request.NONE
        """Asked for what this process wants after the round; set by whoever plays the rounds."""

    @classmethod
    def join(cls, settings: EngineSettings, hello: Mapping[str, Any]) -> Processes:
        """Return the processes of the run, before its task is built; by default this one alone.

        `hello` is what the processes must agree on, or `{"error": ...}` if this one cannot start.
        """
        return Processes()

    @classmethod
    @contextmanager
    def open(cls, job: Job) -> Iterator[Engine]:
        """Open the engine for a job, and close it afterwards."""
        with closing(cls.make(job)) as engine:
            yield engine

    @classmethod
    def make(cls, job: Job) -> Engine:
        """Return a new engine for a job; by default `cls(task, algorithm)`."""
        return cls(job.task, job.plan.algorithm)  # type: ignore[call-arg]

    @abstractmethod
    def average(
        self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
    ) -> Reply:
        """Return the weighted mean over the cohort of what `phase` returned on each client.

        Raises:
            AttemptFailed: The mean cannot be taken now; see `attempts`.
        """

    @abstractmethod
    def client_states(self) -> Mapping[int, ClientState]:
        """Return the client states that this process holds, for a checkpoint.

        Clients without a state may be left out.
        """

    @abstractmethod
    def load_client_states(self, states: Mapping[int, ClientState]) -> None:
        """Restore what `client_states` returned."""

    @abstractmethod
    def close(self) -> None:
        """End all threads, processes and connections."""

    def evaluate(
        self, task: Task, x: Tensor, buffers: Buffers, clients: Sequence[int] = ()
    ) -> Evaluation:
        """Evaluate x̄ where the data are; by default in this process.

        Every process calls it. The one that writes the run gets all metrics, others may get none.

        Args:
            task: The task of the run.
            x: The model x̄.
            buffers: Its buffers.
            clients: The clients to evaluate one by one, on data that they have held out.
        """
        by_client = {c: dict(task.evaluate_client(c, x, buffers)) for c in clients}
        return Evaluation(dict(task.evaluate(x, buffers)), by_client)

    def sent_bytes(self, reply: Reply) -> int:
        """Return how many bytes one client sends for such a reply, without a few scalars."""
        vectors = sum(vector.nbytes for vector in reply.vectors.values())
        return vectors + (reply.buffers.nbytes if reply.buffers else 0)

    def attempts(self, round: int, cohort: Sequence[int]) -> Iterator[list[int]]:
        """Yield who takes part in each attempt at a round.

        The first attempt that ends without `AttemptFailed` is the round. By default there is one
        attempt, with the whole cohort.
        """
        yield list(cohort)

    def requests(self) -> Request:
        """Return what any process of the run has asked for in the round just played."""
        return self.own_requests()

    def notes(self) -> dict[str, Any]:
        """Return what this engine adds to the record of the round just played."""
        return {}


class AttemptFailed(Exception):  # noqa: N818 - not an error: the round is attempted again
    """Raised by `Engine.average` when the round must be attempted again, perhaps with fewer."""
