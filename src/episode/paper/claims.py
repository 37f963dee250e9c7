"""Claims of the paper as data: a sentence, how results decide it, and what evidence is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper, whether it holds here, and the evidence."""

    text: str
    verdict: Literal["holds", "does not hold", "not testable at this scale"]
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

    def judge(self, results: R) -> JudgedClaim:
        """Decide the claim by these results."""
        verdict: Literal["holds", "does not hold"] = "does not hold"
        if self.holds(results):
            verdict = "holds"
        return JudgedClaim(self.text, verdict, self.shown(results))

    def not_testable(self, reason: str) -> JudgedClaim:
        """Leave the claim undecided."""
        return JudgedClaim(self.text, "not testable at this scale", reason)

    def shown(self, results: R) -> str:
        """The evidence, and the bound if there is one."""
        return self.evidence(results) + (f"; required: {self.bound}" if self.bound else "")
