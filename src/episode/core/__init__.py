"""The paper, on tensors. Imports torch and the standard library only."""

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.clipping import CLIPPINGS, EPS, Clipping, Episodic, Guarded, PerStep, Unclipped
from episode.core.correction import (
    CORRECTIONS,
    Correction,
    Remembered,
    Resampled,
    Synchronous,
    Uncorrected,
)
from episode.core.descent import DESCENTS, Descent
from episode.core.schedule import Schedule

__all__ = [
    "ALGORITHMS",
    "CLIPPINGS",
    "CORRECTIONS",
    "DESCENTS",
    "EPS",
    "Algorithm",
    "Clipping",
    "Correction",
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
