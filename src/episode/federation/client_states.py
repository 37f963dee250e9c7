"""The states of one process's clients: in memory, or beyond a budget in a memory-mapped file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from torch import Tensor

from episode.errors import EpisodeError
from episode.federation.job import Job
from episode.federation.protocols import Phase
from episode.federation.slots import Layout, SlotFile
from episode.federation.state import ClientState
from episode.results.store import CHECKPOINT

FIELDS = ("memory", "velocity")
"""What a client keeps between rounds; a vector's key in a file is its client's number times two,
plus its place in this list."""


class ClientStates(Mapping[int, ClientState]):
    """The states of the clients that this process serves, in memory. Most may have none.

    Args:
        clients: The clients that this process serves.
    """

    def __init__(self, clients: Collection[int]) -> None:
        self._clients = clients
        self._held: dict[int, ClientState] = {}

    def take(self, client: int, phase: Phase) -> ClientState:
        """Return a client's state at the beginning of a phase, to be changed by it."""
        return self._held.get(client) or ClientState()

    def keep(self, client: int, state: ClientState) -> None:
        """Keep a client's state at the end of a phase."""
        if state.anchor is None and not state.tensors():
            self._held.pop(client, None)
        else:
            self._held[client] = state

    def load(self, states: Mapping[int, ClientState]) -> None:
        """Start from these states; those of clients that this process does not serve are left."""
        for client in states:
            if client in self._clients:
                self.keep(client, states[client])

    def close(self) -> None:
        """Close the file, if there is one."""

    def __getitem__(self, client: int) -> ClientState:
        return self._held[client]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)


class StoredStates(Mapping[int, ClientState]):
    """The states in a checkpoint: read with it, or in files beside it and read when asked for.

    Args:
        held: States that have been read.
        files: The files.
        device: Where the tensors go.
    """

    def __init__(
        self, held: dict[int, ClientState], files: Sequence[SlotFile], device: str
    ) -> None:
        self.held = held
        self.files = files
        self._device = device
        self._file_of = {key // len(FIELDS): file for file in files for key in file.keys}

    def __getitem__(self, client: int) -> ClientState:
        if client in self.held:
            return self.held[client]
        return _read(self._file_of[client], client, self._device)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.held.keys() | self._file_of.keys()))

    def __len__(self) -> int:
        return len(self.held.keys() | self._file_of.keys())


class MappedStates(ClientStates):
    """States whose vectors are in a memory-mapped file; see `SlotFile` for why that is safe.

    Only anchors, which live from a probe to the end of its round, are held in memory.

    Args:
        clients: The clients that this process serves.
        num_clients: Number N of all clients.
        like: A vector such as those of the states.
        folder: Folder of the checkpoint, or None for a temporary file.
        place: This process's rank, and the number of ranks.
    """

    def __init__(
        self,
        clients: Collection[int],
        num_clients: int,
        like: Tensor,
        folder: Path | None,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(clients)
        dtype = str(like.dtype).removeprefix("torch.")
        self._layout = Layout(num_clients * len(FIELDS), like.numel(), dtype)
        self._device = str(like.device)
        rank, ranks = place
        # Two names: if the file of the checkpoint cannot be continued, it must not be emptied.
        names = [f"clients-{k}-rank-{rank}-of-{ranks}.rows" for k in range(2)]
        self._paths = [folder / name for name in names] if folder else []
        self._opened: SlotFile | None = None
        self._lock = Lock()

    @property
    def file(self) -> SlotFile:
        """The file of the vectors."""
        with self._lock:
            if self._opened is None:  # nothing was loaded, so it starts empty
                self.load({})
        assert self._opened is not None
        return self._opened

    def take(self, client: int, phase: Phase) -> ClientState:
        if phase == "local":
            return self[client]
        return ClientState()  # a probe changes the anchor, or the memory, without looking at it

    def keep(self, client: int, state: ClientState) -> None:
        for place, name in enumerate(FIELDS):
            vector = getattr(state, name)
            if vector is not None:
                self.file.write(client * len(FIELDS) + place, vector)
        super().keep(client, ClientState(anchor=state.anchor))

    def load(self, states: Mapping[int, ClientState]) -> None:
        """Go on with the file of the checkpoint if it is this process's own, or copy its vectors.

        It is not if clients have moved, as on another number of ranks.
        """
        files = states.files if isinstance(states, StoredStates) else []
        if isinstance(states, StoredStates) and len(files) == 1 and self._is_own(files[0]):
            self._opened = files[0]
            states = states.held
        else:
            unused = [path for path in self._paths if path not in [file.path for file in files]]
            self._opened = SlotFile(unused[0] if unused else None, self._layout)
        super().load(states)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __getitem__(self, client: int) -> ClientState:
        state = _read(self.file, client, self._device)
        if client in self._held:
            state.anchor = self._held[client].anchor
        return state

    def __iter__(self) -> Iterator[int]:
        stored = {key // len(FIELDS) for key in self.file.keys}
        return iter(sorted(stored | self._held.keys()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _is_own(self, file: SlotFile) -> bool:
        if file.path not in self._paths or file.layout != self._layout:
            return False
        return all(key // len(FIELDS) in self._clients for key in file.keys)


def states_for(job: Job, clients: Collection[int]) -> ClientStates:
    """Return where a process keeps the states of these clients, according to the job's budget."""
    algorithm, (x, _) = job.plan.algorithm, job.task.initial()
    vectors = 0
    if algorithm.correction.steps_locally:
        kept = [name for name in algorithm.descent.kept if name != "steps"]
        vectors = algorithm.correction.remembers + len(kept)
    size = len(clients) * vectors * x.nbytes / 1e6
    if size <= job.engine.state_memory_mb:
        return ClientStates(clients)
    if "second" in algorithm.descent.kept:
        raise EpisodeError(
            f"The moments of AdamW take {size:.0f} MB, above engine.state_memory_mb = "
            f"{job.engine.state_memory_mb:g}, and are not stored in files: raise it, or set "
            "algorithm.descent.moments to reset."
        )
    folder = (job.folder / CHECKPOINT).parent if job.folder else None
    place = job.processes.rank, job.processes.size
    return MappedStates(clients, job.task.num_clients, x, folder, place)


def _read(file: SlotFile, client: int, device: str) -> ClientState:
    """Return copies of a client's vectors."""
    state = ClientState()
    for place, name in enumerate(FIELDS):
        vector = file.read(client * len(FIELDS) + place)
        if vector is not None:
            setattr(state, name, vector.to(device))
    return state
