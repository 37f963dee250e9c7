"""`FederatedSGD`: every algorithm of the grid as an optimizer for a loop under torchrun."""

from episode.optim.optimizer import FederatedSGD

__all__ = ["FederatedSGD"]
