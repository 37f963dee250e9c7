"""What a config says about a task, and the promise to build it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from episode.federation.protocols import Task


class TaskSettings(BaseModel):
    """Settings of one task: stores them, does no work until `build`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    summary: ClassVar[str]
    """One line for `episode list`."""
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """What a config that names only this task gets for its other sections.

    In `budget`, `iterations` may stand for R·I: then R follows from I.
    """

    def suggestions(self) -> dict[str, dict[str, Any]]:
        """`defaults`, or, for a task of several scales, those that fit these settings."""
        return self.defaults

    @abstractmethod
    def build(self, seed: int, device: str) -> Task:
        """The task, with its data."""
