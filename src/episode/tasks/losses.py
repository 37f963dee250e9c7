"""Losses of classifiers, given scores `[batch, classes]` and labels `[batch]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

LossName = Literal["hinge", "cross_entropy"]


def multiclass_hinge(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return max_k (s_k + 1[k ≠ y] - s_y) (Crammer and Singer 2001), the paper's loss on SNLI.

    torch's MultiMarginLoss is different: it sums over the classes k instead of taking the maximum.
    """
    margins = torch.ones_like(scores).scatter_(1, labels[:, None], 0.0)
    own = scores.gather(1, labels[:, None])
    losses = (scores + margins - own).amax(1)
    return losses.mean() if reduction == "mean" else losses.sum()


LOSSES: dict[str, Callable[..., Tensor]] = {
    "hinge": multiclass_hinge,
    "cross_entropy": F.cross_entropy,
}
