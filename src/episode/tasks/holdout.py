"""The setting `holdout` of tasks whose clients can hold out examples of their own."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from episode.tasks.settings import TaskSettings


class HoldoutSettings(TaskSettings):
    """Settings of a task whose clients can hold out a share of their own examples."""

    holdout: float = Field(default=0.0, ge=0, lt=1)
    """Share of each client's own examples that is not trained on: the model is evaluated on it for
    each client. At least one example, and the same ones for the same seed."""

    @model_serializer(mode="wrap")
    def _without_the_default(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a holdout of 0: a config from before there was one describes the same run."""
        values: dict[str, Any] = serialise(self)
        if not self.holdout:
            values.pop("holdout", None)
        return values
