"""What rounding costs: the same runs with open and with secure sums, on digits and on SNLI.

    python benchmarks/secure_accuracy.py --data snli_1.0 --vectors glove.6B.50d.txt.gz

Eight sites in this process, each a real ClientApp, with the messages of a real run. Both runs have
one seed. Prints the test accuracy of both, and the largest distance of x̄ in a round, as a part of
its norm. Without --data it plays digits alone.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from episode.federation.job import Job
from episode.federation.protocols import Engine
from episode.flower.app import client_app
from episode.flower.opening import engine_on_sites
from episode.runs.config import read_experiment
from episode.runs.trainer import job_of, train

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
from local_grid import LocalGrid

DIGITS = Path(__file__).parents[1] / "examples" / "digits.toml"


@contextmanager
def watched(job: Job, points: list[Tensor]) -> Iterator[Engine]:
    """Open the engine of a job on sites in this process, and collect x̄ of each round."""
    grid = LocalGrid(client_app(job.config), list(range(job.task.num_clients)))
    with engine_on_sites(job, grid) as engine:
        average = engine.average

        def watch(*args: Any, **given: Any) -> Any:
            if given["round"] == len(points):
                points.append(given["x"].clone())
            return average(*args, **given)

        engine.average = watch  # type: ignore[method-assign]
        yield engine


def play(config: Path | None, settings: list[str], secure: bool) -> tuple[float, list[Tensor]]:
    """Return the accuracy at the end, and x̄ of each round."""
    chosen = ["engine=flower", f"engine.secure={str(secure).lower()}", *settings]
    points: list[Tensor] = []
    job = job_of(read_experiment(config, chosen))
    run = train(replace(job, open_engine=lambda job: watched(job, points)))
    return 100 * run.summary["metrics"]["test_accuracy"], [*points, run.x]


def compare(name: str, config: Path | None, settings: list[str]) -> None:
    """Play open and secure, and print a row of the table in docs/privacy.md."""
    (opened, there), (secured, here) = (play(config, settings, s) for s in (False, True))
    pairs = zip(there, here, strict=True)
    largest = max(float((a - b).norm() / a.norm()) for a, b in pairs)
    shown = f"| {opened:.2f} % | {secured:.2f} % | {largest:.1e} |"
    print(f"| {name} | {len(here) - 1} {shown}", flush=True)


def main() -> None:
    """Read the options and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of SNLI's files; without it, digits alone")
    parser.add_argument("--vectors", help="GloVe vectors for SNLI")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(
        "| | rounds | open | secure | largest difference of x̄ in a round |\n|---|---|---|---|---|"
    )
    compare("digits", DIGITS, [])
    if given.data:
        snli = ["task=snli", f"task.data={given.data}", f"task.vectors={given.vectors}"]
        compare("SNLI", None, snli)


if __name__ == "__main__":
    main()
