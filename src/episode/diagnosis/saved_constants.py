"""Constants for `episode plan` from a diagnosis saved by `episode diagnose --json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from episode.errors import EpisodeError
from episode.files import parse_json
from episode.theory.constants import Constants


@dataclass(frozen=True)
class SavedConstants:
    """The inputs of a plan that a diagnosis estimates."""

    title: str
    values: dict[str, float]
    """Constants by name, estimated along one path: bounds over all models may be larger."""
    clients: int
    local_steps: int

    def override(self, given: dict[str, float | None]) -> Constants:
        """Return the constants, with the given ones in place of the saved ones."""
        merged = self.values | {k: v for k, v in given.items() if v is not None}
        for name in ("L0", "delta"):
            if given.get(name) is None and merged[name] <= 0:
                raise EpisodeError(
                    f"The diagnosis of {self.title} estimates {name} as {merged[name]:g}, but "
                    f"Theorem 1 needs a value above 0: give --{name}."
                )
        return Constants(**merged)


DEFAULT = SavedConstants(
    "nothing",
    {"L0": 1.0, "L1": 1.0, "sigma": 1.0, "kappa": 1.0, "rho": 2.0, "delta": 1.0},
    clients=8,
    local_steps=8,
)
"""Values near 1 for a plan without a diagnosis, to see what depends on what."""


def read_saved_constants(path: Path) -> SavedConstants:
    """Read the constants, N and I of a saved diagnosis."""
    try:
        saved = parse_json(path.read_bytes())
        found = saved["estimates"]
        values = {name: float(found[name]["value"]) for name in DEFAULT.values if name != "delta"}
        values["delta"] = float(found["delta"])
        local_steps = int(saved["verdict"]["local_steps"])
        return SavedConstants(str(saved["title"]), values, int(saved["clients"]), local_steps)
    except OSError as error:
        raise EpisodeError(
            f"{path} cannot be read ({error.strerror}): give a file that `episode diagnose TASK "
            "--json` has written."
        ) from None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise EpisodeError(
            f"{path} is not a diagnosis: make one with `episode diagnose TASK --json > "
            f"{path.name}`."
        ) from None
