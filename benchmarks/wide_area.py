"""Time to a target over a wide-area link: EPISODE, CELGC and NaiveParallelClip, real processes.

    sudo .venv/bin/python benchmarks/wide_area.py            40 ms and 100 Mbit/s, two hosts
    sudo .venv/bin/python benchmarks/wide_area.py --hosts 4 --round-trip-ms 100

Hosts are network namespaces on this machine, and each is one client. The task is `digits` read by
an Elman network, the same 480 iterations for every algorithm. Writes run folders, a table
(Markdown) and a plot to runs/wide-area. Root on Linux; elsewhere it says so and stops.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from episode.results.figures import STYLES
from episode.results.store import read_rounds
from wide_area_link import WideAreaLink, why_not

ALGORITHMS = ("episode", "celgc", "naive_parallel_clip")
TARGETS = (0.7, 0.8, 0.9)
ITERATIONS = 480
PORT = "29555"
ECHO = """
import socket, sys, time
server = socket.create_server(("", 29556))
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20):
    peer.sendall(peer.recv(1))
size = int(sys.argv[1])
while size > 0:
    size -= len(peer.recv(1 << 16))
peer.sendall(b"x")
"""
ASK = """
import socket, sys, time
for _ in range(100):
    try:
        peer = socket.create_connection((sys.argv[2], 29556), timeout=5)
        break
    except OSError:
        time.sleep(0.1)
peer.settimeout(60)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(20):
    started = time.perf_counter()
    peer.sendall(b"x"); peer.recv(1)
    trips.append(time.perf_counter() - started)
started = time.perf_counter()
peer.sendall(bytes(int(sys.argv[1]))); peer.recv(1)
seconds = time.perf_counter() - started - min(trips) / 2
print(1e3 * sorted(trips)[10], 8e-6 * int(sys.argv[1]) / seconds)
"""


@dataclass(frozen=True)
class Setting:
    """One comparison: similarity s, I local steps, and a seed."""

    similarity: int
    local_steps: int
    seed: int

    @property
    def label(self) -> str:
        """For tables and titles."""
        return f"s = {self.similarity}%, I = {self.local_steps}"


def measured(link: WideAreaLink) -> tuple[float, float]:
    """The link's round trip in ms and its throughput in Mbit/s, as a program sees them."""
    size = "10000000"
    echo = subprocess.Popen(link.command(0, [sys.executable, "-c", ECHO, size]))
    ask = link.command(1, [sys.executable, "-c", ASK, size, link.addresses[0]])
    done = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=120)
    echo.wait(timeout=30)
    trip, throughput = map(float, done.stdout.split())
    return trip, throughput


def run(link: WideAreaLink, setting: Setting, algorithm: str, folder: Path) -> None:
    """One run, a process on each host."""
    settings = {
        "task.num_clients": len(link.names),
        "task.similarity": setting.similarity,
        "algorithm": algorithm,
        "budget.local_steps": setting.local_steps,
        "budget.rounds": ITERATIONS // setting.local_steps,
        "seed": setting.seed,
        "engine.timeout_seconds": 120,
    }
    sets = [a for key, value in settings.items() for a in ("--set", f"{key}={value}")]
    argv = [sys.executable, "-m", "episode", "run", *sets, "--folder", str(folder), "--quiet"]
    processes = []
    for rank in range(len(link.names)):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(link.names)),
            "LOCAL_WORLD_SIZE": str(len(link.names)),  # they share this machine's cores
            "MASTER_ADDR": link.addresses[0],
            "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": "wan0",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # these hosts have no names, which torch regrets
        }
        processes.append(
            subprocess.Popen(
                link.command(rank, argv),
                env={**os.environ, **place},
                stdout=subprocess.DEVNULL,
            )
        )
    codes = [process.wait(timeout=1800) for process in processes]
    if any(codes):
        sys.exit(f"{algorithm} at {setting.label} failed: exit codes {codes}.")


