"""Losses of classifiers, on scores `[batch, classes]` and labels `[batch]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

LossName = Literal["hinge", "cross_entropy"]


def multiclass_hinge(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """max_k (s_k + 1[k ≠ y] - s_y) (Crammer and Singer 2001), the paper's loss on SNLI.

    torch's MultiMarginLoss is another one: it sums over the classes k instead of the maximum.
    """
    margins = torch.ones_like(scores).scatter_(1, labels[:, None], 0.0)
    own = scores.gather(1, labels[:, None])
    losses = (scores + margins - own).amax(1)
    return losses.mean() if reduction == "mean" else losses.sum()


def cross_entropy(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """-log softmax(s)_y."""
    return F.cross_entropy(scores, labels, reduction=reduction)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "hinge": multiclass_hinge,
    "cross_entropy": cross_entropy,
}
