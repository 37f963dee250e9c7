"""`episode demo`: every algorithm of the grid at its own best setting, and all at a shared one.

Then the same digits pixel by pixel, with and without clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episode.core.algorithm import ALGORITHMS
from episode.core.clipping import Unclipped
from episode.errors import EpisodeError
from episode.results.curves import RunRow, draw_runs
from episode.results.run_tables import run_row
from episode.results.store import StoredRun, read_run
from episode.runs.config import Experiment
from episode.studies.sweep import Stop, SweepOptions, SweepProgress, sweep

PICTURE = "demo.png"
Setting = tuple[float, float]
"""η and γ; an algorithm that does not clip has no use for γ."""
ITERATIONS = 480
"""Local steps of each client in all, for which the settings below are the best."""
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
SHARED = BEST["celgc"]
"""The paper tunes for CELGC, and uses what is best for it everywhere."""
BEST_BY_PIXEL: dict[str, Setting] = {
    "naive_parallel_clip": (2.0, 0.3),
    "parallel_sgd": (0.09, 1.0),
    "episode_trust": (0.12, 0.3),
    "episode": (0.5, 0.1),
    "episode_unclipped": (0.12, 1.0),
}
"""The same for digits pixel by pixel: `fair_tables.py digits-by-pixel --local-steps 4`."""
WITHOUT_CLIPPING = {
    "naive_parallel_clip": "parallel_sgd",
    "episode": "episode_unclipped",
}
"""Algorithms that clip, and what they are called without it."""


@dataclass(frozen=True)
class Part:
    """A task of the demo: digits, sorted by label over 8 clients."""

    title: str
    time_steps: int
    """In how many pieces the network reads an image of 64 pixels."""
    local_steps: int
    best: dict[str, Setting]
    """The algorithms that are compared on it, and the best setting of each."""
    emphasised: Sequence[str]
    """Algorithms whose curves stand out in the picture."""
    close: float
    """Accuracies that differ by less may do so by chance, with one seed and 359 test examples."""

    def experiment(
        self, algorithm: str, setting: Setting, seed: int, iterations: int
    ) -> Experiment:
        """Return the config of one run."""
        return Experiment.from_dict(
            {
                "seed": seed,
                "task": {"name": "digits", "time_steps": self.time_steps},
                "algorithm": {"name": algorithm},
                "schedule": {"eta": setting[0], "gamma": setting[1]},
                "budget": {
                    "rounds": iterations // self.local_steps, "local_steps": self.local_steps,
                },
                "record": {"evaluate_every": 24 // self.local_steps},
            }
        )  # fmt: skip


DIGITS = Part(
    "Digits, 8 clients with different labels", 16, 8, BEST,
    ("fedavg", "celgc", "naive_parallel_clip", "episode", "episode_trust"), close=0.02,
)  # fmt: skip
BY_PIXEL = Part(
    "The same digits pixel by pixel", 64, 4, BEST_BY_PIXEL, tuple(BEST_BY_PIXEL), close=0.05
)


@dataclass(frozen=True)
class Compared:
    """One algorithm's runs on one task."""

    own: StoredRun
    """At its own best setting."""
    shared: StoredRun | None = None
    """At the shared one, if that is shown."""

    def row(self) -> dict[str, Any]:
        """Return the values of the demo's tables: costs are those of the first run."""
        found, schedule = run_row(self.own), self.own.config["schedule"]
        clips = not isinstance(ALGORITHMS[self.own.label].clipping, Unclipped)
        return {
            "algorithm": found.pop("algorithm"),
            "eta": schedule["eta"],
            "gamma": schedule["gamma"] if clips else None,
            "accuracy": found.pop("accuracy"),
            **({"shared": run_row(self.shared)["accuracy"]} if self.shared else {}),
            **found,
        }


@dataclass(frozen=True)
class Demo:
    """The runs of the demo, each part in the order of its settings."""

    digits: list[Compared]
    by_pixel: list[Compared]


def number_of_runs() -> int:
    """Return how many runs the demo has."""
    return sum(1 + (setting != SHARED) for setting in BEST.values()) + len(BEST_BY_PIXEL)


