"""What rounding costs: the same runs with open and with secure sums, on digits and on SNLI.

    python benchmarks/secure_accuracy.py --data snli_1.0 --vectors glove.6B.50d.txt.gz

Eight sites in this process, each a real ClientApp, with the messages of a real run. Both runs have
one seed. Prints the test accuracy of both, and the largest distance of x̄ in a round, as a part of
its norm. As a yardstick it also plays the open run with other rounding: every number of every x̄ is
moved at random by up to 2^-23 of itself, its last bit. Without --data it plays digits alone. With
--float64 it plays SNLI alone, with models of that type, so that what is left is the rounding of
fixed-point numbers.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from episode import EpisodeError
from episode.engines.registry import opener_of
from episode.federation.job import Job
from episode.federation.protocols import Engine
from episode.flower.app import client_app
from episode.flower.opening import engine_on_sites
from episode.runs.config import read_experiment
from episode.runs.trainer import job_of, train

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
from local_grid import LocalGrid

DIGITS = Path(__file__).parents[1] / "examples" / "digits.toml"


LAST_BIT = 2.0**-23
SNLI = ("task=snli", "record.evaluate_every=0")
CELGC = ("algorithm=celgc", "budget.rounds=100")
SNLI_ROWS = {
    "SNLI, EPISODE, η = 0.1, γ = 0.01": (
        "schedule.eta=0.1",
        "schedule.gamma=0.01",
        "budget.rounds=20",
    ),
    "SNLI, EPISODE, η = 1, γ = 0.1": ("schedule.eta=1", "schedule.gamma=0.1", "budget.rounds=20"),
    "SNLI, CELGC, η = 0.3, γ = 0.3": (*CELGC, "schedule.eta=0.3", "schedule.gamma=0.3"),
    "SNLI, CELGC, η = 1, γ = 1": (*CELGC, "schedule.eta=1", "schedule.gamma=1"),
}


@contextmanager
def watched(
    job: Job, open_engine: Any, points: list[Tensor], noise: float = 0.0
) -> Iterator[Engine]:
    """Open the engine of a job, and collect x̄ of each round, to which relative noise is added."""
    generator = torch.Generator().manual_seed(0)
    with open_engine(job) as engine:
        average = engine.average

        def watch(phase: str, *args: Any, **given: Any) -> Any:
            if given["round"] == len(points):
                points.append(given["x"].clone())
            reply = average(phase, *args, **given)
            if phase == "local" and noise:
                x = reply.vectors["x"]
                drawn = 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1
                reply.vectors["x"] = (x.double() * (1 + noise * drawn)).to(x)
            return reply

        engine.average = watch
        yield engine


def at_sites(job: Job) -> Any:
    """Return an engine on sites in this process, to be opened."""
    grid = LocalGrid(client_app(job.config), list(range(job.task.num_clients)))
    return engine_on_sites(job, grid)


def play(config: Path | None, settings: Sequence[str], secure: bool) -> tuple[float, list[Tensor]]:
    """Return the accuracy at the end, and x̄ of each round."""
    chosen = ["engine=flower", f"engine.secure={str(secure).lower()}", *settings]
    points: list[Tensor] = []
    job = job_of(read_experiment(config, chosen))
    run = train(replace(job, open_engine=lambda job: watched(job, at_sites, points)))
    return 100 * run.summary["metrics"]["test_accuracy"], [*points, run.x]


def play_rounded(config: Path | None, settings: Sequence[str]) -> tuple[float, list[Tensor]]:
    """Play the open run, which a simulation gives bit for bit, with noise in each last bit."""
    points: list[Tensor] = []
    job = job_of(read_experiment(config, settings))
    plain = opener_of(job)
    run = train(replace(job, open_engine=lambda job: watched(job, plain, points, LAST_BIT)))
    return 100 * run.summary["metrics"]["test_accuracy"], [*points, run.x]


def compare(name: str, config: Path | None, settings: Sequence[str]) -> None:
    """Play all three, and print a row of the table in docs/privacy.md."""
    opened, there = play(config, settings, secure=False)
    row = [name, str(len(there) - 1), f"{opened:.2f} %"]
    for accuracy, here in (play(config, settings, secure=True), play_rounded(config, settings)):
        pairs = zip(there, here, strict=True)
        largest = max(float((a - b).norm() / a.norm()) for a, b in pairs)
        row += [f"{accuracy:.2f} %", f"{largest:.1e}"]
    print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Read the options and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of SNLI's files; without it, digits alone")
    parser.add_argument("--vectors", help="GloVe vectors for SNLI")
    parser.add_argument("--float64", action="store_true", help="SNLI alone, in float64")
    given = parser.parse_args()
    if bool(given.data) != bool(given.vectors) or (given.float64 and not given.data):
        parser.error("SNLI needs both --data and --vectors")
    if given.float64:
        torch.set_default_dtype(torch.float64)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| | rounds | open | secure | x̄ differs | other rounding | x̄ differs |")
    print("|---|---|---|---|---|---|---|")
    if not given.float64:
        compare("digits", DIGITS, ())
    if given.data:
        files = [f"task.data={given.data}", f"task.vectors={given.vectors}"]
        for name, settings in SNLI_ROWS.items():
            compare(name, None, [*SNLI, *settings, *files])


if __name__ == "__main__":
    try:
        main()
    except EpisodeError as error:
        raise SystemExit(f"Error: {error}") from None
