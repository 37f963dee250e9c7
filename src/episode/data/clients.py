"""Clients' data, opened when they are needed and let go when many others have been."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from episode.arguments import function, whole_number
from episode.data.batches import Batches
from episode.data.forms import as_dataset
from episode.errors import ClientError, EpisodeError

MOST_OPEN = 512
"""Clients whose batches are kept; those that were used least recently are let go first."""


class LazyClients(Sequence[Any]):
    """The data of many clients, each opened when it takes part in a round.

    Give it to `episode.fit` in place of a list, if there are too many clients to hold them all.

    Args:
        count: Number of clients N.
        open_client: `open_client(client)` returns the data of a client, by its number from 0: a
            tuple of tensors or any map-style dataset, always the same.
        examples: Number of examples of each client, if known; otherwise a client is opened to count
            them, where they are needed (`weighting="examples"`, several processes).

    Raises:
        EpisodeError: There are no clients, or not one number of examples for each.
        ClientError: A client's data cannot be opened.

    Example:
        >>> import episode, torch
        >>> def open_client(client):
        ...     x = torch.linspace(0, 1, 8)[:, None]
        ...     return x, client * x
        >>> clients = episode.LazyClients(100_000, open_client)
        >>> loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        >>> run = episode.fit(torch.nn.Linear(1, 1), clients, loss, eta=1e-9, gamma=1.0,
        ...                   local_steps=2, rounds=3, batch_size=4, cohorts=episode.Uniform(10))
        >>> run.status
        'finished'
    """

    def __init__(
        self,
        count: int,
        open_client: Callable[[int], Any],
        examples: Sequence[int] | None = None,
    ) -> None:
        count = whole_number("count", count, least=1)
        function("open_client", open_client, "returns the data of a client")
        if examples is not None and len(examples) != count:
            raise EpisodeError(
                f"examples has {len(examples)} numbers for {count} clients: give one for each."
            )
        self._count = count
        self._open = open_client
        self.examples = examples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < self._count:
            raise IndexError(client)
        try:
            return as_dataset(self._open(client), client)
        except EpisodeError:
            raise
        except Exception as error:
            raise ClientError(
                f"Client {client}'s data cannot be opened ({type(error).__name__}: {error}): mend "
                "them and start the run again; in a folder it goes on from its last checkpoint."
            ) from error


class ClientBatches(Mapping[int, Batches]):
    """The batches of each client whose data are here, by its number in the federation.

    Args:
        make: Opens a client's data.
        clients: The clients whose data are here, in ascending order.
    """

    def __init__(self, make: Callable[[int], Batches], clients: Sequence[int]) -> None:
        self._make = make
        self._clients = clients
        self._here = clients if isinstance(clients, range) else frozenset(clients)
        self._open: OrderedDict[int, Batches] = OrderedDict()
        self._lock = Lock()

    def __getitem__(self, client: int) -> Batches:
        with self._lock:
            if (found := self._open.get(client)) is not None:
                self._open.move_to_end(client)
                return found
        if client not in self._here:
            raise KeyError(client)
        # Outside the lock: opening may read files, and a client is served by one thread at a time.
        opened = self._make(client)
        with self._lock:
            self._open[client] = opened
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return opened

    def __contains__(self, client: object) -> bool:
        return client in self._here

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
