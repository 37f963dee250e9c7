"""The paper's own numbers: what our tables stand beside."""

from __future__ import annotations

Setting = tuple[int, float]
"""(I, s)."""

NAMES = {
    "naive_parallel_clip": "NaiveParallelClip",
    "celgc": "CELGC",
    "episode": "EPISODE",
    "scaffold_clipped": "SCAFFOLD (clipped)",
    "episode_unclipped": "EPISODE (unclipped)",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
}
"""As the paper writes them."""

SNLI_SETTINGS: tuple[Setting, ...] = ((2, 30), (4, 30), (8, 30), (16, 30), (4, 50), (4, 10))

SNLI_PARALLEL = (0.357, 82.4)
"""NaiveParallelClip's training loss and test accuracy, for every I and s."""

_ORDER = ("celgc", "episode", "scaffold_clipped", "episode_unclipped", "fedavg", "scaffold")
_ABLATION: dict[Setting, tuple[tuple[float, float], ...]] = {
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
}  # fmt: skip
SNLI_ABLATION: dict[tuple[str, int, float], tuple[float, float]] = {
    (algorithm, i, s): figures
    for (i, s), row in _ABLATION.items()
    for algorithm, figures in zip(_ORDER, row, strict=True)
}
"""Training loss and test accuracy in percent, by algorithm, I and s."""

SNLI_TARGETS = (70.0, 75.0, 80.0)
SNLI_PARALLEL_MINUTES = (37.30, 59.69, 118.45)
SNLI_MINUTES: dict[tuple[str, int, float], tuple[float | None, ...]] = {
    ("celgc", 2, 30): (33.57, 63.98, None),
    ("episode", 2, 30): (27.20, 38.07, 70.60),
    ("celgc", 4, 30): (23.84, 42.51, None),
    ("episode", 4, 30): (18.34, 25.73, 55.15),
    ("celgc", 8, 30): (20.37, 34.06, None),
    ("episode", 8, 30): (13.98, 22.43, 53.43),
    ("celgc", 16, 30): (16.57, 27.00, None),
    ("episode", 16, 30): (21.26, 28.39, None),
    ("celgc", 4, 50): (18.52, 31.86, None),
    ("episode", 4, 50): (18.37, 25.71, 47.76),
    ("celgc", 4, 10): (39.75, None, None),
    ("episode", 4, 10): (18.46, 29.71, 55.92),
}
"""Minutes to 70, 75 and 80% of test accuracy on eight V100."""

IMAGENET_SETTINGS: tuple[Setting, ...] = ((64, 70), (64, 60), (64, 50), (128, 60))
IMAGENET: dict[tuple[str, int, float], tuple[float, float]] = {
    ("fedavg", 64, 70): (1.010, 74.89),
    ("celgc", 64, 70): (1.016, 74.89),
    ("scaffold", 64, 70): (1.024, 74.92),
    ("episode", 64, 70): (0.964, 75.20),
    ("fedavg", 64, 60): (0.990, 74.73),
    ("celgc", 64, 60): (0.979, 74.51),
    ("scaffold", 64, 60): (0.983, 74.68),
    ("episode", 64, 60): (0.945, 74.95),
    ("fedavg", 64, 50): (0.955, 74.53),
    ("celgc", 64, 50): (0.951, 74.12),
    ("scaffold", 64, 50): (0.959, 74.19),
    ("episode", 64, 50): (0.916, 74.81),
    ("fedavg", 128, 60): (1.071, 74.15),
    ("celgc", 128, 60): (1.034, 74.24),
    ("scaffold", 128, 60): (1.071, 74.03),
    ("episode", 128, 60): (1.016, 74.36),
}
