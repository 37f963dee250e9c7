"""How one dataset is distributed to clients: each rule is a pure function of labels and a seed.

Labels and users are any columns of numbers or strings. `select` makes clients' datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Subset

from episode.errors import EpisodeError
from episode.randomness import generator, permutation

Column = Any  # one value per example, in anything that can be iterated


@dataclass(frozen=True)
class Partition:
    """Which client has which examples."""

    labels: Tensor
    """Labels of all examples that could be distributed, as numbers."""
    names: Sequence[str]
    """Names of the labels 0, 1, …"""
    parts: Sequence[Tensor]
    """The examples that each client trains on, as indices into `labels`."""
    clients: Sequence[str] = ()
    """Names of the clients, if they have any."""
    held_out: Sequence[Tensor] | None = None  # the examples that each client holds out, if any


def by_similarity(labels: Column, num_clients: int, similarity: float, seed: int) -> list[Tensor]:
    """Distribute s% of the data uniformly and the rest sorted by label (the paper's rule).

    The sorted rest is cut into one block per client. All clients get equally many examples; fewer
    than 2N examples, chosen by the seed, are left out.

    Args:
        labels: One label per example.
        num_clients: Number of clients N.
        similarity: s, from 0 (each client has few labels) to 100 (all clients are alike).
        seed: Random seed.

    Returns:
        The indices of each client's examples.

    Raises:
        EpisodeError: The similarity is no percentage, or there are more clients than examples.

    Example:
        >>> labels = [0, 1] * 4
        >>> parts = by_similarity(labels, num_clients=2, similarity=0, seed=0)
        >>> [sorted(part.tolist()) for part in parts]
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    return _by_sorted_values(_codes(labels), num_clients, similarity, seed, "examples")


def by_user_similarity(
    users: Column, labels: Column, num_clients: int, similarity: float, seed: int
) -> list[Tensor]:
    """Distribute whole users: s% uniformly, the rest sorted by their mean label.

    The paper's rule for Sentiment140, where the mean label is a user's share of positive tweets.
    All clients get equally many users; fewer than 2N users, chosen by the seed, are left out.

    Args:
        users: The user of each example.
        labels: The label of each example.
        num_clients: Number of clients N.
        similarity: s, from 0 (clients differ most) to 100 (all are alike).
        seed: Random seed.

    Returns:
        The indices of each client's examples.

    Raises:
        EpisodeError: Users and labels differ in number, or the arguments as for `by_similarity`.

    Example:
        >>> users, labels = ["ann", "bob", "ann", "bob"], [1, 0, 1, 1]
        >>> parts = by_user_similarity(users, labels, num_clients=2, similarity=0, seed=0)
        >>> [part.tolist() for part in parts]
        [[1, 3], [0, 2]]
    """
    owner = _codes(users)
    values = _codes(labels).double()
    if len(owner) != len(values):
        raise EpisodeError(f"There are {len(owner)} users for {len(values)} labels: give one each.")
    count = torch.bincount(owner)
    share = torch.zeros(len(count), dtype=torch.float64).index_add_(0, owner, values) / count
    client_of = torch.full((len(count),), -1)
    parts = _by_sorted_values(share, num_clients, similarity, seed, "users")
    for client, own in enumerate(parts):
        client_of[own] = client
    return _groups(client_of[owner], num_clients)


def by_dirichlet(
    labels: Column, num_clients: int, alpha: float, seed: int, minimum: int = 1
) -> list[Tensor]:
    """Distribute each label's examples in proportions drawn from a Dirichlet(α, …, α).

    Args:
        labels: One label per example.
        num_clients: Number of clients N.
        alpha: α: small values (0.1) give clients few labels and very different sizes, large ones
            (100) make clients alike.
        seed: Random seed.
        minimum: Fewest examples of a client; proportions are drawn again until all have them.

    Returns:
        The indices of each client's examples; every example occurs once.

    Raises:
        EpisodeError: `alpha` is not positive, or some client always gets too few examples.

    Example:
        >>> parts = by_dirichlet([0, 1, 2] * 100, num_clients=5, alpha=0.5, seed=0)
        >>> len(parts), sum(len(part) for part in parts)
        (5, 300)
    """
    if not 0 < alpha < float("inf"):
        raise EpisodeError(f"alpha is {alpha}: it must be a positive, finite number.")
    codes = _codes(labels)
    _check_clients(num_clients, len(codes) // max(1, minimum), "examples")
    for attempt in range(1000):
        rng = np.random.default_rng(generator(seed, "dirichlet", attempt).initial_seed())
        parts = _draw_dirichlet(codes, num_clients, alpha, rng)
        if min(map(len, parts)) >= minimum:
            return parts
    raise EpisodeError(
        f"With alpha {alpha}, none of 1,000 draws gave each of {num_clients} clients {minimum} "
        "examples: use a larger alpha or fewer clients."
    )


def by_id(ids: Column) -> list[Tensor]:
    """Make one client of each id (a hospital, a writer), in the sorted order of the ids.

    Args:
        ids: The id of each example.

    Returns:
        The indices of each client's examples.

    Example:
        >>> [part.tolist() for part in by_id(["b", "a", "b"])]
        [[1], [0, 2]]
    """
    codes = _codes(ids)
    return _groups(codes, int(codes.max()) + 1 if len(codes) else 0)


def by_label_count(
    labels: Column, num_clients: int, labels_per_client: int, seed: int
) -> list[Tensor]:
    """Give each client examples of exactly k labels, drawn at random ("pathological" split).

    A client draws among the labels that the fewest clients have so far; the clients that have a
    label share all its examples equally (to one). Of more than N·k labels, some are left out.

    Args:
        labels: One label per example.
        num_clients: Number of clients N.
        labels_per_client: k.
        seed: Random seed.

    Returns:
        The indices of each client's examples.

    Raises:
        EpisodeError: There are too few labels, or too few examples of a label.

    Example:
        >>> labels = torch.tensor([0, 1, 2] * 4)
        >>> parts = by_label_count(labels, num_clients=3, labels_per_client=1, seed=0)
        >>> sorted(labels[part].unique().tolist() for part in parts)
        [[0], [1], [2]]
    """
    codes = _codes(labels)
    _check_clients(num_clients, len(codes), "examples")
    present = torch.bincount(codes)
    if not 1 <= labels_per_client <= len(present):
        raise EpisodeError(
            f"labels_per_client is {labels_per_client}: it must be from 1 to {len(present)}, "
            "the number of labels."
        )
    holders = torch.zeros_like(present)
    owned = []
    for client in range(num_clients):
        order = permutation(len(present), seed, "labels", client)
        own = order[torch.argsort(holders[order], stable=True)][:labels_per_client]
        holders[own] += 1
        owned.append(own.tolist())
    if (holders > present).any():
        scarce = int((holders - present).argmax())
        raise EpisodeError(
            f"{holders[scarce]} clients cannot share the {present[scarce]} examples of the label "
            f"{_unique(labels)[0][scarce]}: use fewer clients or labels_per_client."
        )
    order = permutation(len(codes), seed, "partition")
    members = torch.split(order[torch.argsort(codes[order], stable=True)], present.tolist())
    shares = [
        iter(torch.tensor_split(examples, max(1, count)))
        for examples, count in zip(members, holders.tolist(), strict=True)
    ]
    return [torch.cat([next(shares[label]) for label in own]) for own in owned]


def select(dataset: Any, parts: Sequence[Tensor]) -> list[Any]:
    """Make one dataset per client from the indices that a rule has returned.

    Args:
        dataset: Tensors, a Hugging Face dataset, or any map-style dataset.
        parts: The indices of each client's examples.

    Returns:
        One dataset per client: of the same kind, or a torch `Subset` of a map-style dataset.

    Example:
        >>> inputs, labels = torch.arange(4.0), torch.tensor([0, 1, 0, 1])
        >>> clients = select((inputs, labels), by_id(labels))
        >>> clients[1]
        (tensor([1., 3.]), tensor([1, 1]))
    """
    if isinstance(dataset, (tuple, list)) and all(isinstance(t, Tensor) for t in dataset):
        return [tuple(t[part.to(t.device)] for t in dataset) for part in parts]
    if isinstance(dataset, Tensor):
        return [dataset[part.to(dataset.device)] for part in parts]
    if hasattr(dataset, "select"):  # Hugging Face: a view by indices, nothing is copied
        return [dataset.select(part.tolist()) for part in parts]
    return [Subset(dataset, part.tolist()) for part in parts]


def count_labels(labels: Column, parts: Sequence[Tensor]) -> tuple[list[str], Tensor]:
    """Count how many examples of each label each client has.

    Args:
        labels: One label per example.
        parts: The indices of each client's examples.

    Returns:
        The labels that occur, sorted and as text, and the counts `[clients, labels]`.

    Example:
        >>> count_labels(["no", "yes", "yes"], [torch.tensor([0, 1]), torch.tensor([2])])
        (['no', 'yes'], tensor([[1, 1],
                [0, 1]]))
    """
    names, codes = _unique(labels)
    table = [np.bincount(codes[part.numpy()], minlength=len(names)) for part in parts]
    return [str(name) for name in names], torch.from_numpy(np.stack(table))


def _by_sorted_values(
    values: Tensor, num_clients: int, similarity: float, seed: int, what: str
) -> list[Tensor]:
    """Distribute s% uniformly and the rest sorted by value, in contiguous blocks of equal size."""
    if not 0 <= similarity <= 100:
        raise EpisodeError(f"similarity is {similarity}: it is a percentage, from 0 to 100.")
    _check_clients(num_clients, len(values), what)
    order = permutation(len(values), seed, "partition")
    shared = round(len(values) * similarity / 100)
    shared -= shared % num_clients
    uniform, rest = order[:shared], order[shared:]
    rest = rest[: len(rest) - len(rest) % num_clients]
    rest = rest[torch.argsort(values[rest], stable=True)]
    return [
        torch.cat([uniform[c::num_clients], block])
        for c, block in enumerate(rest.view(num_clients, len(rest) // num_clients))
    ]


def _draw_dirichlet(
    codes: Tensor, num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Tensor]:
    client_of = torch.empty(len(codes), dtype=torch.int64)
    for label in range(int(codes.max()) + 1):
        members = rng.permutation(torch.nonzero(codes == label).flatten().numpy())
        shares = rng.dirichlet([alpha] * num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for client, chosen in enumerate(np.split(members, cuts)):
            client_of[torch.from_numpy(chosen)] = client
    return _groups(client_of, num_clients)


def _groups(group_of: Tensor, count: int) -> list[Tensor]:
    """Return the indices of each group, in ascending order; a group below 0 is left out."""
    order = torch.argsort(group_of, stable=True)
    order = order[int((group_of < 0).sum()) :]
    sizes = torch.bincount(group_of[group_of >= 0], minlength=count)
    return list(torch.split(order, sizes.tolist()))


def _check_clients(num_clients: int, available: int, what: str) -> None:
    if not 1 <= num_clients <= available:
        raise EpisodeError(
            f"{num_clients} clients cannot share {available} {what}: use 1 to {available} clients."
        )


def _codes(values: Column) -> Tensor:
    """Return the values as numbers 0 … k-1 in their sorted order, int64 `[examples]`."""
    return torch.from_numpy(_unique(values)[1].astype(np.int64))


def _unique(values: Column) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    """Return the different values, sorted, and the position of each value among them."""
    if isinstance(values, Tensor):
        values = values.cpu().numpy()
    values = values if isinstance(values, np.ndarray) else list(values)
    return np.unique(values, return_inverse=True)
