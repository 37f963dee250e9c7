"""Measure how far every algorithm on a Flower grid differs from the simulation engine.

As a program, this uses the grid of Flower's simulation. As the app of a Flower project, it uses
that of the SuperLink, and writes the differences into a folder, one file for each algorithm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from episode import ALGORITHMS, Algorithm
from episode.core.schedule import Schedule
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.flower.server import FlowerEngine
from episode.flower.simulation import quiet_environment, simulated_grid
from episode.flower.sites import Limits, Sites
from federation import SETTINGS, SITES, app, task

client = app()
server = ServerApp()


@server.main()
def deployed(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    for name, difference in differences(grid, rounds_of):
        (folder / "new").write_text(str(difference))
        (folder / "new").rename(folder / name)


def rounds_of(algorithm: Algorithm) -> int:
    """Return the fewest rounds that show what an algorithm carries over: exchanges take seconds."""
    return 2 if algorithm.correction.name == "remembered" or algorithm.descent.kept else 1


def differences(grid: Grid, rounds: Callable[[Algorithm], int]) -> Iterator[tuple[str, float]]:
    sites = Sites(grid, Limits(deadline=120, start_seconds=120), SETTINGS["seed"])
    sites.meet()
    schedule = Schedule(SETTINGS["eta"], SETTINGS["gamma"])
    for name, algorithm in ALGORITHMS.items():
        plan = Plan(algorithm, schedule, rounds(algorithm), local_steps=2, seed=SETTINGS["seed"])
        theirs = end_of(Rounds(plan, task(), FlowerEngine(sites, algorithm)))
        ours = end_of(Rounds(plan, task(), Simulation(task(), algorithm, workers=1)))
        pairs = [(theirs.x, ours.x), (theirs.buffers.floats, ours.buffers.floats)]
        yield name, max(float((a - b).abs().max()) for a, b in pairs)


def end_of(rounds: Rounds) -> ServerState:
    state = ServerState(*task().initial())
    try:
        while state.round < rounds.plan.rounds_to_play:
            rounds.play(state)
    finally:
        rounds.engine.close()
    return state


def main() -> None:
    with quiet_environment(), simulated_grid(client, SITES, workers=2) as grid:
        found = dict(differences(grid, lambda _: 3))
    for name, difference in found.items():
        sys.stdout.write(f"{name} differs by {difference}\n")


if __name__ == "__main__":
    main()
