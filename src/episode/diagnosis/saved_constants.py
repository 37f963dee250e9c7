"""Constants for a plan from a diagnosis that was saved with `episode diagnose --json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from episode.errors import EpisodeError
from episode.theory.constants import Constants

NAMES = ("L0", "L1", "sigma", "kappa", "rho")


@dataclass(frozen=True)
class Estimated:
    """What a diagnosis says that a plan needs."""

    title: str
    constants: dict[str, float]
    """Estimated along one path: bounds over all x may be larger, and Δ is what was seen of it."""
    clients: int
    local_steps: int

    def with_given(self, given: dict[str, float | None]) -> Constants:
        """The constants, with those that were given in place of the estimates."""
        merged = self.constants | {k: v for k, v in given.items() if v is not None}
        for name in ("L0", "delta"):
            if given.get(name) is None and merged[name] <= 0:
                raise EpisodeError(
                    f"The diagnosis of {self.title} saw no {name} above 0, which Theorem 1 needs: "
                    f"give --{name} too."
                )
        return Constants(**merged)


DEFAULT = Estimated(
    "nothing",
    {"L0": 1.0, "L1": 1.0, "sigma": 1.0, "kappa": 1.0, "rho": 2.0, "delta": 1.0},
    clients=8,
    local_steps=8,
)
"""Without a diagnosis: numbers near 1, to see what depends on what."""


def read_estimated(path: Path) -> Estimated:
    """The constants, N and I of a saved diagnosis."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise _not_a_diagnosis(path) from None
    try:
        found = values["estimates"]
        constants = {name: float(found[name]["value"]) for name in NAMES}
        constants["delta"] = float(found["delta"])
        title, clients = str(values["title"]), int(values["clients"])
        local_steps = int(values["verdict"]["local_steps"])
    except (KeyError, TypeError, ValueError):
        raise _not_a_diagnosis(path) from None
    return Estimated(title, constants, clients, local_steps)


def _not_a_diagnosis(path: Path) -> EpisodeError:
    return EpisodeError(
        f"{path} is not a diagnosis: make one with `episode diagnose TASK --json > {path.name}`."
    )
