"""A Flower project with FedAvg, to which the README's diff is applied."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    site = int(context.node_config["partition-id"])
    generator = torch.Generator().manual_seed(site)
    return torch.randn(64, 8, generator=generator) + site, torch.full((64,), site % 3)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    model, (inputs, labels) = Net(), load_data(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.randperm(len(labels)).split(int(context.run_config["batch-size"])):
        optimizer.zero_grad()
        value = loss(model, (inputs[rows], labels[rows]))
        value.backward()
        optimizer.step()
    metrics = MetricRecord({"loss": value.item(), "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, data = Net(), load_data(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        value = loss(model, data).item()
    metrics = MetricRecord({"loss": value, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg()
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=3)
    torch.save(result.arrays.to_torch_state_dict(), str(context.run_config["model"]))
