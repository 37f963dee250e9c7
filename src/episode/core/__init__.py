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
from episode.core.trust import TRUSTS, FullTrust, MeasuredTrust, Trust

__all__ = [
    "ALGORITHMS",
    "CLIPPINGS",
    "CORRECTIONS",
    "DESCENTS",
    "EPS",
    "TRUSTS",
    "Algorithm",
    "Clipping",
    "Correction",
    "Descent",
    "Episodic",
    "FullTrust",
    "Guarded",
    "MeasuredTrust",
    "PerStep",
    "Remembered",
    "Resampled",
    "Schedule",
    "Synchronous",
    "Trust",
    "Unclipped",
    "Uncorrected",
]
