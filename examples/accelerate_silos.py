"""A loop with accelerate over silos: each process is one of them.

    torchrun --nproc-per-node 2 examples/accelerate_silos.py

Give `prepare` the optimizer alone: a prepared model averages gradients (DistributedDataParallel),
and a prepared loader splits the data, which lie in silos already. Leave out `clip_grad_norm_`: the
optimizer clips. Parts of a batch, mixed precision and placement on devices are accelerate's.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from episode.optim import FederatedSGD
from trainer_silos import Silo, new_model


def train(model: nn.Module, silo: Silo, steps: int, parts: int = 2, batch: int = 16) -> None:
    """Train the model on one silo's data; each step is along the mean gradient of some parts."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    model.to(accelerator.device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = accelerator.prepare(FederatedSGD(trained, lr=0.5, gamma=0.2, local_steps=4))
    g = torch.Generator().manual_seed(0)
    for step in range(steps * parts):
        if step % parts == 0:
            chosen = torch.randperm(len(silo), generator=g)[:batch].chunk(parts)
        rows = chosen[step % parts]
        with accelerator.accumulate(model):
            found = model(input_ids=silo.words[rows], labels=silo.labels[rows])
            accelerator.backward(found.loss)
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    """Train on the silo of this process, and evaluate on all."""
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes < 2:
        raise SystemExit("Start it with: torchrun --nproc-per-node 2 examples/accelerate_silos.py")
    model = new_model()
    train(model, Silo(accelerator.process_index), steps=160)
    model.eval()
    correct = []
    for silo in map(Silo, range(accelerator.num_processes)):
        with torch.no_grad():
            correct.append(model(input_ids=silo.words).logits.argmax(1) == silo.labels)
    accelerator.print(f"{torch.cat(correct).float().mean():.1%} of all silos' examples are correct")
    accelerator.end_training()


if __name__ == "__main__":
    main()
