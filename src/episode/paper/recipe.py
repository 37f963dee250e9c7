"""What a recipe is: the runs of one table or figure, how they are shown, and what is claimed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from episode.errors import EpisodeError
from episode.paper.smoke_data import WRITERS, stand_in
from episode.results.curves import Panel
from episode.results.groups import Spread
from episode.results.store import StoredRun
from episode.results.tables import Table
from episode.runs.config import Experiment
from episode.runs.config_values import apply_override
from episode.studies.grid import at_point

Scale = Literal["smoke", "laptop", "paper"]
Verdict = Literal["holds", "does not hold", "not testable at this scale"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, how it was judged, and on what."""

    text: str
    verdict: Verdict
    figures: str
    """The numbers it was judged on, and the bound."""

    @classmethod
    def of(cls, text: str, holds: bool | None, figures: str) -> Claim:
        verdict: Verdict = "not testable at this scale"
        if holds is not None:
            verdict = "holds" if holds else "does not hold"
        return cls(text, verdict, figures)


@dataclass(frozen=True)
class Tuned:
    """η and γ that a study chose: one pair for all algorithms, or one for each that was tuned."""

    study: Path
    pairs: Mapping[str, tuple[float, float]]
    """By algorithm; the empty name is for all."""

    def settings(self, algorithm: str) -> dict[str, float]:
        """The algorithm's η and γ, as settings of a config."""
        pair = self.pairs.get(algorithm, self.pairs.get(""))
        if pair is None:
            raise EpisodeError(
                f"The study {self.study} tuned {', '.join(self.pairs)}, but not {algorithm}: tune "
                "that too, or give one study of CELGC for all."
            )
        return {"schedule.eta": pair[0], "schedule.gamma": pair[1]}


@dataclass(frozen=True)
class Kitchen:
    """Where and at what scale recipes are made."""

    scale: Scale
    folder: Path
    data: Mapping[str, str] = field(default_factory=dict)
    """Folders or archives of official files, by dataset; `glove` is a file of vectors."""
    seeds: int = 1
    overrides: Sequence[str] = ()
    """Settings that every run gets, such as engine.device=cuda."""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """η and γ from studies, by task."""

    @property
    def runs(self) -> Path:
        """Recipes share their runs: the same config is played once."""
        return self.folder / "runs"

    def place_of(self, dataset: str) -> str | None:
        """The data to use: made up at scale smoke, else what was given, else what was fetched."""
        if self.scale == "smoke" and dataset in WRITERS:
            return str(stand_in(dataset, self.folder / "made-up-data").resolve())
        return self.data.get(dataset)


@dataclass(frozen=True)
class Dish:
    """What a recipe came to."""

    sheets: Mapping[str, Table]
    """By file name; `table` is the main one."""
    panels: Mapping[str, list[list[Panel]]]
    """Figures by file name: rows of panels."""
    claims: list[Claim]
    notes: Sequence[str] = ()


