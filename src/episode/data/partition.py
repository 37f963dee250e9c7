"""How one dataset is dealt out to clients. Each rule is a pure function of labels and a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from episode.errors import EpisodeError
from episode.randomness import permutation


def by_similarity(labels: Tensor, num_clients: int, similarity: float, seed: int) -> list[Tensor]:
    """The paper's rule: s% of the data uniformly, the rest sorted by label, in contiguous blocks.

    Returns the indices of each client's examples. All clients have equally many, and no example
    is dealt twice; what does not divide evenly (fewer than 2N examples) is left out, chosen by the
    seed. s = 100 is homogeneous, s = 0 the most heterogeneous.
    """
    if not 0 <= similarity <= 100:
        raise EpisodeError(f"similarity is {similarity}: it is a percentage, from 0 to 100.")
    if not 1 <= num_clients <= len(labels):
        raise EpisodeError(
            f"{num_clients} clients cannot share {len(labels)} examples: "
            f"use from 1 to {len(labels)} clients."
        )
    order = permutation(len(labels), seed, "partition")
    shared = round(len(labels) * similarity / 100)
    shared -= shared % num_clients
    uniform, rest = order[:shared], order[shared:]
    rest = rest[: len(rest) - len(rest) % num_clients]
    rest = rest[torch.argsort(labels[rest], stable=True)]
    return [
        torch.cat([uniform[c::num_clients], block])
        for c, block in enumerate(rest.view(num_clients, len(rest) // num_clients))
    ]
