"""Train your own model on three silos: the README's ten lines, with an evaluation.

python examples/own_model.py
"""

import torch
from torch import nn
from torch.nn import functional as F

import episode

torch.manual_seed(0)
centres = torch.randn(3, 16)
silos = []
for silo in range(3):  # each silo sees mostly one of the classes
    labels = torch.where(torch.rand(200) < 0.8, silo, torch.randint(3, (200,)))
    silos.append((centres[labels] + torch.randn(200, 16), labels))

model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3))
everything = [torch.cat(parts) for parts in zip(*silos, strict=True)]
run = episode.fit(
    model,
    silos,
    loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    evaluate=lambda model: {
        "accuracy": (model(everything[0]).argmax(1) == everything[1]).float().mean()
    },
    algorithm="episode",
    eta=0.3,
    gamma=0.1,
    local_steps=8,
    rounds=30,
    batch_size=32,
)
for record in run.history[::5]:
    print(f"round {record['round']:2}  accuracy {record['metrics']['accuracy']:.3f}")
print(run.status, run.summary["metrics"])
