"""The app of the server, which uses EPISODE like any other Flower strategy."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits_sites.task import Net, all_data, evaluate
from episode.flower import EpisodeStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate after each round, and save the model."""
    config = context.run_config
    strategy = EpisodeStrategy(
        "episode",
        eta=config["eta"],
        gamma=config["gamma"],
        local_steps=config["local-steps"],
        min_replies=config["min-replies"],
    )
    torch.manual_seed(0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-rounds"],
        evaluate_fn=on_all_test_data,
    )
    torch.save(result.arrays.to_torch_state_dict(), "digits_sites.pt")


def on_all_test_data(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate on the test data of all sites, which only the server of an example has."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord(evaluate(model, all_data("test")))
