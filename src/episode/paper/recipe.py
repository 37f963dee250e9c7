"""Contract of a recipe: its runs, its tables and figures, and the claims that it judges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

from episode.errors import EpisodeError
from episode.paper.smoke_data import WRITERS, made_up_data
from episode.results.curves import Panel
from episode.results.tables import Table
from episode.runs.config import Experiment

RecipeScale = Literal["smoke", "laptop", "paper"]
ClaimVerdict = Literal["holds", "does not hold", "not testable at this scale"]
R = TypeVar("R")


@dataclass(frozen=True)
class TunedSchedules:
    """η and γ that a study chose: one pair for all algorithms, or one for each."""

    study: Path
    pairs: Mapping[str, tuple[float, float]]
    """By algorithm; the empty name stands for all."""

    def overrides(self, algorithm: str) -> list[str]:
        """The algorithm's η and γ, as overrides of a config."""
        pair = self.pairs.get(algorithm, self.pairs.get(""))
        if pair is None:
            raise EpisodeError(
                f"The study {self.study} tuned {', '.join(self.pairs)}, but not {algorithm}: tune "
                "that too, or give a study of CELGC for all algorithms."
            )
        return [f"schedule.eta={pair[0]!r}", f"schedule.gamma={pair[1]!r}"]


@dataclass(frozen=True)
class RecipeContext:
    """Where, at what scale and with what data recipes are made."""

    scale: RecipeScale
    folder: Path
    data: Mapping[str, str] = field(default_factory=dict)
    """Folders or archives of official files by dataset; `glove` is a file of word vectors."""
    seeds: int = 1
    overrides: Sequence[str] = ()
    """Settings of every run, such as engine.device=cuda."""
    tuned: Mapping[str, TunedSchedules] = field(default_factory=dict)
    """η and γ from studies, by task."""

    @property
    def runs(self) -> Path:
        """Folder of all runs: recipes that need the same run share it."""
        return self.folder / "runs"

    def data_path(self, dataset: str) -> str | None:
        """The data to use: made up at scale smoke, else as given; None for fetched data."""
        if self.scale == "smoke" and dataset in WRITERS:
            return str(made_up_data(dataset, self.folder / "made-up-data").resolve())
        return self.data.get(dataset)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper, whether it holds here, and the evidence."""

    text: str
    verdict: ClaimVerdict
    evidence: str


@dataclass(frozen=True)
class Claim(Generic[R]):
    """A claim of the paper that results of type `R` decide."""

    text: str
    holds: Callable[[R], bool]
    evidence: Callable[[R], str]
    """Shows the metrics that decide the claim."""
    bound: str = ""
    """What is required, where the sentence does not say it exactly."""
    paper_scale_only: str = ""
    """Why it cannot be tested at a smaller scale; empty if it can."""

    def judge(self, results: R, obstacle: str = "") -> JudgedClaim:
        """Decide the claim by these results, unless an obstacle makes it not testable."""
        evidence = self.evidence(results) + (f"; required: {self.bound}" if self.bound else "")
        if obstacle:
            return JudgedClaim(
                self.text, "not testable at this scale", f"{obstacle}; here: {evidence}"
            )
        verdict: ClaimVerdict = "holds" if self.holds(results) else "does not hold"
        return JudgedClaim(self.text, verdict, evidence)


@dataclass(frozen=True)
class RecipeOutput:
    """Tables, figures and judged claims of a recipe."""

    tables: Mapping[str, Table]
    """By file name; `table` is the main one."""
    figures: Mapping[str, list[list[Panel]]]
    """Rows of panels, by file name."""
    claims: list[JudgedClaim]
    notes: Sequence[str] = ()


class Recipe(ABC):
    """One table or figure of the paper."""

    name: str
    title: str
    place: str
    """Where it is found in the paper."""

    def experiments(self, context: RecipeContext) -> list[Experiment]:
        """The runs that the recipe needs; none if it computes everything itself."""
        return []

    def missing(self, context: RecipeContext) -> str:
        """Why the recipe cannot be made, in a sentence; empty if it can."""
        return ""

    @abstractmethod
    def output(self, context: RecipeContext) -> RecipeOutput:
        """Make the tables, figures and claims, once all runs have ended."""
