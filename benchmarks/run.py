"""`make bench`: speed and memory, both sides of each ratio in one run, alternating.

    python benchmarks/run.py                 everything
    python benchmarks/run.py overhead pfl    only these

The machine's speed varies while it runs; so each figure is the median of ratios of neighbouring
measurements, with their quartiles. Writes a table to stdout and JSON to runs/bench.json.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from episode.core.algorithm import ALGORITHMS, Algorithm
from episode.core.schedule import Schedule
from episode.engines.allocator import keep_freed_memory
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.models.resnet import Norm, ResNet
from episode.models.tanh_rnn import TanhRNN
from episode.paper.synthetic import synthetic_paths
from episode.runs.folder import environment
from episode.tasks.neural import NeuralTask
from workloads import BIRNN, LSTM, MLP, Workload, loss

CLIENTS, LOCAL_STEPS = 8, 8
OUTPUT = Path("runs/bench.json")


@dataclass(frozen=True)
class Figure:
    """A measured figure, its quartiles, and what it should be."""

    name: str
    median: float
    low: float
    high: float
    target: str
    met: bool | None


class Ours:
    """Rounds of one algorithm on the simulation engine."""

    def __init__(
        self,
        workload: Workload,
        algorithm: str | Algorithm,
        workers: int,
        gamma: float = 1e-3,
        clients: int = 8,
    ) -> None:
        torch.manual_seed(0)
        self.task = NeuralTask(
            workload.make_model(),
            workload.clients(clients, LOCAL_STEPS),
            loss,
            batch_size=workload.batch_size,
        )
        chosen = Algorithm.named(algorithm)
        plan = Plan(chosen, Schedule(1e-3, gamma), 10**9, LOCAL_STEPS)
        self.engine = Simulation(self.task, chosen, workers)
        self.server = ServerState(*self.task.initial())
        self.rounds = Rounds(plan, self.task, self.engine)

    def __call__(self) -> int:
        """One round; returns how many gradients it took."""
        before = self.server.counts.gradients
        self.rounds.play(self.server)
        return self.server.counts.gradients - before

    def close(self) -> None:
        """Ends the engine's threads."""
        self.engine.close()


def bare(workload: Workload, clients: int, count: int) -> Callable[[], int]:
    """`count` forward and backward passes over as many batches, prepared, and nothing else."""
    model = workload.make_model()
    parameters = list(model.parameters())
    batches = [
        batch
        for x, y in workload.clients(clients, LOCAL_STEPS)
        for batch in zip(x.split(workload.batch_size), y.split(workload.batch_size), strict=True)
    ]

    def run() -> int:
        for k in range(count):
            torch.autograd.grad(loss(model, batches[k % len(batches)]), parameters)
        return count

    return run


def rate(run: Callable[[], int], clock: Callable[[], float]) -> float:
    """Gradients (or steps) per second of one call."""
    started = clock()
    count = run()
    return count / (clock() - started)


