"""Make your own training loop federated by changing one line, the optimizer.

    torchrun --nproc-per-node 4 examples/train_with_optimizer.py

Each process is a silo with digits of its own, and all of them train one LSTM together.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from episode.optim import FederatedSGD


class Reader(nn.Module):
    """LSTM that reads a digit row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return scores `[batch, 10]`."""
        scores: torch.Tensor = self.head(self.lstm(rows)[0][:, -1])
        return scores


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # each silo draws its own batches, the same in every run
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 8 - 1
labels = torch.tensor(digits.target)
mine = labels[:1500].argsort().chunk(size)[rank]  # sorted by label, so silos differ

model = Reader()
optimizer = FederatedSGD(model.parameters(), lr=1.0, gamma=0.1, local_steps=8)  # the changed line
for step in range(1, 1201):
    batch = mine[torch.randint(len(mine), (64,))]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    if step % 300 == 0:
        with optimizer.averaged(), torch.no_grad():
            correct = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        if rank == 0:
            print(f"step {step}: {correct:.1%} of the test digits are correct")
dist.destroy_process_group()
