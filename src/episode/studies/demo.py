"""`episode demo`: every algorithm of the grid at its own best setting, and all at a shared one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.core.algorithm import ALGORITHMS
from episode.core.clipping import Unclipped
from episode.errors import EpisodeError
from episode.results.curves import draw_runs
from episode.results.run_tables import run_row
from episode.results.store import StoredRun, read_run
from episode.runs.config import Experiment
from episode.studies.sweep import Stop, SweepOptions, SweepProgress, sweep

PICTURE = "demo.png"
Setting = tuple[float, float]
"""η and γ; an algorithm that does not clip has no use for γ."""
BEST: dict[str, Setting] = {
    "fedavg": (0.35, 1.0),
    "celgc": (0.5, 1.0),
    "scaffold": (0.18, 1.0),
    "scaffold_clipped": (0.5, 1.0),
    "naive_parallel_clip": (0.5, 1.0),
    "episode": (0.12, 0.3),
    "episode_unclipped": (0.18, 1.0),
    "episode_guarded": (0.5, 1.0),
    "episode_plus_plus": (0.12, 0.1),
    "episode_trust": (0.5, 0.3),
    "parallel_sgd": (0.18, 1.0),
}
"""The algorithms of the demo: correction x clipping, with a server that takes the mean.

For each, the best of twelve settings, on the validation split with seeds 0 to 2.

`python examples/fair_tables.py digits` finds them; see docs/results.md."""
EMPHASISED = ("fedavg", "celgc", "naive_parallel_clip", "episode", "episode_trust")
"""Algorithms whose curves stand out in the picture."""
SHARED = BEST["celgc"]
"""The paper tunes for CELGC, and uses what is best for it everywhere."""
CLOSE = 0.02
"""Accuracies that differ by less are called level: with 360 test examples that is chance."""


@dataclass(frozen=True)
class Compared:
    """One algorithm's two runs."""

    own: StoredRun
    """At its own best setting."""
    shared: StoredRun
    """At the shared one."""

    def row(self) -> dict[str, Any]:
        """Return the values of the demo's table: costs are those of the first run."""
        found, schedule = run_row(self.own), self.own.config["schedule"]
        clips = not isinstance(ALGORITHMS[self.own.label].clipping, Unclipped)
        return {
            "algorithm": found.pop("algorithm"),
            "eta": schedule["eta"],
            "gamma": schedule["gamma"] if clips else None,
            "accuracy": found.pop("accuracy"),
            "shared": run_row(self.shared)["accuracy"],
            **found,
        }


def experiment(algorithm: str, setting: Setting, seed: int, rounds: int) -> Experiment:
    """Return the config of one run: digits, sorted by label over 8 clients."""
    return Experiment.from_dict(
        {
            "seed": seed,
            "task": {"name": "digits"},
            "algorithm": {"name": algorithm},
            "schedule": {"eta": setting[0], "gamma": setting[1]},
            "budget": {"rounds": rounds},
            "record": {"evaluate_every": 2},
        }
    )


def run_demo(
    folder: Path,
    seed: int,
    rounds: int,
    progress: SweepProgress | None = None,
    stop: Stop | None = None,
) -> list[Compared]:
    """Play or resume every run of the demo, and draw the curves of the best settings.

    Args:
        folder: Where the runs and the figure go.
        seed: Decides the split of the data and the initial weights.
        rounds: Rounds of 8 local steps.
        progress: Shows the progress of the runs.
        stop: Asked after every round; once it is true, the runs are saved.

    Returns:
        The runs of each algorithm, in the order of `BEST`.

    Raises:
        EpisodeError: A run failed.
        KeyboardInterrupt: `stop()` became true.
    """
    own = {name: experiment(name, setting, seed, rounds) for name, setting in BEST.items()}
    shared = {name: experiment(name, SHARED, seed, rounds) for name in BEST}
    # Longest first, so that no core waits for the last one.
    wanted = {e.name: e for e in (*own.values(), *shared.values())}
    longest_first = sorted(wanted.values(), key=lambda e: -e.plan().rounds_to_play)
    for outcome in sweep(longest_first, SweepOptions(folder, stop=stop), progress):
        if outcome.status == "failed":
            raise EpisodeError(f"The run {outcome.name} failed: {outcome.reason}.")
    found = [
        Compared(read_run(folder / own[name].name), read_run(folder / shared[name].name))
        for name in BEST
    ]
    title = "Digits, 8 clients with different labels, I = 8: each algorithm at its own best setting"
    draw_runs([compared.own for compared in found], folder / PICTURE, title, EMPHASISED)
    return found


def conclusion(rows: list[dict[str, Any]]) -> str:
    """Say in words what the table shows, and for which settings."""
    known = [row for row in rows if row["status"] == "finished"]
    if not known:
        return "No run finished."
    top = max(known, key=lambda row: row["accuracy"])
    level = [r for r in known if r is not top and r["accuracy"] > top["accuracy"] - CLOSE]
    text = f"Each at its own best setting: {top['algorithm']} reaches {top['accuracy']:.3f}"
    if level:
        names = ", ".join(f"{r['algorithm']} ({r['exchanges']} exchanges)" for r in level)
        text += (
            f" with {top['exchanges']} exchanges; within {100 * CLOSE:.0f} points of it: {names}"
        )
    cheap = [r for r in known if 2 * r["exchanges"] <= top["exchanges"]]
    if cheap:
        first = max(cheap, key=lambda row: row["accuracy"])
        near = [r for r in cheap if r["accuracy"] > first["accuracy"] - CLOSE]
        names = ", ".join(f"{r['algorithm']} {r['accuracy']:.3f}" for r in near)
        text += f".\nWith half as many exchanges or fewer, these come first: {names}"
    ordered = sorted((r for r in rows if r["shared"] is not None), key=lambda r: -r["shared"])
    text += f".\nAll at the setting that is best for CELGC (η = {SHARED[0]:g}, γ = {SHARED[1]:g}): "
    text += ", ".join(f"{r['algorithm']} {r['shared']:.3f}" for r in ordered[:3]) + " come first"
    lost = [r["algorithm"] for r in rows if (r["shared"] or 0) < (r["accuracy"] or 0) - 0.1]
    text += f"; more than 10 points lost there: {', '.join(lost)}." if lost else "."
    return text + f"\nOne seed: differences of {100 * CLOSE:.0f} points may be chance."
