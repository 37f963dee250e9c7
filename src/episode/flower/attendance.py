"""Who takes part in a round on Flower, who does not, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.supercore import log


@dataclass
class Attendance:
    """The cohort of a round, and what is known about its clients."""

    cohort: list[int] = field(default_factory=list)
    """The clients that were chosen for the round."""
    absent: dict[int, str] = field(default_factory=dict)
    """Clients that sit the round out, and why; some may not be of the cohort."""
    unusual: dict[int, str] = field(default_factory=dict)
    """Clients whose replies are out of the ordinary but were used, and why."""
    attempts: int = 0
    """How often the round has been tried."""

    def present(self) -> list[int]:
        """Return the clients of the cohort that take part."""
        return [client for client in self.cohort if client not in self.absent]

    def leave_out(self, client: int, reason: str, round: int) -> None:
        """Let a client sit the round out."""
        self.absent[client] = reason
        log(WARNING, "Round %d: site %d %s", round, client, reason)

    def remark(self, client: int, reason: str, round: int) -> None:
        """Say that a client's reply is unusual, although it is used."""
        self.unusual[client] = reason
        text = "Round %d: site %d %s; it is used, because every site is needed"
        log(WARNING, text, round, client, reason)

    def notes(self) -> dict[str, Any]:
        """Return who was missing or unusual, and the number of attempts if there were several."""
        found: dict[str, Any] = {"missing": self._missing(), "unusual": self.unusual}
        found = {
            name: {str(client): reason for client, reason in reasons.items()}
            for name, reasons in found.items()
            if reasons
        }
        return found | ({"attempts": self.attempts} if self.attempts > 1 else {})

    def complaint(self, round: int, needed: int) -> str:
        """Return a sentence about a round in which too few clients took part."""
        missing = [f"site {client} {reason}" for client, reason in self._missing().items()]
        size = len(self.cohort)
        return (
            f"Round {round} was tried {self.attempts} times, and {size - len(missing)} of {size} "
            f"sites took part where {needed} are needed: {'; '.join(missing)}. "
            "Resume the run once they are back."
        )

    def _missing(self) -> dict[int, str]:
        return {c: self.absent[c] for c in sorted(self.cohort) if c in self.absent}
