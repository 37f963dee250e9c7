"""The Trainer and accelerate on two ranks, with whole silos as batches: the numbers of `fit`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import episode

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import accelerate_silos
import trainer_silos
from trainer_silos import Silo, alone, new_model

STEPS, SIZE = 8, 16
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")


def steady_model() -> nn.Module:
    model = new_model()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for module in model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return model


def vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def by_fit() -> torch.Tensor:
    run = episode.fit(
        steady_model(), [(s.words, s.labels) for s in (Silo(0, SIZE), Silo(1, SIZE))],
        lambda m, b: m(input_ids=b[0], labels=b[1]).loss, eta=0.5, gamma=0.2, local_steps=4,
        rounds=STEPS // 4, batch_size=SIZE,
        algorithm=episode.Algorithm.named("episode", reuse_probe=True),
    )  # fmt: skip
    return run.x


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    silo, rank = Silo(dist.get_rank(), SIZE), dist.get_rank()
    looped, trained = steady_model(), steady_model()
    before = vector(trained)
    accelerate_silos.train(looped, silo, STEPS, parts=2, batch=SIZE)
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    try:
        trainer_silos.train(steady_model(), silo, STEPS, output_dir=folder, max_grad_norm=1.0)
    except episode.EpisodeError as error:
        sys.stdout.write(f"rank {rank}: {error}\n")
    alone()
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    options = {"output_dir": folder, "per_device_train_batch_size": SIZE}
    trainer_silos.train(trained, silo, STEPS, **options)
    expected = by_fit() if rank == 0 else before
    for name, model in (("accelerate", looped), ("trainer", trained)):
        found = vector(model)
        apart = [torch.empty_like(found) for _ in range(2)]
        dist.all_gather(apart, found)
        if rank == 0:
            moved = (expected - before).norm()
            error = ((found - expected).norm() / moved).item()
            sys.stdout.write(f"{name}: error {error:.1e}, same {torch.equal(*apart)}\n")
    dist.destroy_process_group()


main(sys.argv[1])
