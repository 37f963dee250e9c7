"""A LoRA run against a plain PyTorch loop: peak memory, time per gradient, and files.

    python benchmarks/lora.py

Both sides train adapters of the same frozen transformer on the same batches, in one run of this
program. The plain loop has as many copies of the adapters as `fit` has workers, each on a thread of
its own; memory is the peak of a process of its own, above what it held before the model was made.
A bare gradient has as many threads within torch as `fit` has workers. Times are medians of
alternating repeats, so that other load meets all.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import episode
from episode import ALGORITHMS, NeuralTask, Schedule
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState

CLIENTS, STEPS, BATCH, LENGTH, WORDS = 4, 4, 8, 64, 8000
BARS = {"memory": 1.3, "time": 1.1, "files": 3.0}
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")
Silo = tuple[Tensor, Tensor]


def new_model() -> nn.Module:
    """Return a transformer with dropout whose adapters and classifier are trained."""
    torch.manual_seed(0)
    base = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
            intermediate_size=1024, max_position_embeddings=LENGTH, num_labels=3,
        )
    )  # fmt: skip
    config = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])
    return get_peft_model(base, config)


def silos() -> list[Silo]:
    """Return each client's sequences and labels."""
    g = torch.Generator().manual_seed(0)
    size = BATCH * STEPS
    return [
        (torch.randint(WORDS, (size, LENGTH), generator=g), torch.randint(3, (size,), generator=g))
        for _ in range(CLIENTS)
    ]


def loss(model: nn.Module, batch: Silo) -> Tensor:
    """Return the mean cross entropy of a batch."""
    found: Tensor = model(input_ids=batch[0], labels=batch[1]).loss
    return found


def replicas(model: nn.Module, count: int) -> list[nn.Module]:
    """Return models that share one frozen base and have adapters of their own."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return [copy.deepcopy(model, dict(frozen)).train() for _ in range(count)]


def plain(models: list[nn.Module], rounds: int) -> None:
    """Train the adapters with FedAvg: each model serves a client at a time, on its own thread."""
    x = [p.detach().clone() for p in models[0].parameters() if p.requires_grad]
    with ThreadPoolExecutor(len(models), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in range(rounds):
            data, total = silos(), [torch.zeros_like(p) for p in x]
            for first in range(0, CLIENTS, len(models)):
                served = data[first : first + len(models)]
                for own in pool.map(local_steps, models, [x] * len(models), served):
                    torch._foreach_add_(total, own, alpha=1 / CLIENTS)
            x = total


def local_steps(model: nn.Module, x: list[Tensor], silo: Silo) -> list[Tensor]:
    """Return the adapter after some steps of SGD from x."""
    own = [p for p in model.parameters() if p.requires_grad]
    torch._foreach_copy_([p.detach() for p in own], x)
    for batch in zip(*(part.split(BATCH) for part in silo), strict=True):
        gradient = torch.autograd.grad(loss(model, batch), own)
        torch._foreach_add_([p.detach() for p in own], gradient, alpha=-0.01)
    return [p.detach() for p in own]


def fit(model: nn.Module, workers: int, folder: Path | None = None) -> episode.Run:
    """Play one such round with `episode.fit`."""
    return episode.fit(
        model, silos(), loss, eta=0.01, algorithm="fedavg", local_steps=STEPS, rounds=1,
        batch_size=BATCH, workers=workers, folder=folder,
    )  # fmt: skip


def peak() -> int:
    """Return the most memory that this process has held, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def memory_of(side: str, workers: int) -> int:
    """Measure one side in a process of its own, after both have imported the same."""
    command = [sys.executable, __file__, "--side", side, "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def measure_side(side: str, workers: int) -> None:
    """Print how much memory one side needs beyond the imported libraries."""
    before = peak()
    model = new_model()
    torch.set_num_threads(1)
    if side == "plain":
        plain(replicas(model, workers), 1)
    else:
        fit(model, workers)
    print(peak() - before)


def bare(model: nn.Module, threads: int) -> None:
    """Compute the gradients of a round, and nothing else."""
    torch.set_num_threads(threads)
    own = [p for p in model.parameters() if p.requires_grad]
    for silo in silos():
        for batch in zip(*(part.split(BATCH) for part in silo), strict=True):
            torch.autograd.grad(loss(model, batch), own)


def times_of(workers: int, repeats: int) -> tuple[float, float, float]:
    """Return seconds per gradient: of `fit`, bare, and of the plain loop with as many threads.

    With one worker it is the time of the processor, which other load changes less.
    """
    model, count = new_model(), CLIENTS * STEPS
    models, clock = (
        replicas(model, workers),
        time.perf_counter if workers > 1 else time.process_time,
    )
    ours, alone, theirs = list[float](), list[float](), list[float]()
    for _ in range(repeats):
        began = clock()
        bare(models[0], workers)
        alone.append((clock() - began) / count)
        torch.set_num_threads(1)
        began = clock()
        plain(models, 1)
        theirs.append((clock() - began) / count)
        task = NeuralTask(model, silos(), loss, batch_size=BATCH)
        with closing(Simulation(task, ALGORITHMS["fedavg"], workers)) as engine:
            server = ServerState(*task.initial())
            rounds = Rounds(Plan(ALGORITHMS["fedavg"], Schedule(0.01, 1.0), 1, STEPS), task, engine)
            began = clock()
            rounds.play(server)
            ours.append((clock() - began) / count)
    return statistics.median(ours), statistics.median(alone), statistics.median(theirs)


def file_ratio() -> float:
    """Return the largest file of a run of EPISODE, as a multiple of what is trained."""
    model = new_model()
    with tempfile.TemporaryDirectory() as place:
        fit(model, 1, Path(place) / "run")
        sizes = [p.stat().st_size for p in Path(place).rglob("*.safetensors")]
    return max(sizes) / sum(p.nbytes for p in model.parameters() if p.requires_grad)


def main() -> None:
    """Print each figure, its bar and whether it is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=["plain", "fit"], help="measure the memory of one side")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.side:
        measure_side(chosen.side, chosen.workers)
        return
    for workers in range(1, chosen.workers + 1):
        ours, theirs = (memory_of(side, workers) / 1e6 for side in ("fit", "plain"))
        show("memory", workers, ours / theirs, f"{ours:.0f} / {theirs:.0f} MB")
        ours, alone, theirs = (1e3 * seconds for seconds in times_of(workers, chosen.repeats))
        show("time", workers, ours / alone, f"{ours:.1f} / {alone:.1f} ms a bare gradient")
        print(f"        {workers} workers  {ours / theirs:5.2f}  of a plain loop ({theirs:.1f} ms)")
    show("files", 1, file_ratio(), "largest file / trained parameters")


def show(name: str, workers: int, ratio: float, what: str) -> None:
    """Print a line."""
    verdict = "met" if ratio <= BARS[name] else "missed"
    bar = f"bar {BARS[name]:.1f}: {verdict}"
    print(f"{name:7} {workers} workers  {ratio:5.2f}  {bar}  ({what})", flush=True)


if __name__ == "__main__":
    main()
