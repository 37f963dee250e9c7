"""The model, a site's data and the loss: nothing here knows of Flower's messages or of EPISODE."""

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Sequential):
    """Two layers for 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def load_data(context: Context, split: str = "train") -> tuple[Tensor, Tensor]:
    """The digits of one site: those whose label is its number, modulo the number of sites."""
    site, sites = context.node_config["partition-id"], context.node_config["num-partitions"]
    inputs, labels = all_data(split)
    mine = labels % int(sites) == int(site)
    return inputs[mine], labels[mine]


def all_data(split: str) -> tuple[Tensor, Tensor]:
    """Everybody's: every fifth digit is for testing."""
    data = load_digits()
    inputs = torch.tensor(data.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    chosen = test if split == "test" else ~test
    return inputs[chosen], labels[chosen]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The batch's mean loss."""
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Loss and accuracy."""
    with torch.no_grad():
        scores = model.eval()(data[0])
    return {
        "loss": F.cross_entropy(scores, data[1]).item(),
        "accuracy": (scores.argmax(1) == data[1]).float().mean().item(),
    }