def compare(
    ours: Callable[[], int],
    theirs: Callable[[], int],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """How many times faster ours is, in neighbouring measurements, alternating who goes first.

    Where both sides are one thread, `time.process_time` leaves out what other processes took.
    """
    ours(), theirs()
    ratios = []
    for k in range(repetitions):
        if k % 2:
            a, b = rate(ours, clock), rate(theirs, clock)
        else:
            b, a = rate(theirs, clock), rate(ours, clock)
        ratios.append(a / b)
    return ratios


def figure(
    name: str, values: list[float], at_most: float | None = None, at_least: float | None = None
) -> Figure:
    """Median and quartiles against a target."""
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    if at_most is not None:
        return Figure(name, median, low, high, f"<= {at_most:g}", median <= at_most)
    if at_least is not None:
        return Figure(name, median, low, high, f">= {at_least:g}", median >= at_least)
    return Figure(name, median, low, high, "", None)


def overhead() -> Iterator[Figure]:
    """CPU time over the bare gradients that the algorithm needs, one worker, in percent."""
    for workload, limit, clients, repetitions in (
        (MLP, 25, 8, 60),
        (LSTM, 3, 1, 40),
        (BIRNN, 3, 1, 40),
    ):
        for label, algorithm, gamma in (
            ("fedavg", "fedavg", 1.0),
            ("scaffold", "scaffold", 1.0),
            ("episode, unclipped rounds", "episode", 1e9),
            ("episode, clipped rounds", "episode", 1e-9),
        ):
            ours = Ours(workload, algorithm, 1, gamma, clients)
            ratios = compare(ours, bare(workload, clients, ours()), repetitions, time.process_time)
            ours.close()
            percent = [100 * (1 / r - 1) for r in ratios]
            target = limit if algorithm == "episode" else None
            yield figure(f"overhead %: {workload.name}, {label}", percent, at_most=target)


def trust() -> Iterator[Figure]:
    """What measured trust adds to a round, in percent of its bare gradients: LSTM, one worker."""
    measured = Ours(LSTM, "episode_trust", 1, clients=1)
    full = Ours(LSTM, Algorithm.named("episode_trust", trust="full"), 1, clients=1)
    runs: list[Callable[[], int]] = [measured, full, bare(LSTM, 1, measured())]
    percent = []
    for k in range(41):
        turn = [k % 3, (k + 1) % 3, (k + 2) % 3]
        seconds = {j: 1 / rate(runs[j], time.process_time) for j in turn}
        percent.append(100 * (seconds[0] - seconds[1]) / seconds[2])
    measured.close(), full.close()
    yield figure("measured trust, % of bare gradients: LSTM 2x256", percent[1:], at_most=8)


def rnn() -> Iterator[Figure]:
    """Gradients per second of a tanh recurrence, against torch's own; one thread."""
    for name, steps, inputs in (("digits", 16, 4), ("pixels", 64, 1), ("SNLI", 25, 50)):
        ours, theirs = (_recurrence(make, steps, inputs) for make in (TanhRNN, torch.nn.RNN))
        ratios = compare(ours, theirs, 40, time.process_time)
        yield figure(f"tanh recurrence of 64, batch 32, ours / torch's: {name}", ratios)


def _recurrence(
    make: Callable[[int, int], torch.nn.Module], steps: int, inputs: int
) -> Callable[[], int]:
    model, sequence = make(inputs, 64), torch.randn(steps, 32, inputs)
    parameters = list(model.parameters())

    def run() -> int:
        for _ in range(30):
            torch.autograd.grad(model(sequence)[0].amax(0).sum(), parameters)
        return 30

    return run


def convolutions() -> Iterator[Figure]:
    """Gradients per second of residual networks, against torch's default layout; one thread."""
    for name, norm, batch in (("resnet8", "batch", 16), ("resnet18", "group", 32)):
        ours, theirs = (_residual(name, norm, batch, ours=ours) for ours in (True, False))
        ratios = compare(ours, theirs, 20, time.process_time)
        yield figure(f"{name} of width 8, batch {batch}, channels last / first", ratios)


def _residual(name: str, norm: Norm, batch: int, *, ours: bool) -> Callable[[], int]:
    model, images = ResNet(name, 10, width=8, norm=norm), torch.randn(batch, 3, 32, 32)
    parameters = list(model.parameters())

    def scores() -> torch.Tensor:
        if ours:
            return model(images)
        return model.head(model.stages(model.stem(images)).mean((2, 3)))

    def run() -> int:
        for _ in range(5):
            torch.autograd.grad(scores().square().sum(), parameters)
        return 5

    return run


def workers() -> Iterator[Figure]:
    """Two workers against one."""
    for workload, least, repetitions in ((LSTM, 1.7, 8), (BIRNN, None, 8), (MLP, None, 40)):
        two, one = Ours(workload, "episode", 2), Ours(workload, "episode", 1)
        ratios = compare(two, one, repetitions)
        two.close(), one.close()
        yield figure(f"two workers / one: {workload.name}", ratios, at_least=least)


def pfl() -> Iterator[Figure]:
    """Local steps per second against pfl 0.6.0, FedAvg, one process, one thread each."""
    from peer_pfl import run_rounds

    for workload, repetitions in ((MLP, 40), (LSTM, 12)):
        peer = run_rounds(
            workload.make_model,
            loss,
            workload.clients(CLIENTS, LOCAL_STEPS),
            batch_size=workload.batch_size,
            local_steps=LOCAL_STEPS,
            rounds=1,
            eta=1e-3,
        )
        for count in (1, 2):
            ours = Ours(workload, "fedavg", count)
            torch.set_num_threads(1)
            clock = time.process_time if count == 1 else time.perf_counter
            ratios = compare(ours, peer, repetitions, clock)
            ours.close()
            least = 1.0 if count == 1 else 1.7 if workload is LSTM else None
            name = f"ours, {count} worker{'s' * (count > 1)} / pfl: {workload.name}, fedavg"
            yield figure(name, ratios, at_least=least)


def memory() -> Iterator[Figure]:
    """What one more client of EPISODE holds, in vectors of d, and its time as N grows."""
    peaks = {n: _peak_of(n) for n in (8, 64)}
    vectors = (peaks[64] - peaks[8]) / 56
    yield figure("memory per extra client, vectors of d: episode", [vectors], at_most=2.2)


def _peak_of(clients: int) -> float:
    """Peak resident memory of a process that plays two rounds, in vectors of d."""
    command = [sys.executable, __file__, "--peak", str(clients)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(clients: int) -> None:
    # A large d with tiny data, so that vectors are all that counts.
    d = 2_000_000
    model = torch.nn.Linear(d, 1, bias=False)
    data = [(torch.zeros(1, 1), torch.zeros(1)) for _ in range(clients)]
    algorithm = ALGORITHMS["episode"]
    task = NeuralTask(model, data, lambda m, b: m.weight.mean() + b[0].sum(), batch_size=1)
    engine = Simulation(task, algorithm, 1)
    rounds = Rounds(Plan(algorithm, Schedule(1e-3, 1e-3), 2, 2), task, engine)
    server = ServerState(*task.initial())
    rounds.play(server), rounds.play(server)
    engine.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / (4 * d))


def allocation() -> Iterator[Figure]:
    """A bare LSTM gradient with glibc's defaults, and as the engine sets them."""
    seconds: dict[str, list[float]] = {"default": [], "kept": []}
    for _ in range(5):
        for setting in seconds:
            command = [sys.executable, __file__, "--gradient", setting]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds[setting].append(float(done.stdout))
    ratios = [a / b for a, b in zip(seconds["default"], seconds["kept"], strict=True)]
    yield figure("bare gradient, default malloc / ours: LSTM 2x256", ratios)


def _print_gradient(setting: str) -> None:
    if setting == "kept":
        keep_freed_memory()
    run = bare(LSTM, 1, 16)
    run()
    print(1 / rate(run, time.process_time))


def scaling() -> Iterator[Figure]:
    """Time per client and round at N = 512 against N = 8."""
    small, large = Ours(MLP, "episode", 1, clients=8), Ours(MLP, "episode", 1, clients=512)

    def many() -> int:
        return sum(small() for _ in range(64))

    ratios = [1 / r for r in compare(large, many, 6)]
    small.close(), large.close()
    gc.collect()
    yield figure("time per client, N = 512 / N = 8: MLP, episode", ratios, at_most=1.2)


def synthetic_figure() -> Iterator[Figure]:
    """Seconds for the paper's whole synthetic figure."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        for algorithm in ("celgc", "episode"):
            synthetic_paths(algorithm)
        seconds.append(time.perf_counter() - started)
    yield figure("seconds: synthetic figure, 720 runs x 500 rounds", seconds, at_most=2.0)


def snli() -> Iterator[Figure]:
    """The SNLI model with two workers, as a share of bare gradients on two threads."""
    import snli as workload

    steps = workload.CLIENTS * workload.LOCAL_STEPS
    for algorithm in ("episode", "celgc"):
        ours = workload.SnliRounds(algorithm)
        gradients = ours()
        ratios = compare(ours, workload.bare(gradients), 30)
        rates = [steps / gradients * rate(ours, time.perf_counter) for _ in range(10)]
        ours.engine.close()
        yield figure(f"share of bare gradients: SNLI BiRNN 128, {algorithm}", ratios, at_least=0.85)
        yield figure(f"local steps per second: SNLI BiRNN 128, {algorithm}", rates)


def images() -> Iterator[Figure]:
    """A small ResNet on JPEG files, decoded ahead by threads, as a share of prepared batches."""
    import images as workload

    with workload.written() as files:
        ours = workload.Gradients(files)
        ratios = compare(ours, ours.prepared(), 20)
        yield figure("share of prepared batches: JPEGs of 64 x 64, ResNet-18 of width 8", ratios)


def monitor() -> Iterator[Figure]:
    """What watching a run adds to its CPU time, in percent: a small network, one worker.

    Its own code is a share of each round's time; two runs side by side show the rest, if any, but
    vary by more than they differ.
    """
    from monitored import DigitsRounds

    for algorithm in ("episode", "scaffold"):
        watched, alone = DigitsRounds(algorithm, True), DigitsRounds(algorithm, False)
        watched()
        shares = [watched.share() for _ in range(60)]
        yield figure(f"monitor's own code, % of CPU: digits, {algorithm}", shares, at_most=2)
        ratios = compare(watched, alone, 30, time.process_time)
        watched.close(), alone.close()
        percent = [100 * (1 / r - 1) for r in ratios]
        yield figure(f"watched / not watched, % more CPU: digits, {algorithm}", percent)


def silos() -> Iterator[Figure]:
    """What records of each client add to a round, in percent: 8 clients, LSTM, one worker.

    Their own code is a share of each round's time; two runs side by side show the rest, if any, but
    vary by more than they differ.
    """
    from silo_records import WrittenRounds

    kept, without = WrittenRounds(LSTM, True), WrittenRounds(LSTM, False)
    kept()
    shares = [kept.share() for _ in range(6)]
    yield figure("records of each client, % of CPU: LSTM 2x256", shares, at_most=2)
    ratios = compare(kept, without, 20, time.process_time)
    kept.close(), without.close()
    percent = [100 * (1 / r - 1) for r in ratios]
    yield figure("with / without records of each client, % more CPU", percent, at_most=2)


BENCHMARKS = {
    "overhead": overhead,
    "trust": trust,
    "rnn": rnn,
    "convolutions": convolutions,
    "workers": workers,
    "pfl": pfl,
    "snli": snli,
    "images": images,
    "allocation": allocation,
    "memory": memory,
    "scaling": scaling,
    "synthetic": synthetic_figure,
    "monitor": monitor,
    "silos": silos,
}


def main(names: list[str]) -> None:
    """Runs the named benchmarks, prints the table, writes the JSON."""
    if names[:1] == ["--peak"]:
        return _print_peak(int(names[1]))
    if names[:1] == ["--gradient"]:
        torch.set_num_threads(1)
        return _print_gradient(names[1])
    if wrong := set(names) - BENCHMARKS.keys():
        sys.exit(f"There is no benchmark {min(wrong)!r}: use {', '.join(BENCHMARKS)}.")
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for name in names or BENCHMARKS:
        for measured in BENCHMARKS[name]():
            met = {True: "met", False: "MISSED", None: ""}[measured.met]
            spread = f"({measured.low:.3g} to {measured.high:.3g})"
            line = f"{measured.name:<58} {measured.median:7.3g} {spread:<20} {measured.target:<8}"
            print(f"{line} {met}", flush=True)
            figures.append(measured)
    OUTPUT.parent.mkdir(exist_ok=True)
    report = {"environment": environment(), "figures": [asdict(f) for f in figures]}
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written to {OUTPUT}.")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
