"""Let transformers.Trainer train an adapter over silos: each process is one of them.

    torchrun --nproc-per-node 2 examples/trainer_silos.py

`FederatedSGD` averages the model every `local_steps` steps. So the Trainer must neither average
gradients nor split the data, which it does if it knows of other processes; and it must not clip
gradients, which is what `max_grad_norm` does by default.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from episode import EpisodeError
from episode.optim import FederatedSGD


class Silo(Dataset[dict[str, torch.Tensor]]):
    """Sequences of ten words, most of them typical of their label; a silo has few labels."""

    def __init__(self, silo: int, size: int = 64) -> None:
        g = torch.Generator().manual_seed(silo)
        own = torch.rand(size, generator=g) < 0.8
        self.labels = torch.where(own, silo % 3, torch.randint(3, (size,), generator=g))
        self.words = torch.randint(20, (size, 10), generator=g) + 20 * self.labels[:, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def new_model() -> nn.Module:
    """Return a small transformer with an adapter, the same in every process."""
    torch.manual_seed(0)
    base = BertForSequenceClassification(
        BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16, num_labels=3,
        )
    )  # fmt: skip
    return get_peft_model(base, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"]))


class OneSilo(TrainerCallback):
    """Refuses what the optimizer cannot train with, before the first step."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the arguments."""
        if args.max_grad_norm:
            raise EpisodeError(
                f"max_grad_norm is {args.max_grad_norm}, so the Trainer would clip each gradient "
                "before the optimizer corrects it: set max_grad_norm=0."
            )
        if args.world_size > 1:
            raise EpisodeError(
                f"The Trainer knows of {args.world_size} processes and would average gradients: "
                "call alone() before TrainingArguments is made."
            )


def alone() -> None:
    """Hide torchrun's processes from the Trainer; the optimizer has its process group already."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def train(model: nn.Module, silo: Silo, steps: int, **changes: Any) -> None:
    """Train the model on one silo's data, together with the other processes."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = FederatedSGD(trained, lr=0.5, gamma=0.2, local_steps=4)
    values: dict[str, Any] = {
        "output_dir": "runs/trainer", "max_steps": steps, "per_device_train_batch_size": 16,
        "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_steps": 10**9,
    }  # fmt: skip
    Trainer(
        model,
        TrainingArguments(**{**values, **changes}),
        train_dataset=silo,
        optimizers=(optimizer, None),
        callbacks=[OneSilo()],
    ).train()


def main() -> None:
    """Train on the silo of this process, and evaluate on all."""
    if not dist.is_torchelastic_launched():
        raise SystemExit("Start it with: torchrun --nproc-per-node 2 examples/trainer_silos.py")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    alone()
    model = new_model()
    train(model, Silo(rank), steps=160)
    model.eval()
    correct = []
    for silo in map(Silo, range(size)):
        with torch.no_grad():
            correct.append(model(input_ids=silo.words).logits.argmax(1) == silo.labels)
    if rank == 0:
        print(f"{torch.cat(correct).float().mean():.1%} of all silos' examples are correct")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
