"""Data in the memory of each of two ranks, in percent of what the simulation holds.

    python benchmarks/rank_memory.py [CONFIG.toml ...]

Without configs: the digits in 8 clients, and text in 100 silos of 1 to 100 times 20 rows, made for
this purpose. Each process builds its task as a run does; the tensors and arrays that the task
refers to are then added up, without the model. Two ranks are started as torchrun starts them.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import prepared
from episode.tasks.neural import NeuralTask

BAR = 60


def bytes_of_data(task: NeuralTask) -> int:
    """Return the size of all tensors and arrays that a task refers to, without its model."""
    model = {p.untyped_storage().data_ptr() for p in task.model.state_dict().values()}
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    left: list[Any] = [vars(task)]
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, (type, types.ModuleType, torch.nn.Module)):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            storage = found.untyped_storage()
            if storage.data_ptr() not in model:
                sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(found, np.ndarray):
            owner = found if found.base is None else found.base
            sizes[id(owner)] = found.nbytes
        elif isinstance(found, types.FunctionType):  # not its globals, which are everybody's
            cells = [cell.cell_contents for cell in found.__closure__ or ()]
            left += [cells, found.__defaults__]
        else:
            left += gc.get_referents(found)
    return sum(sizes.values())


def report(config: str) -> None:
    """Build the task as this process of a run does, and print what it holds."""
    with prepared(lambda: Experiment.from_dict(json.loads(config))) as (_, job):
        assert isinstance(job.task, NeuralTask)
        clients = list(job.task.clients)
        examples = sum(job.task.examples(client) for client in clients)
        print(json.dumps([len(clients), examples, bytes_of_data(job.task)]))


def start(config: str, **place: str) -> subprocess.Popen[str]:
    """Start a process that reports on itself."""
    command = [sys.executable, __file__, "--report", config]
    environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def held(process: subprocess.Popen[str]) -> list[int]:
    """Return the clients, examples and bytes that a process reports."""
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        sys.exit(process.returncode)
    numbers: list[int] = json.loads(output.splitlines()[-1])
    return numbers


def compare(title: str, experiment: Experiment) -> None:
    """Print one line of the table."""
    config = json.dumps(experiment.to_dict())
    _, examples, whole = held(start(config))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [start(config, **place, MASTER_PORT=port, RANK=str(rank)) for rank in range(2)]
    shares = [held(rank) for rank in ranks]
    print(
        f"{title:<12} simulation {whole / 1e6:.1f} MB; "
        f"ranks {', '.join(f'{100 * b / whole:.1f}%' for _, _, b in shares)} of it, "
        f"with {', '.join(f'{100 * e / examples:.1f}%' for _, e, _ in shares)} of the examples "
        f"(bar: {BAR}%)"
    )


def write_silos(folder: Path) -> None:
    """Write 100 silos of text, with 20 to 2,000 rows each."""
    draw = random.Random(0)
    words = [f"word{k}" for k in range(2000)]
    sizes = list(range(1, 101))
    draw.shuffle(sizes)
    for silo, size in enumerate(sizes):
        rows = [f"{' '.join(draw.choices(words, k=20))},{k % 2}" for k in range(20 * size)]
        (folder / f"silo{silo:03}").mkdir(parents=True)
        (folder / f"silo{silo:03}" / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")


def main() -> None:
    """Print the table, or be one of its processes."""
    if "--report" in sys.argv:
        report(sys.argv[-1])
        return
    print("Data held by each of two ranks")
    if configs := [Path(name) for name in sys.argv[1:]]:
        for path in configs:
            compare(path.stem, read_experiment(path))
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ["EPISODE_HOME"] = home
        write_silos(Path(home) / "silos")
        digits = {"name": "digits", "num_clients": 8}
        silos = {"name": "silos", "data": str(Path(home) / "silos"), "hidden": 8}
        for task in (digits, silos):
            compare(str(task["name"]), Experiment.from_dict({"task": task}))


if __name__ == "__main__":
    main()