def run_demo(
    folder: Path,
    seed: int,
    rounds: int,
    progress: SweepProgress | None = None,
    stop: Stop | None = None,
) -> Demo:
    """Play or resume every run of the demo, and draw the curves of the best settings.

    Args:
        folder: Where the runs and the figure go.
        seed: Decides the split of the data and the initial weights.
        rounds: Rounds of 8 local steps; pixel by pixel, twice as many of 4.
        progress: Shows the progress of the runs.
        stop: Asked after every round; once it is true, the runs are saved.

    Returns:
        All runs.

    Raises:
        EpisodeError: A run failed.
        KeyboardInterrupt: `stop()` became true.
    """
    iterations = rounds * DIGITS.local_steps
    own, by_pixel = (
        {name: part.experiment(name, best, seed, iterations) for name, best in part.best.items()}
        for part in (DIGITS, BY_PIXEL)
    )
    shared = {name: DIGITS.experiment(name, SHARED, seed, iterations) for name in BEST}
    # Longest first, so that no core waits for the last one.
    on_digits = {e.name: e for e in (*own.values(), *shared.values())}
    longest_first = [
        *by_pixel.values(),
        *sorted(on_digits.values(), key=lambda e: -e.plan().rounds_to_play),
    ]
    for outcome in sweep(longest_first, SweepOptions(folder, stop=stop), progress):
        if outcome.status == "failed":
            raise EpisodeError(f"The run {outcome.name} failed: {outcome.reason}.")
    demo = Demo(
        [
            Compared(read_run(folder / own[name].name), read_run(folder / shared[name].name))
            for name in BEST
        ],
        [Compared(read_run(folder / e.name)) for e in by_pixel.values()],
    )
    drawn = [
        RunRow(
            f"{part.title}, I = {part.local_steps}: each at its own best setting",
            [compared.own for compared in runs],
            part.emphasised,
        )
        for part, runs in ((DIGITS, demo.digits), (BY_PIXEL, demo.by_pixel))
    ]
    draw_runs(drawn, folder / PICTURE)
    return demo


def who_is_first(part: Part, rows: list[dict[str, Any]]) -> str:
    """Say which algorithms are the best at their own best settings, and at what cost."""
    known = [row for row in rows if row["status"] == "finished"]
    if not known:
        return "No run finished."
    top = max(known, key=lambda row: row["accuracy"])
    level = [r for r in known if r is not top and r["accuracy"] > top["accuracy"] - part.close]
    text = f"Each at its own best setting: {top['algorithm']} reaches {top['accuracy']:.3f}"
    if level:
        names = ", ".join(f"{r['algorithm']} ({r['exchanges']} exchanges)" for r in level)
        text += (
            f" with {top['exchanges']} exchanges; within {100 * part.close:.0f} points of it: "
            f"{names}"
        )
    cheap = [r for r in known if 2 * r["exchanges"] <= top["exchanges"]]
    if cheap:
        first = max(cheap, key=lambda row: row["accuracy"])
        near = [r for r in cheap if r["accuracy"] > first["accuracy"] - part.close]
        names = ", ".join(f"{r['algorithm']} {r['accuracy']:.3f}" for r in near)
        text += f".\nWith half as many exchanges or fewer, these come first: {names}"
    return f"{text}."


def who_needs_an_own_setting(rows: list[dict[str, Any]]) -> str:
    """Say which algorithms are the best at the shared setting, and which ones it does not suit."""
    ordered = sorted((r for r in rows if r["shared"] is not None), key=lambda r: -r["shared"])
    if not ordered:
        return "At the shared setting no run finished."
    text = f"All at the setting that is best for CELGC (η = {SHARED[0]:g}, γ = {SHARED[1]:g}): "
    text += ", ".join(f"{r['algorithm']} {r['shared']:.3f}" for r in ordered[:3]) + " come first"
    lost = [r["algorithm"] for r in rows if (r["shared"] or 0) < (r["accuracy"] or 0) - 0.1]
    return f"{text}; more than 10 points lost there: {', '.join(lost)}." if lost else f"{text}."


def what_clipping_gains(rows: list[dict[str, Any]]) -> str:
    """Say how much each algorithm that clips gains over itself without clipping."""
    accuracy = {row["algorithm"]: row["accuracy"] or 0.0 for row in rows}
    gains = [
        f"{clipped} {accuracy[clipped]:.3f}, {plain} {accuracy[plain]:.3f} "
        f"({100 * (accuracy[clipped] - accuracy[plain]):+.0f} points)"
        for clipped, plain in WITHOUT_CLIPPING.items()
    ]
    return f"With and without clipping, each at its own best: {'; '.join(gains)}."


def caution(part: Part) -> str:
    """Say which differences are too small to mean anything."""
    return f"One seed: differences of {100 * part.close:.0f} points may be chance."