def seconds_to(target: float, folder: Path) -> float | None:
    """Training seconds until the test accuracy was there."""
    for record in read_rounds(folder / "rounds.jsonl"):
        if record.get("metrics", {}).get("test_accuracy", 0.0) >= target:
            return float(record["seconds"])
    return None


def table(root: Path, settings: list[Setting], seeds: int) -> str:
    """Median seconds to each target, over seeds, and EPISODE's share of NaiveParallelClip's."""
    lines = [
        "| setting | target | EPISODE | CELGC | NaiveParallelClip | EPISODE / NaiveParallelClip |",
        "|---|---|---|---|---|---|",
    ]
    for setting in settings:
        for target in TARGETS:
            cells: list[float | None] = []
            for algorithm in ALGORITHMS:
                found = [
                    seconds_to(target, root / name_of(setting, algorithm, seed))
                    for seed in range(seeds)
                ]
                reached = [s for s in found if s is not None]
                cells.append(statistics.median(reached) if len(reached) == seeds else None)
            texts = ["not reached" if c is None else f"{c:.1f} s" for c in cells]
            episode, _, parallel = cells
            ratio = f"{episode / parallel:.2f}" if episode and parallel else ""
            lines.append(f"| {setting.label} | {target:.0%} | {' | '.join(texts)} | {ratio} |")
    return "\n".join(lines)


def plot(root: Path, settings: list[Setting], title: str) -> Path:
    """Accuracy by seconds, a panel per setting, seed 0."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(settings), figsize=(3.6 * len(settings), 3.4), sharey=True, squeeze=False
    )
    for panel, setting in zip(panels[0], settings, strict=True):
        for algorithm in ALGORITHMS:
            rounds = read_rounds(root / name_of(setting, algorithm, 0) / "rounds.jsonl")
            points = [
                (r["seconds"], r["metrics"]["test_accuracy"]) for r in rounds if "metrics" in r
            ]
            colour, line = STYLES[algorithm]
            panel.plot(*zip(*points, strict=True), line, label=algorithm, color=colour)
        panel.set(title=setting.label, xlabel="training seconds")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("test accuracy")
    panels[0][0].legend(loc="lower right", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path = root / "wide_area.png"
    figure.savefig(path, dpi=120)
    return path


def name_of(setting: Setting, algorithm: str, seed: int) -> str:
    """A run's folder."""
    return f"s{setting.similarity}-I{setting.local_steps}-{algorithm}-seed{seed}"


def main() -> None:
    """All settings, all algorithms, over one link."""
    parser = argparse.ArgumentParser(description="Time to a target over a wide-area link.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--round-trip-ms", type=float, default=40.0)
    parser.add_argument("--megabits", type=float, default=100.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/wide-area"))
    parser.add_argument(
        "--settings", default="30:4,30:8,30:16,0:8", help="similarity:local_steps, by comma"
    )
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"The wide-area benchmark cannot run here: {reason}.")
    settings = [Setting(*map(int, s.split(":")), 0) for s in options.settings.split(",")]
    root = options.folder / time.strftime("%Y%m%d-%H%M%S")
    with WideAreaLink(options.hosts, options.round_trip_ms, options.megabits) as link:
        trip, throughput = measured(link)
        title = f"{options.hosts} hosts, round trip {trip:.0f} ms, {throughput:.0f} Mbit/s"
        print(f"{title} (measured)", flush=True)
        for setting in settings:
            for seed in range(options.seeds):
                for algorithm in ALGORITHMS:
                    folder = root / name_of(setting, algorithm, seed)
                    one = Setting(setting.similarity, setting.local_steps, seed)
                    run(link, one, algorithm, folder)
                    times = [seconds_to(t, folder) for t in TARGETS]
                    texts = ["-" if s is None else f"{s:.1f}" for s in times]
                    print(f"{setting.label} seed {seed} {algorithm:<20} {texts}", flush=True)
    text = f"{title}\n\n{table(root, settings, options.seeds)}\n"
    (root / "table.md").write_text(text)
    print(f"\n{text}\nPlot: {plot(root, settings, title)}")


if __name__ == "__main__":
    main()
