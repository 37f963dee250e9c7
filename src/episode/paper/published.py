"""The numbers that the paper publishes, which our tables show beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Case(NamedTuple):
    """One case that the paper tests: a row of its tables, or a curve in its figures."""

    algorithm: str
    local_steps: int
    """I, the number of local steps that a client takes in a round."""
    similarity: float
    """s, the similarity of the clients' data in percent."""


StepsAndSimilarity = tuple[int, float]
"""I and s."""


def pairs(
    ours: str, others: Sequence[str], settings: Sequence[StepsAndSimilarity]
) -> list[tuple[Case, Case]]:
    """Pair an algorithm with each of the others in every setting."""
    return [(Case(ours, i, s), Case(other, i, s)) for i, s in settings for other in others]


def _by_case(
    algorithms: Sequence[str], table: Mapping[StepsAndSimilarity, Sequence[T]]
) -> dict[Case, T]:
    """Look up by case what a table lists by setting, with one entry for each algorithm."""
    return {
        Case(algorithm, i, s): entry
        for (i, s), row in table.items()
        for algorithm, entry in zip(algorithms, row, strict=True)
    }


PARALLEL = "naive_parallel_clip"
NAMES = {
    PARALLEL: "NaiveParallelClip",
    "celgc": "CELGC",
    "episode": "EPISODE",
    "scaffold_clipped": "SCAFFOLD (clipped)",
    "episode_unclipped": "EPISODE (unclipped)",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
}
"""The names of algorithms as the paper writes them."""

SNLI_PARALLEL = (0.357, 82.4)
"""Training loss and test accuracy of NaiveParallelClip, for every I and s."""

CLIPPED = ("celgc", "episode", "scaffold_clipped")
UNCLIPPED = ("episode_unclipped", "fedavg", "scaffold")
SNLI_ABLATION = _by_case(
    (*CLIPPED, *UNCLIPPED),
    {
        (2, 30): ((0.579, 75.9), (0.361, 82.3), (0.445, 80.5),
                  (4.51, 33.3), (1.56, 32.8), (1.23, 34.1)),
        (4, 30): ((0.564, 77.2), (0.399, 81.7), (0.440, 80.7),
                  (9.82, 33.0), (1.14, 32.8), (4.39, 32.8)),
        (8, 30): ((0.539, 78.0), (0.431, 81.1), (0.512, 77.1),
                  (8.02, 34.3), (1.25, 32.7), (10.86, 32.8)),
        (16, 30): ((0.525, 78.3), (0.534, 77.8), (0.597, 75.7),
                   (4.71, 33.0), (3.45, 32.7), (4.87, 32.7)),
        (4, 50): ((0.490, 79.1), (0.385, 82.1), (0.436, 80.7),
                  (9.08, 34.3), (4.81, 32.8), (2.40, 32.9)),
        (4, 10): ((0.667, 73.3), (0.404, 81.5), (0.438, 80.7),
                  (8.54, 33.0), (1.89, 34.3), (5.61, 34.3)),
    },
)  # fmt: skip
"""Training loss and test accuracy in percent."""
SNLI_SETTINGS = tuple(dict.fromkeys((c.local_steps, c.similarity) for c in SNLI_ABLATION))
"""The pairs of I and s."""

SNLI_TARGETS = (70.0, 75.0, 80.0)
SNLI_PARALLEL_MINUTES = (37.30, 59.69, 118.45)
SNLI_MINUTES: dict[Case, tuple[float | None, ...]] = _by_case(
    ("celgc", "episode"),
    {
        (2, 30): ((33.57, 63.98, None), (27.20, 38.07, 70.60)),
        (4, 30): ((23.84, 42.51, None), (18.34, 25.73, 55.15)),
        (8, 30): ((20.37, 34.06, None), (13.98, 22.43, 53.43)),
        (16, 30): ((16.57, 27.00, None), (21.26, 28.39, None)),
        (4, 50): ((18.52, 31.86, None), (18.37, 25.71, 47.76)),
        (4, 10): ((39.75, None, None), (18.46, 29.71, 55.92)),
    },
)
"""Minutes to 70, 75 and 80% test accuracy on eight V100 GPUs."""

IMAGE_ALGORITHMS = ("fedavg", "celgc", "scaffold", "episode")
IMAGENET = _by_case(
    IMAGE_ALGORITHMS,
    {
        (64, 70): ((1.010, 74.89), (1.016, 74.89), (1.024, 74.92), (0.964, 75.20)),
        (64, 60): ((0.990, 74.73), (0.979, 74.51), (0.983, 74.68), (0.945, 74.95)),
        (64, 50): ((0.955, 74.53), (0.951, 74.12), (0.959, 74.19), (0.916, 74.81)),
        (128, 60): ((1.071, 74.15), (1.034, 74.24), (1.071, 74.03), (1.016, 74.36)),
    },
)
"""Training loss and test accuracy in percent."""
IMAGENET_SETTINGS = tuple(dict.fromkeys((c.local_steps, c.similarity) for c in IMAGENET))
