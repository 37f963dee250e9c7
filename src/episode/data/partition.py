"""How one dataset is dealt out to clients. Each rule is a pure function of labels and a seed.

Labels and users may be a tensor, an array, a list or a column of a Hugging Face dataset, of numbers
or strings. A rule returns the indices of each client's examples; `select` takes those examples
from tensors, a Hugging Face dataset or any map-style dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Subset

from episode.errors import EpisodeError
from episode.randomness import generator, permutation

Column = Any
"""One value per example."""


def by_similarity(labels: Column, num_clients: int, similarity: float, seed: int) -> list[Tensor]:
    """The paper's rule: s% of the data uniformly, the rest sorted by label, in contiguous blocks.

    Returns the indices of each client's examples. All clients have equally many, and no example
    is dealt twice; what does not divide evenly (fewer than 2N examples) is left out, chosen by the
    seed. s = 100 is homogeneous, s = 0 the most heterogeneous.
    """
    codes = _codes(labels)
    return _deal_sorted(codes, num_clients, similarity, seed, "examples")


def by_user_similarity(
    users: Column, labels: Column, num_clients: int, similarity: float, seed: int
) -> list[Tensor]:
    """The paper's rule for Sentiment140: users are dealt out, and bring all their examples.

    s% of the users go uniformly, the rest sorted by their mean label (their share of positive
    tweets), in contiguous blocks. Clients have equally many users, so unequally many examples;
    fewer than 2N users are left out, chosen by the seed.
    """
    owner = _codes(users)
    values = _codes(labels).double()
    if len(owner) != len(values):
        raise EpisodeError(f"There are {len(owner)} users for {len(values)} labels: give one each.")
    count = torch.bincount(owner)
    share = torch.zeros(len(count), dtype=torch.float64).index_add_(0, owner, values) / count
    dealt = _deal_sorted(share, num_clients, similarity, seed, "users")
    client_of = torch.full((len(count),), -1)
    for client, chosen in enumerate(dealt):
        client_of[chosen] = client
    return _groups(client_of[owner], num_clients)


def by_dirichlet(
    labels: Column, num_clients: int, alpha: float, seed: int, minimum: int = 1
) -> list[Tensor]:
    """Each label's examples are shared out in proportions drawn from Dirichlet(α, …, α).

    Every example is dealt once. A small α gives clients of few labels and very different sizes;
    proportions are drawn again until every client has at least `minimum` examples.
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
        f"With alpha {alpha}, no draw of 1,000 gave each of {num_clients} clients {minimum} "
        "examples: use a larger alpha or fewer clients."
    )


def by_id(ids: Column) -> list[Tensor]:
    """One client per natural id (a hospital, a writer), in the ids' sorted order."""
    codes = _codes(ids)
    return _groups(codes, int(codes.max()) + 1 if len(codes) else 0)


def by_label_count(
    labels: Column, num_clients: int, labels_per_client: int, seed: int
) -> list[Tensor]:
    """The pathological split: each client has examples of exactly k labels, drawn at random.

    A client draws among the labels that the fewest clients have so far; the clients that have a
    label share all its examples equally (to one). Labels are left out if there are more than N·k.
    """
    if labels_per_client < 1:
        raise EpisodeError(f"labels_per_client is {labels_per_client}: it must be 1 or more.")
    codes = _codes(labels)
    _check_clients(num_clients, len(codes), "examples")
    present = torch.bincount(codes)
    if labels_per_client > len(present):
        raise EpisodeError(
            f"labels_per_client is {labels_per_client}, but there are only {len(present)} labels."
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
            f"{np.unique(_array(labels))[scarce]}: use fewer clients or labels_per_client."
        )
    order = permutation(len(codes), seed, "partition")
    members = torch.split(order[torch.argsort(codes[order], stable=True)], present.tolist())
    shares = [
        iter(torch.tensor_split(examples, max(1, count)))
        for examples, count in zip(members, holders.tolist(), strict=True)
    ]
    return [torch.cat([next(shares[label]) for label in own]) for own in owned]


def select(dataset: Any, parts: Sequence[Tensor]) -> list[Any]:
    """One dataset per client: of the same kind for tensors and Hugging Face datasets."""
    if isinstance(dataset, (tuple, list)) and all(isinstance(t, Tensor) for t in dataset):
        return [tuple(t[part.to(t.device)] for t in dataset) for part in parts]
    if isinstance(dataset, Tensor):
        return [dataset[part.to(dataset.device)] for part in parts]
    if hasattr(dataset, "select"):  # Hugging Face: a view by indices, nothing is copied
        return [dataset.select(part.tolist()) for part in parts]
    return [Subset(dataset, part.tolist()) for part in parts]


def count_labels(labels: Column, parts: Sequence[Tensor]) -> tuple[list[str], Tensor]:
    """The labels' names and how many of each a client has, `[clients, labels]`."""
    names, codes = np.unique(_array(labels), return_inverse=True)
    table = [np.bincount(codes[part.numpy()], minlength=len(names)) for part in parts]
    return [str(name) for name in names], torch.from_numpy(np.stack(table))


def _deal_sorted(
    values: Tensor, num_clients: int, similarity: float, seed: int, what: str
) -> list[Tensor]:
    """s% uniformly, the rest sorted by value, in contiguous blocks of equal size."""
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
    """Indices by group, each in ascending order; a group below 0 is left out."""
    order = torch.argsort(group_of, stable=True)
    order = order[int((group_of < 0).sum()) :]
    sizes = torch.bincount(group_of[group_of >= 0], minlength=count)
    return list(torch.split(order, sizes.tolist()))


def _check_clients(num_clients: int, available: int, what: str) -> None:
    if not 1 <= num_clients <= available:
        raise EpisodeError(
            f"{num_clients} clients cannot share {available} {what}: "
            f"use from 1 to {available} clients."
        )


def _codes(values: Column) -> Tensor:
    """The values as numbers 0 … k-1 in their sorted order, int64 `[examples]`."""
    return torch.from_numpy(np.unique(_array(values), return_inverse=True)[1].astype(np.int64))


def _array(values: Column) -> npt.NDArray[Any]:
    if isinstance(values, Tensor):
        return values.cpu().numpy()
    return np.asarray(values if isinstance(values, np.ndarray) else list(values))
