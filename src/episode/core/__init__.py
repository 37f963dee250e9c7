"""The paper, on tensors. Imports torch and the standard library only."""

from episode.core.adamw import AdamW
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
from episode.core.fed_opt import FedOpt, ServerAdagrad, ServerAdam, ServerYogi
from episode.core.schedule import Schedule
from episode.core.server_step import (
    SERVER_STEPS,
    ServerAdamW,
    ServerMean,
    ServerSGD,
    ServerStep,
)
from episode.core.trust import TRUSTS, FullTrust, MeasuredTrust, Trust

__all__ = [
    "ALGORITHMS",
    "CLIPPINGS",
    "CORRECTIONS",
    "DESCENTS",
    "EPS",
    "SERVER_STEPS",
    "TRUSTS",
    "AdamW",
    "Algorithm",
    "Clipping",
    "Correction",
    "Descent",
    "Episodic",
    "FedOpt",
    "FullTrust",
    "Guarded",
    "MeasuredTrust",
    "PerStep",
    "Remembered",
    "Resampled",
    "Schedule",
    "ServerAdagrad",
    "ServerAdam",
    "ServerAdamW",
    "ServerMean",
    "ServerSGD",
    "ServerStep",
    "ServerYogi",
    "Synchronous",
    "Trust",
    "Unclipped",
    "Uncorrected",
]