class Recipe(ABC):
    """One table or figure of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]
    place: ClassVar[str]
    """Where it stands in the paper."""
    datasets: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def experiments(self, kitchen: Kitchen) -> list[Experiment]:
        """The runs it needs; none, where it computes everything itself."""

    @abstractmethod
    def serve(self, kitchen: Kitchen) -> Dish:
        """Tables, figures and claims, once the runs are there."""

    def missing(self, kitchen: Kitchen) -> str:
        """What keeps it from being made: one sentence, or nothing."""
        found = self.experiments(kitchen)
        if found:
            try:
                found[0].task.partition(0)
            except EpisodeError as error:
                paths = " ".join(f"--data {name}=PATH" for name in self.datasets)
                return f"{error} Here that is {paths}."
        return ""


Cell = tuple[str, int, float]
"""(algorithm, I, s)."""


def cell_experiment(
    kitchen: Kitchen, base: Mapping[str, Any], iterations: int, cell: Cell, seed: int
) -> Experiment:
    """The run of one cell of a table: every cell has the same number of iterations."""
    algorithm, steps, similarity = cell
    values = {k: dict(v) if isinstance(v, Mapping) else v for k, v in base.items()}
    tuned = kitchen.tuned.get(values["task"]["name"])
    for key, value in tuned.settings(algorithm).items() if tuned else ():
        apply_override(values, f"{key}={value!r}")
    point: dict[str, Any] = {
        "algorithm": algorithm,
        "task.similarity": float(similarity),
        "budget.local_steps": steps,
        "budget.rounds": max(1, -(-iterations // steps)),
        "seed": seed,
    }
    for override in kitchen.overrides:
        key = override.partition("=")[0].strip()
        if key in {*point, "algorithm.name"}:
            raise EpisodeError(
                f"--set {override}: a recipe sets {key} itself, for each of its runs."
            )
        apply_override(values, override)
    return at_point(values, point)


@dataclass(frozen=True)
class Results:
    """The runs of a table by cell, over seeds."""

    runs: Mapping[Cell, list[StoredRun]]
    iterations_per_epoch: float = 1.0

    def metric(self, cell: Cell, name: str) -> float | None:
        """The mean final figure; None where no run finished."""
        values = [
            float(r.summary["metrics"][name])
            for r in self.runs[cell]
            if r.status == "finished" and name in r.summary["metrics"]
        ]
        return Spread.of(values).mean if values else None

    def accuracy(self, cell: Cell) -> float:
        """Test accuracy in percent; a diverged run has none of it."""
        return 100 * (self.metric(cell, "test_accuracy") or 0.0)

    def loss(self, cell: Cell) -> float:
        """Training loss; infinite for a diverged run."""
        found = self.metric(cell, "train_loss")
        return float("inf") if found is None else found

    def text(self, cell: Cell) -> tuple[str, str]:
        """Training loss and test accuracy as a table shows them."""
        if all(r.status == "diverged" for r in self.runs[cell]):
            return "diverged", "diverged"
        pairs = []
        for name, scale, unit in (("train_loss", 1, ""), ("test_accuracy", 100, "%")):
            values = [
                scale * float(r.summary["metrics"][name])
                for r in self.runs[cell]
                if r.status == "finished"
            ]
            digits = 3 if unit == "" else 1
            left_out = f" ({len(values)} of {len(self.runs[cell])} runs)"
            mark = left_out if len(values) < len(self.runs[cell]) else ""
            pairs.append(Spread.of(values).text(digits) + unit + mark if values else "–")
        return pairs[0], pairs[1]

    def curve(self, cell: Cell, name: str, axis: str) -> tuple[list[float], list[float]]:
        """A figure of the first seed along an axis: epochs, iterations, rounds or minutes."""
        run = self.runs[cell][0]
        steps = run.config["budget"]["local_steps"] if cell[0] != "naive_parallel_clip" else 1
        scale = {"epochs": steps / self.iterations_per_epoch, "iterations": float(steps),
                 "rounds": 1.0, "minutes": 1 / 60}[axis]  # fmt: skip
        rows = [r for r in run.rounds if name in r.get("metrics", {})]
        along = [r["seconds"] if axis == "minutes" else r["round"] + 1 for r in rows]
        return [scale * x for x in along], [r["metrics"][name] for r in rows]

    def seconds_to(self, cell: Cell, accuracy: float) -> float | None:
        """Seconds of training of the first seed until this test accuracy, in percent."""
        for record in self.runs[cell][0].rounds:
            if 100 * record.get("metrics", {}).get("test_accuracy", 0) >= accuracy:
                return float(record["seconds"])
        return None

    def seconds(self, cell: Cell) -> float:
        """Seconds of training of the first seed, in all."""
        return float(self.runs[cell][0].summary.get("seconds", float("nan")))

    def best_within(self, cell: Cell, name: str, minutes: float) -> float:
        """The best that a figure of the first seed was within so many minutes."""
        best = min if name.endswith("loss") else max
        x, y = self.curve(cell, name, "minutes")
        reached = [v for t, v in zip(x, y, strict=True) if t <= minutes]
        return best(reached, default=float("inf") if best is min else 0.0)

    def rounds_to_loss(self, cell: Cell, loss: float) -> int | None:
        """Rounds of the first seed until this training loss."""
        for record in self.runs[cell][0].rounds:
            if record.get("metrics", {}).get("train_loss", float("inf")) <= loss:
                return int(record["round"]) + 1
        return None
