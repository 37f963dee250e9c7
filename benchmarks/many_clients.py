"""Many clients against a thousand: time per round, resident memory, and time per checkpoint.

    python benchmarks/many_clients.py [CLIENTS]

100,000 clients by default, cohorts of 100, an MLP of 8,035 parameters. Clients' data are opened
when they are needed. Before the first round every client already has a memory, as late in a long
run. Rounds of both sides alternate in one process; memory is that of a process for each side, after
as many rounds (Linux). It takes about five minutes, and 4 GB of disk for temporary files.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from episode import LazyClients, Uniform
from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.job import Job
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ClientState, ServerState
from episode.runs.checkpoints import Checkpoints
from episode.runs.records import make_record
from episode.tasks.neural import NeuralTask

FEW, MANY, COHORT, LOCAL_STEPS, ROUNDS = 1_000, 100_000, 100, 8, 40
BARS = "bars: time 1.20, memory +300 MB"


def open_client(client: int) -> tuple[Tensor, Tensor]:
    """64 examples of 64 numbers, drawn anew each time."""
    generator = torch.Generator().manual_seed(client)
    return (
        torch.randn(64, 64, generator=generator),
        torch.randint(10, (64,), generator=generator),
    )


class Memories(Mapping[int, ClientState]):
    """A memory for each client, made when it is asked for."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size

    def __getitem__(self, client: int) -> ClientState:
        return ClientState(memory=torch.full((self._size,), 1e-3 * client / self._count))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def __len__(self) -> int:
        return self._count


class Side:
    """Rounds of one algorithm with one number of clients, in a folder of their own."""

    def __init__(self, algorithm: str, clients: int, folder: Path) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 107), nn.ReLU(), nn.Linear(107, 10))
        task = NeuralTask(
            model,
            LazyClients(clients, open_client),
            lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
            batch_size=32,
        )
        schedule, cohorts = Schedule(1e-2, 1e-1), Uniform(COHORT)
        plan = Plan(ALGORITHMS[algorithm], schedule, 10**9, LOCAL_STEPS, 0, cohorts)
        job = Job(plan, task, config={}, folder=folder)
        (folder / "checkpoint").mkdir(parents=True)
        self._checkpoints = Checkpoints(folder / "checkpoint" / "state.safetensors", job)
        self._engine = Simulation.make(job)
        self._server = ServerState(*task.initial())
        remembers = plan.algorithm.correction.remembers
        states = Memories(clients, self._server.x.numel()) if remembers else {}
        self._engine.load_client_states(states)
        self._rounds = Rounds(plan, task, self._engine)
        self.checkpoint()  # the first one names them all
        self.play()

    def play(self) -> tuple[float, float]:
        """Play one round; return its seconds by the clock and of CPU time."""
        started = time.perf_counter(), time.process_time()
        make_record(self._rounds.play(self._server), self._server)
        return time.perf_counter() - started[0], time.process_time() - started[1]

    def checkpoint(self) -> float:
        """Write a checkpoint; return its seconds."""
        started = time.perf_counter()
        self._checkpoints.write(self._server, self._engine.client_states())
        return time.perf_counter() - started

    def close(self) -> None:
        """End the engine's threads."""
        self._engine.close()


def compare(algorithm: str, many: int) -> None:
    """Print the lines of one algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side(algorithm, n, Path(folder) / str(n)) for n in (FEW, many)]
        played: list[list[tuple[float, float]]] = [[], []]
        for k in range(ROUNDS):
            for side in (0, 1) if k % 2 else (1, 0):
                played[side].append(sides[side].play())
        saved = [side.checkpoint() for side in sides]
        for side in sides:
            side.close()
    for place, clock in enumerate(("wall", "CPU")):
        few, lots = ([times[place] for times in side] for side in played)
        ratios = [b / a for a, b in zip(few, lots, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        few_ms, lots_ms = (1e3 * statistics.median(times) for times in (few, lots))
        print(
            f"{algorithm:<9} {clock:<4} time of a round: {few_ms:.0f} and {lots_ms:.0f} ms, "
            f"ratio of medians {lots_ms / few_ms:.3f}, "
            f"of neighbouring rounds {median:.3f} ({low:.3f} to {high:.3f})"
        )
    few_mb, lots_mb = (peak_memory(algorithm, n) for n in (FEW, many))
    print(
        f"{algorithm:<9} peak memory: {few_mb:.0f} and {lots_mb:.0f} MB, {lots_mb - few_mb:+.0f} MB"
    )
    print(
        f"{algorithm:<9} checkpoint after {ROUNDS} rounds: {1e3 * saved[0]:.0f} and "
        f"{1e3 * saved[1]:.0f} ms",
        flush=True,
    )


def peak_memory(algorithm: str, clients: int) -> float:
    """Return the largest resident size, in MB, of a process that plays as many rounds."""
    command = [sys.executable, __file__, "--memory", algorithm, str(clients)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    return float(done.stdout)


def print_peak_memory(algorithm: str, clients: int) -> None:
    """Play the rounds of one side, and print what they took."""
    with tempfile.TemporaryDirectory() as folder:
        side = Side(algorithm, clients, Path(folder) / "run")
        for _ in range(ROUNDS):
            side.play()
        side.checkpoint()
        side.close()
    # Not getrusage: its maximum begins with that of the process that started this one.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024 / 1e6)


def main() -> None:
    """Print the table, or be one side of it."""
    if "--memory" in sys.argv:
        print_peak_memory(sys.argv[-2], int(sys.argv[-1]))
        return
    many = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    print(f"{many:,} clients against {FEW:,}, cohorts of {COHORT}, I = {LOCAL_STEPS} ({BARS})")
    for algorithm in ("scaffold", "episode"):
        compare(algorithm, many)


if __name__ == "__main__":
    main()
