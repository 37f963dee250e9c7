"""The paper; tensors only. Imports torch and the standard library (and our errors)."""

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.clipping import CLIPPINGS, EPS, Episodic, Guarded, PerStep, Unclipped
from episode.core.correction import CORRECTIONS, Remembered, Resampled, Synchronous, Uncorrected
from episode.core.descent import Descent
from episode.core.schedule import Schedule

__all__ = [
    "ALGORITHMS",
    "CLIPPINGS",
    "CORRECTIONS",
    "EPS",
    "Algorithm",
    "Descent",
    "Episodic",
    "Guarded",
    "PerStep",
    "Remembered",
    "Resampled",
    "Schedule",
    "Synchronous",
    "Unclipped",
    "Uncorrected",
]
