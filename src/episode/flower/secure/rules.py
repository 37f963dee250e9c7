"""What a site demands before it answers, as its operator says in the node config.

`min-cohort`, `node-key`, `fingerprints` and `state` are the settings of
`episode flower site --min-cohort --key --fingerprints --state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context
from flwr.supercore import log

from episode.errors import EpisodeError
from episode.flower.secure.keys import (
    KeyShare,
    RefusedError,
    fingerprint,
    read_fingerprints,
    read_node_key,
)

MIN_COHORT = 3
"""With two sites, each could subtract its own values from the sum."""


@dataclass(frozen=True)
class Rules:
    """The demands of a site."""

    min_cohort: int = MIN_COHORT
    """The smallest cohort that it answers in."""
    node_key: ec.EllipticCurvePrivateKey | None = None
    """Signs its key shares."""
    fingerprints: Mapping[int, str] | None = None
    """Fingerprints of all sites' node keys, by number; None if the operator gave none."""
    folder: Path | None = None
    """Where its state outlives the SuperNode and the run; None for nowhere."""

    @classmethod
    def of(cls, context: Context, states: Path | None = None) -> Rules:
        """Read the rules of a node config.

        Args:
            context: The site's context.
            states: The folder for states if the node config names none.

        Raises:
            EpisodeError: A setting is wrong, or a file cannot be read.
        """
        config = context.node_config
        least = config.get("min-cohort", MIN_COHORT)
        if type(least) is not int or least < MIN_COHORT:
            raise EpisodeError(
                f"This site's min-cohort is {least!r}: it must be {MIN_COHORT} or more, or sums "
                "would show single sites."
            )
        key, listed, state = (config.get(n) for n in ("node-key", "fingerprints", "state"))
        return cls(
            least,
            read_node_key(str(key)) if key else None,
            read_fingerprints(str(listed)) if listed else None,
            Path(str(state)) if state else states,
        )

    def check_own(self, client: int) -> None:
        """Check before round 0 that this site can satisfy the others, and warn without a list.

        Raises:
            EpisodeError: It has a list of fingerprints and no key, or another key than the list's.
        """
        if self.fingerprints is None:
            log(
                WARNING,
                "Site %d has no list of fingerprints: a server that lies about the keys of other "
                "sites could read what this site sends.",
                client,
            )
            return
        if self.node_key is None:
            raise EpisodeError(
                f"Site {client} has a list of fingerprints, but no node key of its own: start it "
                "with --key, or with node-key in its node config."
            )
        own, listed = fingerprint(self.node_key.public_key()), self.fingerprints.get(client)
        if own != listed:
            raise EpisodeError(
                f"The node key of site {client} has the fingerprint {own}, but the list of "
                f"fingerprints says {listed}: correct the list at every site."
            )

    def check_cohort(self, run: int, client: int, cohort: Mapping[int, KeyShare]) -> None:
        """Refuse a cohort in which this site's values could be seen.

        Args:
            run: Number of the Flower run.
            client: This site.
            cohort: The key shares of the cohort, by number.

        Raises:
            RefusedError: It is too small, or a key is not that of the site whose number it has.
        """
        if len(cohort) < self.min_cohort:
            raise RefusedError(
                f"The cohort has {len(cohort)} sites, and this site answers in cohorts of "
                f"{self.min_cohort} or more (min-cohort)."
            )
        if len({share.public for share in cohort.values()}) < len(cohort):
            raise RefusedError("Two sites of the cohort have the same key.")
        if self.fingerprints is not None:
            for number, share in cohort.items():
                if number != client:
                    share.check(run, number, self.fingerprints)
