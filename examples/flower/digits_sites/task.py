"""The model, the data of a site, and the loss: nothing here depends on EPISODE."""

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Sequential):
    """Network of two layers for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def load_data(context: Context, split: str = "train") -> tuple[Tensor, Tensor]:
    """Return the digits of one site: those whose label modulo the number of sites is its number."""
    site, sites = context.node_config["partition-id"], context.node_config["num-partitions"]
    inputs, labels = all_data(split)
    mine = labels % int(sites) == int(site)
    return inputs[mine], labels[mine]


def all_data(split: str) -> tuple[Tensor, Tensor]:
    """Return the digits of all sites; every fifth digit is for testing."""
    data = load_digits()
    inputs = torch.tensor(data.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    chosen = test if split == "test" else ~test
    return inputs[chosen], labels[chosen]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return loss and accuracy."""
    with torch.no_grad():
        scores = model.eval()(data[0])
    return {
        "loss": F.cross_entropy(scores, data[1]).item(),
        "accuracy": (scores.argmax(1) == data[1]).float().mean().item(),
    }
