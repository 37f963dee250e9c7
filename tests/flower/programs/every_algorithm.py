"""Every algorithm in one of Flower's simulations, against ours; prints the largest difference."""

from __future__ import annotations

import sys

from episode import ALGORITHMS
from episode.engines.flower_simulation import require_flower, simulate

require_flower()

from flwr.serverapp import Grid  # noqa: E402

from episode.engines.flower_rounds import SiteRounds  # noqa: E402
from episode.engines.flower_server import FlowerEngine  # noqa: E402
from episode.engines.flower_sites import Patience, Sites  # noqa: E402
from episode.experiments.config import read_experiment  # noqa: E402
from episode.experiments.flower_runs import client_app  # noqa: E402
from episode.experiments.run import execute, job_of  # noqa: E402
from episode.federation.state import ServerState  # noqa: E402

SETTINGS = [
    "task=digits", "task.num_clients=3", "task.dtype=float64", "task.hidden=16", "seed=3",
    "budget.rounds=3", "budget.local_steps=2", "record.evaluate_every=0", "engine.workers=1",
]  # fmt: skip


def main() -> None:
    experiment = read_experiment(None, SETTINGS)

    def serve(grid: Grid) -> dict[str, float]:
        sites = Sites(grid, Patience(deadline=60, start_seconds=60), experiment.seed)
        sites.meet()
        found = {}
        for name in ALGORITHMS:
            job = job_of(read_experiment(None, [*SETTINGS, f"algorithm={name}"]))
            engine = FlowerEngine(sites, job.plan.algorithm)
            rounds = SiteRounds(job.plan, job.task, engine)
            server = ServerState(*job.task.initial())
            while server.round < job.plan.rounds_to_play:
                rounds.play(server)
            engine.close()
            found[name] = float((server.x - execute(job).x).abs().max())
        return found

    found = simulate(client_app(experiment), serve, 3, workers=2)
    for name, difference in found.items():
        sys.stdout.write(f"{name} differs by {difference}\n")


if __name__ == "__main__":
    main()
